"""What a head does, as a number.

Shape letters: L layers, H heads, T length; A[i, j] is how much query i looks at key j, and token 0 is the end of text
that begins every document. "Even" below is a head that spreads evenly over what it may see: A[i, j] = 1/(i+1).
Each score is a function of maps (..., T, T), T at least 2, whose rows sum to 1, and is (...).
"""

import torch
from torch import Tensor

from gpt.attention_maps.capture import Attention
from gpt.attention_maps.probes import Probe


def entropies(maps: Tensor) -> Tensor:
    """Of each query, in nats: -sum_j A ln A; 0 to ln(i+1). (..., T, T) to (..., T)."""
    return torch.special.entr(maps).sum(dim=-1)


def entropy(entropies: Tensor) -> Tensor:
    """How widely it looks, in nats: mean over i of the entropies (..., T); an even head has mean ln(i+1).

    Source: Zhai et al. 2023, section 3 (its collapse to 0 goes with unstable training).
    """
    return entropies.mean(dim=-1)


def normalised_entropy(entropies: Tensor) -> Tensor:
    """The same in proportion to what is possible: mean over i >= 1 of entropy_i / ln(i+1); an even head has 1."""
    queries = torch.arange(1, entropies.shape[-1])
    return (entropies[..., 1:] / torch.log(queries + 1.0)).mean(dim=-1)


def distance(maps: Tensor) -> Tensor:
    """How far back it looks, in tokens: mean over i >= 1 of sum_j A (i - j); an even head has T/4.

    Source: Vig and Belinkov 2019, section 5.2, there weighted over all of a corpus.
    """
    T = maps.shape[-1]
    back = torch.arange(T)[:, None] - torch.arange(T)
    return (maps * back)[..., 1:, :].sum(dim=-1).mean(dim=-1)


def previous_token(maps: Tensor) -> Tensor:
    """Weight on the token just before: mean over i >= 1 of A[i, i-1]; an even head has mean of 1/(i+1).

    Source: TransformerLens, head detectors.
    """
    return maps.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1)


def sink(maps: Tensor) -> Tensor:
    """Weight on token 0, where a head looks that has nothing to do: mean over i >= 1 of A[i, 0]; even: 1/(i+1).

    Source: Xiao et al. 2023, section 3.1.
    """
    return maps[..., 1:, 0].mean(dim=-1)


def induction(maps: Tensor) -> Tensor:
    """Weight on what followed the same token last time, on the repeated-random probe of T = 2P + 1 tokens.

    Mean over i = P+1 .. 2P of A[i, i-P+1]; an even head has mean of 1/(i+1).

    Source: Olsson et al. 2022, "Prefix matching"; TransformerLens, head detectors.
    """
    P = maps.shape[-1] // 2
    return maps.diagonal(offset=1 - P, dim1=-2, dim2=-1)[..., 2:].mean(dim=-1)


def duplicate_token(maps: Tensor, token_ids: Tensor) -> Tensor:
    """Weight on earlier copies of the token itself: mean, over the i that have one, of sum of A over those copies.

    Args:
        maps: (..., T, T).
        token_ids: (T,), with at least one token twice.

    Source: Wang et al. 2022 (section 3.1); TransformerLens, head detectors.
    """
    copies = (token_ids[:, None] == token_ids).tril(diagonal=-1)  # (T, T)
    assert copies.any()
    return (maps * copies)[..., copies.any(dim=-1), :].sum(dim=-1).mean(dim=-1)


def head_metrics(attention: Attention, probe: Probe) -> dict[str, Tensor]:
    """All metrics that are defined on a probe.

    Args:
        attention: in that probe.
        probe: of T tokens.

    Returns:
        Name to (L, H) float32. ``max_logit`` is the largest attention logit, an early sign of divergence (Kimi K2
        report, section 2.1). ``induction`` and ``duplicate_token`` only on the repeated-random probe: on prose they
        are noise.
    """
    maps = attention.maps
    each = entropies(maps)  # (L, H, T)
    metrics = {
        "previous_token": previous_token(maps),
        "sink": sink(maps),
        "entropy": entropy(each),
        "normalised_entropy": normalised_entropy(each),
        "distance": distance(maps),
        "max_logit": attention.max_logits,
    }
    if probe.repeats:
        metrics["induction"] = induction(maps)
        metrics["duplicate_token"] = duplicate_token(maps, torch.tensor(probe.token_ids))
    return metrics
