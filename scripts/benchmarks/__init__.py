"""Benchmarks: training, generation and data, against peers and against limits of the machine."""
