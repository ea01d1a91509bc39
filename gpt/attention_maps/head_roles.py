"""What a head attends to, if that is one kind of token. Shape letters: L layers, H heads, W windows, T length."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gpt.attention_maps.capture import attention_maps
from gpt.attention_maps.head_metrics import induction_score
from gpt.data.manifest import SplitTokens
from gpt.model.transformer import GPT

MIN_SCORE = 0.3  # of attention weight, for a role
_TIMES_UNIFORM = 3.0  # how much larger than that of uniform attention it must be
_UNIFORM_ENTROPY = 0.95  # of the largest entropy
_WINDOWS, _WINDOW_TOKENS = 8, 64

Role = tuple[str, float] | None


def head_roles(model: GPT, windows: Tensor, random_ids: Sequence[int] | None) -> list[list[Role]]:
    """Name the role of each head and its score, L lists of H; None without a clear one.

    The role is the kind of key with the largest mean attention weight, over all queries but the first of each window:
    ``3 tokens back``, ``itself``, ``same token`` (earlier copies of the query's token), ``first token`` or
    ``induction``; a head that attends to all tokens alike is ``uniform``.

    Args:
        windows: (W, T) int64, T at least 3, such as windows of the validation split.
        random_ids: the repeated random sequence, on which induction is measured; None leaves that role out.
    """
    maps = attention_maps(model, windows)  # (L, W, H, T, T)
    T = windows.shape[1]
    counts = torch.arange(1.0, T + 1)
    uniform = (torch.ones(T, T).tril() / counts[:, None]).expand(1, len(windows), 1, T, T)
    scores = _scores(maps, windows)
    least = {name: _TIMES_UNIFORM * float(score) for name, score in _scores(uniform, windows).items()}
    if random_ids is not None:
        scores["induction"] = induction_score(attention_maps(model, torch.tensor([random_ids]))[:, 0])
    entropies = torch.special.entr(maps).sum(dim=-1)[..., 1:] / counts[1:].log()  # of the largest: (L, W, H, T - 1)
    uniformity = entropies.mean(dim=(1, 3))  # (L, H)

    def role(layer: int, head: int) -> Role:
        values = {name: float(score[layer, head]) for name, score in scores.items()}
        clear = {name: value for name, value in values.items() if value >= max(MIN_SCORE, least.get(name, 0.0))}
        if clear:
            best = max(clear, key=clear.__getitem__)
            return best, clear[best]
        return ("uniform", float(uniformity[layer, head])) if uniformity[layer, head] >= _UNIFORM_ENTROPY else None

    num_layers, _, num_heads = maps.shape[:3]
    return [[role(layer, head) for head in range(num_heads)] for layer in range(num_layers)]


def validation_windows(tokens: SplitTokens, context_length: int) -> Tensor:
    """Windows of a split, evenly spaced: (W, T) int64, at most 8 of 64 tokens."""
    T = min(_WINDOW_TOKENS, context_length, len(tokens))
    starts = np.linspace(0, len(tokens) - T, _WINDOWS).astype(int).tolist()
    return torch.stack([torch.from_numpy(tokens.read(start, start + T)) for start in sorted({*starts})])


def _scores(maps: Tensor, windows: Tensor) -> dict[str, Tensor]:
    """Mean weight by kind of key: (L, W, H, T, T) maps to name and (L, H)."""
    queries = maps[..., 1:, :]  # the first query sees itself alone
    T = windows.shape[1]
    is_same = (windows[:, :, None] == windows[:, None, :]).tril(diagonal=-1)[:, None, 1:]  # (W, 1, T - 1, T)
    has_copy = is_same.any(dim=-1)  # (W, 1, T - 1)
    same = (queries * is_same).sum(dim=-1)  # (L, W, H, T - 1)
    scores = {
        "itself": queries.diagonal(offset=1, dim1=-2, dim2=-1).mean(dim=(1, 3)),
        "first token": queries[..., 0].mean(dim=(1, 3)),
        "same token": (same * has_copy).sum(dim=(1, 3)) / has_copy.sum().clamp(min=1),
    }
    for k in range(1, T // 2):
        name = "previous token" if k == 1 else f"{k} tokens back"
        scores[name] = maps.diagonal(offset=-k, dim1=-2, dim2=-1).mean(dim=(1, 3))
    return scores
