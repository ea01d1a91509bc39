"""Training: the only stage that imports lightning."""
