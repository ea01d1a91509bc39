"""Attention maps: computed beside the fused path, scored, drawn."""
