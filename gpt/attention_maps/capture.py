"""Attention maps of a model, recomputed next to the fused attention kernel, which does not return them.

Shape letters: L layers, B batch, H heads, T length, D head_dim, V vocab_size.
"""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from gpt.attention_maps.ablation import ablate_heads
from gpt.attention_maps.probes import Probe
from gpt.model.attention import MultiHeadAttention
from gpt.model.inference import inference
from gpt.model.transformer import GPT

NUM_LIKELIEST = 5


@dataclass(frozen=True)
class Predictions:
    """What a model predicts after each of the T tokens of a probe: on the CPU."""

    losses: Tensor  # (T - 1,) float32 nats: of token i + 1, after tokens 0 .. i
    likeliest: list[list[str]]  # T lists of 5: labels of the likeliest next tokens after tokens 0 .. i
    probabilities: Tensor  # (T, 5) float32: of those


@dataclass(frozen=True)
class Capture:
    """Attention of every head on a probe of T tokens, and the model's predictions: float32 on the CPU."""

    probe: Probe
    maps: Tensor  # (L, H, T, T), queries x keys: rows sum to 1, future keys are exactly 0
    max_logits: Tensor  # (L, H), the largest attention logit of each head
    predictions: Predictions | None = None
    ablation: tuple[str, Tensor] | None = None  # its kind, and the result of ``ablate_heads``, (L, H) nats


def attention_maps(model: GPT, token_ids: Tensor) -> Tensor:
    """Compute the attention weights of every head: (B, T) int64 to (L, B, H, T, T) float32 on the CPU.

    T is at most ``context_length``. Weights are queries x keys: rows sum to 1, future keys are exactly 0.
    """
    return _attention_logits(model, token_ids)[0].softmax(dim=-1)


def capture_attention(
    model: GPT, probes: Sequence[Probe], label: Callable[[int], str] = str, ablation: str | None = None
) -> list[Capture]:
    """Capture attention and predictions on probes of any lengths up to ``context_length``, in one forward pass.

    Args:
        label: label of a token id, such as ``token_label`` gives.
        ablation: one of ``ABLATIONS``, to measure the importance of each head too, in a pass per layer.
    """
    # The causal mask hides right padding from every token of a probe.
    padded = pad_sequence([torch.tensor(probe.token_ids) for probe in probes], batch_first=True)  # (B, T)
    all_logits, all_hidden = _attention_logits(model, padded)
    captures = []
    for probe, logits, hidden in zip(probes, all_logits.unbind(dim=1), all_hidden, strict=True):
        T = len(probe.token_ids)
        logits = logits[..., :T, :T]  # (L, H, T, T)
        predictions = _predictions(model, hidden[:T], probe.token_ids, label)
        importance = (ablation, ablate_heads(model, probe.token_ids, ablation)) if ablation else None
        captures.append(Capture(probe, logits.softmax(dim=-1), logits.amax(dim=(-2, -1)), predictions, importance))
    return captures


@torch.no_grad()
def _predictions(model: GPT, hidden: Tensor, token_ids: Sequence[int], label: Callable[[int], str]) -> Predictions:
    log_probabilities = model.logits(hidden).float().log_softmax(dim=-1).cpu()  # (T, V)
    losses = -log_probabilities[:-1].gather(1, torch.tensor(token_ids[1:])[:, None])[:, 0]
    top = log_probabilities.topk(min(NUM_LIKELIEST, log_probabilities.shape[-1]))
    return Predictions(losses, [list(map(label, ids)) for ids in top.indices.tolist()], top.values.exp())


def causal_attention_logits(queries: Tensor, keys: Tensor) -> Tensor:
    """Pre-softmax attention logits: (B, H, T, D) queries and keys to (B, H, T, T) float32, -inf for future keys."""
    logits = queries.float() @ keys.float().transpose(-2, -1) / queries.shape[-1] ** 0.5  # (B, H, T, T)
    future = torch.ones(logits.shape[-2:], dtype=torch.bool, device=logits.device).triu(diagonal=1)
    return logits.masked_fill(future, -torch.inf)


def _attention_logits(model: GPT, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Run the model once: (B, T) to its attention logits, (L, B, H, T, T) float32 on the CPU, and its hidden states.

    Forward hooks read the output of each ``qkv`` projection: the same queries and keys that the fused kernel reads.
    """
    attentions = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    projected: list[Tensor] = []  # L of (B, T, 3 d_model)
    with inference(model), ExitStack() as hooks:
        for attention in attentions:
            hook = attention.qkv.register_forward_hook(lambda _module, _inputs, qkv: projected.append(qkv))
            hooks.enter_context(hook)
        hidden = model.transformer(token_ids.to(model.device))
    # The lengths differ if a compiled module has skipped its hooks, which it does silently.
    queries_and_keys = [attention.split_qkv(qkv)[:2] for attention, qkv in zip(attentions, projected, strict=True)]
    return torch.stack([causal_attention_logits(*pair).cpu() for pair in queries_and_keys]), hidden
