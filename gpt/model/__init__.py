"""The model: attention (step by step, then fused), the transformer around it, and its loss."""
