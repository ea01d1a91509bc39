"""Loss, perplexity and bits per byte over a whole split, every token weighted equally, in validation and evaluation."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.data.windows import Window
from gpt.errors import UserError
from gpt.generation.packed import Model
from gpt.model.inference import inference
from gpt.model.loss import eval_loss
from gpt.model.masks import document_ids


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
    """Sums of losses and targets, on the device, so that no batch waits; ``eot_id`` applies the document mask."""

    def __init__(self, eot_id: int | None = None) -> None:
        self._eot_id = eot_id
        self._losses: list[Tensor] = []
        self._counts: list[Tensor] = []

    def add(self, model: Model, batch: Window) -> None:
        """Add the summed loss of a batch: inputs and targets (B, T), int64, on the model's device."""
        hidden = model.transformer(batch["inputs"], document_ids(batch["inputs"], self._eot_id))
        self._losses.append(eval_loss(model.logits, model.config.vocab_size, hidden, batch["targets"]))
        self._counts.append((batch["targets"] >= 0).sum())

    def totals(self) -> Tensor:
        """Total nats and number of targets: (2,) float64, on the CPU."""
        return torch.stack([torch.stack(values).cpu().double().sum() for values in (self._losses, self._counts)])


def evaluate(model: Model, batches: Iterable[Window], utf8_bytes: int, eot_id: int | None = None) -> Evaluation:
    """Evaluate a model over batches of inputs and targets (B, T), int64, that make up a split of this many bytes.

    Refuses a model whose loss is not finite.
    """
    totals = LossTotals(eot_id)
    with inference(model):
        for batch in batches:
            inputs, targets = batch["inputs"].to(model.device), batch["targets"].to(model.device)
            totals.add(model, {"inputs": inputs, "targets": targets})
    nats, tokens = totals.totals().tolist()
    if not math.isfinite(nats):
        raise UserError(f"the loss is {nats}: the model has diverged in training; use another checkpoint")
    return Evaluation.from_totals(nats, int(tokens), utf8_bytes)
