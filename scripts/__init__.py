"""The command lines, and the modules that measure for benchmark.py."""
