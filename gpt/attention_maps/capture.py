"""Attention maps of a model, recomputed next to the fused attention kernel, which does not return them.

Shape letters: L layers, B batch, H heads, T length, D head_dim.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from gpt.attention_maps.probes import Probe
from gpt.model.attention import MultiHeadAttention
from gpt.model.inference import inference
from gpt.model.transformer import GPT


@dataclass(frozen=True)
class Capture:
    """Attention of every head on a probe of T tokens.

    Args:
        maps: (L, H, T, T) float32 on the CPU, queries x keys: rows sum to 1, future keys are exactly 0.
        max_logits: (L, H) float32 on the CPU, the largest attention logit of each head.
    """

    probe: Probe
    maps: Tensor
    max_logits: Tensor


def attention_maps(model: GPT, token_ids: Tensor) -> Tensor:
    """Compute the attention weights of every head; the model itself is not changed.

    Args:
        token_ids: (B, T) int64, T at most ``context_length``.

    Returns:
        (L, B, H, T, T) float32 on the CPU, queries x keys: rows sum to 1, future keys are exactly 0.
    """
    return _attention_logits(model, token_ids).softmax(dim=-1)


def capture_attention(model: GPT, probes: Sequence[Probe]) -> list[Capture]:
    """Capture the attention on probes of any lengths up to ``context_length``, in one forward pass."""
    lengths = [len(probe.token_ids) for probe in probes]
    # The causal mask hides right padding from every token of a probe.
    padded = [[*probe.token_ids, *[0] * (max(lengths) - len(probe.token_ids))] for probe in probes]
    batch = _attention_logits(model, torch.tensor(padded)).unbind(dim=1)  # B of (L, H, T, T)
    logits = [own[..., :length, :length] for own, length in zip(batch, lengths, strict=True)]
    return [
        Capture(probe, own.softmax(dim=-1), own.amax(dim=(-2, -1))) for probe, own in zip(probes, logits, strict=True)
    ]


def causal_attention_logits(queries: Tensor, keys: Tensor) -> Tensor:
    """Pre-softmax attention logits: (B, H, T, D) queries and keys to (B, H, T, T) float32, -inf for future keys."""
    logits = queries.float() @ keys.float().transpose(-2, -1) / queries.shape[-1] ** 0.5  # (B, H, T, T)
    future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(diagonal=1)
    return logits.masked_fill(future, -torch.inf)


def _attention_logits(model: GPT, token_ids: Tensor) -> Tensor:
    """Run the model once and collect its attention logits: (B, T) to (L, B, H, T, T) float32 on the CPU.

    Forward hooks read the output of each ``qkv`` projection: the same queries and keys that the fused kernel reads.
    """
    logits: list[Tensor] = []

    def record(attention: MultiHeadAttention, _projection: nn.Module, _inputs: tuple[Tensor, ...], qkv: Tensor) -> None:
        queries, keys, _ = attention.split_qkv(qkv)
        logits.append(causal_attention_logits(queries, keys).cpu())

    with inference(model):
        attentions = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
        hooks = [attention.qkv.register_forward_hook(partial(record, attention)) for attention in attentions]
        try:
            model.transformer(token_ids.to(model.device))
        finally:
            for hook in hooks:
                hook.remove()
    assert len(logits) == model.config.num_layers  # a compiled module skips its hooks silently
    return torch.stack(logits)
