"""Loss, perplexity and bits per byte over a whole split, each token weighing the same.

Validation during training and ``scripts/evaluate.py`` add up with the same class, so their figures agree (to a few
parts in a thousand where training validates in bf16, since evaluation computes in float32).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpt.data.windows import Window
from gpt.model.document_mask import document_ids
from gpt.model.inference import inference
from gpt.model.loss import loss_without_gradients
from gpt.model.transformer import GPT


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicts a text.

    Args:
        loss_nats: mean cross-entropy per token.
        perplexity: its exponential.
        bits_per_byte: the whole split's loss in bits over its size in UTF-8 bytes; comparable across tokenizers.
        tokens: number of targets.
    """

    loss_nats: float
    perplexity: float
    bits_per_byte: float
    tokens: int

    @staticmethod
    def from_totals(total_nats: float, tokens: int, utf8_bytes: int) -> "Evaluation":
        """Put the sums over a split into the usual measures."""
        loss = total_nats / tokens
        perplexity = math.exp(loss) if loss < 700 else math.inf
        return Evaluation(loss, perplexity, total_nats / math.log(2) / utf8_bytes, tokens)


class LossTotals:
    """Adds up losses and target counts over batches; stays on the device until asked, so nothing waits for it.

    Args:
        document_eot: id of the end of text, for a model that was trained to keep documents apart; else None.
    """

    def __init__(self, document_eot: int | None = None) -> None:
        self._document_eot = document_eot
        self._losses: list[Tensor] = []
        self._counts: list[Tensor] = []

    def add(self, model: GPT, batch: Window) -> None:
        """Add the summed loss of a batch: inputs and targets (B, T), int64, on the model's device."""
        hidden = model.transformer(batch["inputs"], document_ids(batch["inputs"], self._document_eot))
        self._losses.append(loss_without_gradients(model.logits, model.config.vocab_size, hidden, batch["targets"]))
        self._counts.append((batch["targets"] >= 0).sum())

    def totals(self) -> Tensor:
        """Total nats and number of targets: (2,) float64, on the CPU."""
        return torch.stack([torch.stack(values).cpu().double().sum() for values in (self._losses, self._counts)])


def evaluate(model: GPT, batches: Iterable[Window], utf8_bytes: int, document_eot: int | None = None) -> Evaluation:
    """Evaluate a model over batches that make up a split.

    The model is in eval mode meanwhile and back in its own mode afterwards; no random number is drawn.

    Args:
        batches: inputs and targets (B, T), int64.
        utf8_bytes: size of the split's text.
        document_eot: as ``LossTotals`` takes it.
    """
    device = next(model.parameters()).device
    totals = LossTotals(document_eot)
    with inference(model):
        for batch in batches:
            totals.add(model, {"inputs": batch["inputs"].to(device), "targets": batch["targets"].to(device)})
    nats, tokens = totals.totals().tolist()
    return Evaluation.from_totals(nats, int(tokens), utf8_bytes)
