"""Attention maps: capture, head scores, and TensorBoard."""
