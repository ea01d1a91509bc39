"""Attention maps of a text, while the model itself stays fused.

Shape letters: L layers, B batch, H heads, T length.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.model.attention import MultiHeadAttention
from gpt.model.inference import inference
from gpt.model.transformer import GPT


@dataclass(frozen=True)
class Attention:
    """What every head of every layer does with one text.

    Args:
        maps: (L, H, T, T) float32 on the CPU: query down, key across; rows sum to 1, the future is exactly 0.
        max_logits: (L, H) float32: the largest logit that went into the softmax.
    """

    maps: Tensor
    max_logits: Tensor


def attention_maps(model: GPT, token_ids: Tensor) -> Tensor:
    """How much each token of a text looks at each token before it.

    Args:
        model: the model; afterwards it is as it was.
        token_ids: (B, T), int64, T at most ``context_length``.

    Returns:
        (L, B, H, T, T) float32 on the CPU: query down, key across; rows sum to 1, the future is exactly 0.

    Raises:
        ValueError: T is larger than ``context_length``.
    """
    return _attention_logits(model, token_ids).softmax(dim=-1)


def capture_attention(model: GPT, texts: Sequence[Sequence[int]]) -> list[Attention]:
    """Attention in several texts of any lengths, in one pass.

    Args:
        model: the model; afterwards it is as it was.
        texts: token ids of each, at most ``context_length`` of them.

    Returns:
        One for each text.

    Raises:
        ValueError: a text is longer than ``context_length``.
    """
    longest = max(map(len, texts))
    # What fills up a shorter text lies in the future of all of its tokens, which none of them sees.
    filled = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    logits = _attention_logits(model, filled)  # (L, B, H, T, T)
    each = [logits[:, row, :, : len(text), : len(text)] for row, text in enumerate(texts)]
    return [Attention(maps=own.softmax(dim=-1), max_logits=own.amax(dim=(-2, -1))) for own in each]


def _attention_logits(model: GPT, token_ids: Tensor) -> Tensor:
    """What the softmax of each head is taken of: (B, T) to (L, B, H, T, T) float32 on the CPU, -inf for the future.

    The model runs once, in eval mode and without gradients. A hook takes what each attention module's own projection
    puts out, so the maps are those of the very queries and keys that the fused kernel uses. Afterwards the model is
    as it was, mode and hooks, whatever happened.
    """
    modules = list(model.modules())
    logits: list[Tensor] = []

    def record(attention: MultiHeadAttention, projected: Tensor) -> None:
        queries, keys, _ = attention.split_qkv(projected)
        logits.append(causal_attention_logits(queries, keys).cpu())

    with inference(model):
        hooks = [
            attention.qkv.register_forward_hook(
                lambda _, inputs, output, attention=attention: record(attention, output)
            )
            for attention in modules
            if isinstance(attention, MultiHeadAttention)
        ]
        try:
            model.transformer(token_ids.to(model.device))
        finally:
            for hook in hooks:
                hook.remove()
    assert len(logits) == model.config.num_layers  # hooks are skipped without a word where a module is compiled
    return torch.stack(logits)


def causal_attention_logits(queries: Tensor, keys: Tensor) -> Tensor:
    """Pre-softmax attention logits, which the fused kernel does not return.

    Args:
        queries: (B, H, T, D), any float dtype.
        keys: (B, H, T, D).

    Returns:
        (B, H, T, T) float32: rows are queries, -inf for future keys; ``softmax(dim=-1)`` gives the attention weights.
    """
    T = queries.shape[-2]
    logits = queries.float() @ keys.float().transpose(-2, -1) / queries.shape[-1] ** 0.5  # (B, H, T, T)
    future = torch.ones(T, T, dtype=torch.bool, device=logits.device).triu(diagonal=1)
    return logits.masked_fill(future, -torch.inf)
