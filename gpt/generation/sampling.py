"""From logits to a token, and stop strings in the text."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How to sample the next token; the filters apply in this order, each to what the one before has kept.

    Args:
        temperature: divides the logits; 0 is greedy.
        top_k: keep the k likeliest tokens; None or 0 keeps all.
        top_p: keep the likeliest tokens that together have at least this probability; 1 keeps all.
        min_p: drop tokens less likely than this fraction of the likeliest; 0 keeps all.
        repetition_penalty: divides positive and multiplies negative logits of tokens already in the text.

    Source: top-k Fan et al. 2018, top-p Holtzman et al. 2020, min-p Nguyen et al. 2024, repetition penalty Keskar
    et al. 2019 (CTRL), section 4.1.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        ranges = {"temperature": (0, 1e30), "top_p": (0, 1), "min_p": (0, 1), "repetition_penalty": (0.01, 100)}
        for name, (low, high) in ranges.items():
            if not low <= getattr(self, name) <= high:
                raise UserError(f"{name} is {getattr(self, name)}; it must lie between {low} and {high}")
        if self.top_k is not None and self.top_k < 0:
            raise UserError(f"top_k is {self.top_k}; it must be 0 (off) or more")

    def sample(self, logits: Tensor, generator: torch.Generator, history: Sequence[int] = ()) -> int:
        """Sample one token.

        Args:
            logits: (V,), any float dtype and device; not changed.
            generator: on the CPU, where sampling runs, so that a seed gives the same text on every device.
            history: token ids for the repetition penalty.
        """
        logits = logits.float().cpu()
        if not logits.max().isfinite():  # the maximum is NaN if any logit is; a logit of -inf is allowed
            raise UserError("the model's logits are not finite: it diverged in training; use an earlier checkpoint")
        if self.repetition_penalty != 1.0 and history:
            seen = torch.tensor(sorted(set(history)))
            penalised = logits[seen]
            factor = torch.where(penalised > 0, 1 / self.repetition_penalty, self.repetition_penalty)
            logits = logits.index_copy(0, seen, penalised * factor)
        if self.temperature == 0 or self.top_k == 1:
            return int(logits.argmax())
        # With the largest logit at 0, a tiny temperature cannot overflow; below 1e-30 it would be 0 in float32.
        logits = (logits - logits.max()) / max(self.temperature, 1e-30)
        token_ids = torch.arange(len(logits))
        if self.top_k and self.top_k < len(logits):
            logits, token_ids = logits.topk(self.top_k)  # in decreasing order
        elif self.top_p < 1.0:
            logits, token_ids = logits.sort(descending=True, stable=True)
        probs = logits.softmax(dim=-1)
        if self.top_p < 1.0:
            cumulative = probs.cumsum(dim=-1) - probs
            probs = probs.masked_fill((cumulative >= self.top_p) & (cumulative > 0), 0.0)  # keeps the first token
        if self.min_p > 0.0:
            probs = probs.masked_fill(probs < self.min_p * probs.max(), 0.0)
        return int(token_ids[torch.multinomial(probs, num_samples=1, generator=generator)])


class StopFinder:
    """Passes text on as soon as it cannot be part of a stop string.

    Finds a stop string wherever it begins, also across pieces and inside a partial match of another.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if "" in stops:
            raise UserError("a stop string is empty; leave it out")
        self._stops = stops
        self._held = ""
        self.found = False

    def push(self, text: str) -> str:
        """Add text and return what is final; once a stop string is ``found``, the text before it, then nothing."""
        self._held += text
        ends = [end for stop in self._stops if (end := self._held.find(stop)) >= 0]
        self.found = bool(ends)
        if not self.found:  # a suffix that begins a stop string is not final
            suffixes = range(len(self._held))
            ends = [end for end in suffixes if any(stop.startswith(self._held[end:]) for stop in self._stops)]
        end = min(ends, default=len(self._held))
        final, self._held = self._held[:end], self._held[end:]
        return final

    def finish(self) -> str:
        """Return the held text at the end of the stream; nothing if a stop string is found."""
        return "" if self.found else self._held
