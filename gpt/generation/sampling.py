"""From logits to a token."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn: the filters in the order given here, each on what the one before has left.

    Args:
        temperature: divides the logits; 0 always takes the likeliest token.
        top_k: draw among the k likeliest only; None or 0 leaves all.
        top_p: draw among the likeliest that together have at least this probability; 1 leaves all, 0 the likeliest.
        min_p: leave out what is less likely than this times the likeliest; 0 leaves all.
        repetition_penalty: makes tokens of the text so far less likely: their logits are divided by it where they
            are positive and multiplied where negative; 1 changes nothing.

    Raises:
        ValueError: a value is out of its range.

    Source: top-k Fan et al. 2018, top-p Holtzman et al. 2020, min-p Nguyen et al. 2024, repetition penalty Keskar
    et al. 2019 (CTRL), section 4.1.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise UserError(f"--temperature is {self.temperature}; it must be 0 (greedy) or a positive number")
        if self.top_k is not None and self.top_k < 0:
            raise UserError(f"--top-k is {self.top_k}; it must be 0 (off) or more")
        for name in ("top_p", "min_p"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise UserError(f"--{name.replace('_', '-')} is {getattr(self, name)}; it must lie between 0 and 1")
        if not 0.01 <= self.repetition_penalty <= 100:
            raise UserError(f"--repetition-penalty is {self.repetition_penalty}; it must lie between 0.01 and 100")

    def draw(self, logits: Tensor, generator: torch.Generator, so_far: Sequence[int] = ()) -> int:
        """Draw one token.

        Args:
            logits: (V,), any float dtype, not changed.
            generator: on the CPU, where the drawing is done, whatever the model's device.
            so_far: ids of the text so far, for the repetition penalty.

        Raises:
            ValueError: the largest logit is not finite, or one is no number: the model has diverged.
        """
        logits = logits.float().cpu()
        if not logits.max().isfinite():  # the largest is no number if any is none; -inf only means never
            raise UserError("the model's logits are not finite: it diverged in training; use an earlier checkpoint")
        if self.repetition_penalty != 1.0 and so_far:
            seen = torch.tensor(sorted(set(so_far)))
            penalised = logits[seen]
            factor = torch.where(penalised > 0, 1 / self.repetition_penalty, self.repetition_penalty)
            logits = logits.index_copy(0, seen, penalised * factor)
        if self.temperature == 0 or self.top_k == 1:
            return int(logits.argmax())
        # Only differences matter; with the largest at 0, a tiny temperature cannot overflow.
        logits = (logits - logits.max()) / max(self.temperature, 1e-30)  # below, it would be 0 in float32
        likeliest = torch.arange(len(logits))
        if self.top_k and self.top_k < len(logits):
            logits, likeliest = logits.topk(self.top_k)  # in falling order
        elif self.top_p < 1.0:
            logits, likeliest = logits.sort(descending=True, stable=True)
        probabilities = logits.softmax(dim=-1)
        if self.top_p < 1.0:
            before = probabilities.cumsum(dim=-1) - probabilities
            # The likeliest stays whatever happens: what is before it is nothing.
            probabilities = probabilities.masked_fill((before >= self.top_p) & (before > 0), 0.0)
        if self.min_p > 0.0:
            probabilities = probabilities.masked_fill(probabilities < self.min_p * probabilities.max(), 0.0)
        return int(likeliest[torch.multinomial(probabilities, num_samples=1, generator=generator)])
