"""From logits to a token."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn.

    Args:
        temperature: divides the logits; 0 always takes the likeliest token.
        top_k: draw among the k likeliest only; None or 0 leaves all.

    Raises:
        ValueError: a value is out of its range.
    """

    temperature: float = 1.0
    top_k: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise ValueError(f"--temperature is {self.temperature}; it must be 0 (greedy) or a positive number")
        if self.top_k is not None and self.top_k < 0:
            raise ValueError(f"--top-k is {self.top_k}; it must be 0 (off) or more")

    def draw(self, logits: Tensor, generator: torch.Generator) -> int:
        """Draw one token.

        Args:
            logits: (V,), any float dtype, not changed.
            generator: on the CPU, where the drawing is done, whatever the model's device.

        Raises:
            ValueError: a logit is not finite: the model has diverged.
        """
        logits = logits.float().cpu()
        if not logits.isfinite().all():
            raise ValueError("the model's logits are not finite: it diverged in training; use an earlier checkpoint")
        if self.temperature == 0:
            return int(logits.argmax())
        # Only differences matter; with the largest at 0, a tiny temperature cannot overflow.
        logits = (logits - logits.max()) / self.temperature
        if self.top_k and self.top_k < len(logits):
            kept = logits.topk(self.top_k).indices
            logits = torch.full_like(logits, -torch.inf).index_copy(0, kept, logits[kept])
        return int(torch.multinomial(logits.softmax(dim=-1), num_samples=1, generator=generator))
