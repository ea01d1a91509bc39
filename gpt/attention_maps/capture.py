"""Attention maps of a text, while the model itself stays fused.

Shape letters: L layers, B batch, H heads, T length.
"""

import torch
from torch import Tensor, nn

from gpt.model.attention import MultiHeadAttention, causal_attention_weights
from gpt.model.inference import inference
from gpt.model.transformer import GPT


def attention_maps(model: GPT, token_ids: Tensor) -> Tensor:
    """How much each token of a text looks at each token before it, in every head of every layer.

    The model runs once, in eval mode and without gradients. Before each attention module a hook takes the input
    and applies the module's own projections to it, so the maps are those of the very weights that the fused
    kernel uses. Afterwards the model is as it was, mode and hooks, whatever happened.

    Args:
        model: the model.
        token_ids: (B, T), int64, T at most ``context_length``.

    Returns:
        (L, B, H, T, T) float32 on the CPU: query down, key across; rows sum to 1, the future is exactly 0.

    Raises:
        ValueError: T is larger than ``context_length``.
    """
    maps: list[Tensor] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(module, MultiHeadAttention)
        queries, keys, _ = module.heads(inputs[0])
        maps.append(causal_attention_weights(queries, keys).cpu())

    with inference(model):
        hooks = [m.register_forward_pre_hook(record) for m in model.modules() if isinstance(m, MultiHeadAttention)]
        try:
            model.transformer(token_ids.to(model.head_weight.device))
        finally:
            for hook in hooks:
                hook.remove()
    assert len(maps) == model.config.num_layers  # hooks are skipped without a word where a module is compiled
    return torch.stack(maps)
