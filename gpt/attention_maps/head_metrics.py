"""Scores of attention heads. Shape letters: L layers, H heads, T length."""

import torch
from torch import Tensor

from gpt.attention_maps.capture import Capture


def head_metrics(capture: Capture) -> dict[str, Tensor]:
    """Compute every score that is defined on a probe of at least two tokens: name to (L, H) float32.

    Notation: A[i, j] is the attention weight of query i on key j, and token 0 is the end-of-text that begins every
    document. "Uniform" is the value of a head with A[i, j] = 1/(i+1), u is the mean of 1/(i+1) over the same queries.
    """
    A = capture.maps  # (L, H, T, T)
    positions = torch.arange(A.shape[-1])
    distances = positions[:, None] - positions  # (T, T)
    entropies = torch.special.entr(A).sum(dim=-1)  # (L, H, T) in nats: -sum_j A ln A, from 0 to ln(i+1)
    metrics = {
        # Weight on the previous token: mean over i >= 1 of A[i, i-1]. Uniform: u.
        # Source: TransformerLens, head detectors.
        "previous_token": A.diagonal(offset=-1, dim1=-2, dim2=-1).mean(dim=-1),
        # Weight on the attention sink: mean over i >= 1 of A[i, 0]. Uniform: u.
        # Source: Xiao et al. 2023, section 3.1.
        "sink": A[..., 1:, 0].mean(dim=-1),
        # Attention entropy in nats: mean over i. Uniform: mean of ln(i+1).
        # Source: Zhai et al. 2023, section 3: it collapses to 0 when training is unstable.
        "entropy": entropies.mean(dim=-1),
        # Mean over i >= 1 of entropy_i / ln(i+1). Uniform: 1.
        "normalised_entropy": (entropies[..., 1:] / torch.log(positions[1:] + 1.0)).mean(dim=-1),
        # Attention distance in tokens: mean over i >= 1 of sum_j A[i, j] (i - j). Uniform: T/4.
        # Source: Vig and Belinkov 2019, section 5.2, there weighted over a whole corpus.
        "distance": (A * distances)[..., 1:, :].sum(dim=-1).mean(dim=-1),
        # Largest attention logit, whose growth is an early sign of divergence.
        # Source: Kimi K2 report, section 2.1.
        "max_logit": capture.max_logits,
    }
    if capture.probe.is_repeated_random:  # T = 2P + 1 tokens; on prose these scores are noise
        metrics["induction"] = induction_score(A)
        # Weight on earlier copies of the query's token, summed over the copies: mean over the i that have one.
        # Uniform: u. Source: Wang et al. 2022, section 3.1; TransformerLens, head detectors.
        token_ids = torch.tensor(capture.probe.token_ids)
        copies = (token_ids[:, None] == token_ids).tril(diagonal=-1)  # (T, T)
        metrics["duplicate_token"] = (A * copies)[..., copies.any(dim=-1), :].sum(dim=-1).mean(dim=-1)
    return metrics


def induction_score(maps: Tensor) -> Tensor:
    """Prefix matching on a repeated random sequence of 2P + 1 tokens: (..., T, T) to (...).

    The weight on the token after the earlier copy of the query's token: mean over i = P+1 .. 2P of A[i, i-P+1].
    Uniform: u. Source: Olsson et al. 2022, "Prefix matching"; TransformerLens, head detectors.
    """
    P = maps.shape[-1] // 2
    return maps.diagonal(offset=1 - P, dim1=-2, dim2=-1)[..., 2:].mean(dim=-1)
