"""Attention maps of a model, recomputed next to the fused attention kernel, which does not return them.

Shape letters: L layers, B batch, H heads, T length, D head_dim.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gpt.attention_maps.probes import Probe
from gpt.model.attention import MultiHeadAttention
from gpt.model.inference import inference
from gpt.model.transformer import GPT


@dataclass(frozen=True)
class Capture:
    """Attention of every head on a probe of T tokens: float32 on the CPU."""

    probe: Probe
    maps: Tensor  # (L, H, T, T), queries x keys: rows sum to 1, future keys are exactly 0
    max_logits: Tensor  # (L, H), the largest attention logit of each head


def attention_maps(model: GPT, token_ids: Tensor) -> Tensor:
    """Compute the attention weights of every head: (B, T) int64 to (L, B, H, T, T) float32 on the CPU.

    T is at most ``context_length``. Weights are queries x keys: rows sum to 1, future keys are exactly 0.
    """
    return _attention_logits(model, token_ids).softmax(dim=-1)


def capture_attention(model: GPT, probes: Sequence[Probe]) -> list[Capture]:
    """Capture the attention on probes of any lengths up to ``context_length``, in one forward pass."""
    # The causal mask hides right padding from every token of a probe.
    padded = pad_sequence([torch.tensor(probe.token_ids) for probe in probes], batch_first=True)  # (B, T)
    captures = []
    for probe, logits in zip(probes, _attention_logits(model, padded).unbind(dim=1), strict=True):
        T = len(probe.token_ids)
        logits = logits[..., :T, :T]  # (L, H, T, T)
        captures.append(Capture(probe, logits.softmax(dim=-1), logits.amax(dim=(-2, -1))))
    return captures


def causal_attention_logits(queries: Tensor, keys: Tensor) -> Tensor:
    """Pre-softmax attention logits: (B, H, T, D) queries and keys to (B, H, T, T) float32, -inf for future keys."""
    logits = queries.float() @ keys.float().transpose(-2, -1) / queries.shape[-1] ** 0.5  # (B, H, T, T)
    future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(diagonal=1)
    return logits.masked_fill(future, -torch.inf)


def _attention_logits(model: GPT, token_ids: Tensor) -> Tensor:
    """Run the model once and compute its attention logits: (B, T) to (L, B, H, T, T) float32 on the CPU.

    Forward hooks read the output of each ``qkv`` projection: the same queries and keys that the fused kernel reads.
    """
    attentions = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    projected: list[Tensor] = []  # L of (B, T, 3 d_model)
    with inference(model), ExitStack() as hooks:
        for attention in attentions:
            hook = attention.qkv.register_forward_hook(lambda _module, _inputs, qkv: projected.append(qkv))
            hooks.enter_context(hook)
        model.transformer(token_ids.to(model.device))
    # The lengths differ if a compiled module has skipped its hooks, which it does silently.
    queries_and_keys = [attention.split_qkv(qkv)[:2] for attention, qkv in zip(attentions, projected, strict=True)]
    return torch.stack([causal_attention_logits(*pair).cpu() for pair in queries_and_keys])
