"""Loss, perplexity and bits per byte over a whole split, every token weighted equally, in validation and evaluation."""

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from gpt.data.windows import Window
from gpt.errors import UserError
from gpt.generation.packed import Model
from gpt.model.inference import inference
from gpt.model.loss import eval_losses
from gpt.model.masks import document_ids, document_positions

_RANGES = 64  # of positions


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicts a text."""

    loss_nats: float  # mean cross-entropy per token
    perplexity: float  # its exponential
    bits_per_byte: float  # summed loss in bits over the text's UTF-8 bytes; comparable across tokenizers
    tokens: int  # number of targets

    def __str__(self) -> str:
        perplexity = f"{self.perplexity:.2f}" if self.perplexity < 1e6 else f"{self.perplexity:.1e}"
        return f"loss {self.loss_nats:.4f} nats, perplexity {perplexity}, {self.bits_per_byte:.4f} bits per byte"

    @staticmethod
    def from_totals(total_nats: float, tokens: int, utf8_bytes: int) -> "Evaluation":
        """Compute the measures from sums over a split."""
        loss = total_nats / tokens
        perplexity = math.exp(loss) if loss < 700 else math.inf
        return Evaluation(loss, perplexity, total_nats / math.log(2) / utf8_bytes, tokens)


class LossTotals:
    """Sums of losses and targets by position, on the device, so that no batch waits.

    ``eot_id`` applies the document mask, under which positions restart in each document.
    """

    def __init__(self, eot_id: int | None = None) -> None:
        self._eot_id = eot_id
        self._totals: list[Tensor] = []

    def add(self, model: Model, batch: Window) -> None:
        """Add the losses of a batch: inputs and targets (B, T), int64, on the model's device."""
        documents = document_ids(batch["inputs"], self._eot_id)
        hidden = model.transformer(batch["inputs"], documents)
        losses = eval_losses(model.logits, model.config.vocab_size, hidden, batch["targets"])  # (B, T)
        both = torch.stack([losses, (batch["targets"] >= 0).float()])  # (2, B, T)
        if documents is None:
            self._totals.append(both.sum(dim=1))
        else:
            positions = document_positions(documents).flatten()
            self._totals.append(both.new_zeros(2, losses.shape[1]).index_add_(1, positions, both.flatten(1)))

    def totals(self) -> Tensor:
        """Total nats and number of targets at each position: (2, T) float64, on the CPU."""
        return torch.stack(self._totals).cpu().double().sum(dim=0)


def loss_by_position(totals: Tensor) -> tuple[list[int], list[float]]:
    """Mean losses of at most 64 ranges of positions, of about equal ratios: their first positions, and the nats.

    Source: Olsson et al. 2022, "in-context learning score", for the loss as a function of the position.
    """
    T = totals.shape[1]
    starts = sorted({round((T + 1) ** (n / _RANGES)) - 1 for n in range(_RANGES)})
    sums = [(start, *totals[:, start:end].sum(dim=1).tolist()) for start, end in pairwise([*starts, T])]
    present = [(start, nats / count) for start, nats, count in sums if count]  # documents may all be shorter
    return [start for start, _ in present], [loss for _, loss in present]


def in_context_learning_score(positions: list[int], losses: list[float]) -> float:
    """Loss late in the context minus loss earlier: at positions 500 and 50, else at the end and half of the context.

    Source: Olsson et al. 2022, "in-context learning score". Below zero, the model predicts better with more context.
    """
    early, late = (50, 500) if positions[-1] >= 500 else (positions[-1] // 2, positions[-1])
    return losses[bisect_right(positions, late) - 1] - losses[bisect_right(positions, early) - 1]


def evaluate(model: Model, batches: Iterable[Window], utf8_bytes: int, eot_id: int | None = None) -> Evaluation:
    """Evaluate a model over batches of inputs and targets (B, T), int64, that make up a split of this many bytes.

    Refuses a model whose loss is not finite.
    """
    totals = LossTotals(eot_id)
    with inference(model):
        for batch in batches:
            inputs, targets = batch["inputs"].to(model.device), batch["targets"].to(model.device)
            totals.add(model, {"inputs": inputs, "targets": targets})
    nats, tokens = totals.totals().sum(dim=1).tolist()
    if not math.isfinite(nats):
        raise UserError(f"the loss is {nats}: the model has diverged in training; use another checkpoint")
    return Evaluation.from_totals(nats, int(tokens), utf8_bytes)
