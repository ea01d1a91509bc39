"""Next-token loss straight from the hidden states, without ever holding all logits.

The logits of GPT-2 small at batch 4, T 1024 take 0.8 GB in float32, and autograd keeps several copies: they,
not the transformer, decide how much memory a step needs. So the head and its loss are worked out together, a
few rows at a time, and the gradient of each chunk is taken while its logits are still there.

Shape letters: N tokens (batch and time flattened), E d_model, V vocab_size.
"""

from typing import Any

import torch
from torch import Tensor

from gpt.data.windows import IGNORED

# Logits held at once, in numbers: 32 MiB of float32, whatever V and N are.
CHUNK_LOGITS = 2**23


def next_token_loss(hidden: Tensor, head_weight: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of the targets under ``softmax(hidden @ head_weight.T)``, summed.

    A sum, not a mean: whoever adds micro-batches, ranks or windows together divides once, at the end, by the
    number of targets, and so weighs each token the same.

    Args:
        hidden: (..., E), float32 or bfloat16.
        head_weight: (V, E).
        targets: (...), int64; ``IGNORED`` (-100) where there is nothing to predict.

    Returns:
        A float32 scalar, in nats.
    """
    hidden = hidden.reshape(-1, hidden.shape[-1])
    targets = targets.reshape(-1)
    if torch.is_grad_enabled() and (hidden.requires_grad or head_weight.requires_grad):
        total: Tensor = _ChunkedCrossEntropy.apply(hidden, head_weight, targets)  # type: ignore[no-untyped-call]
        return total
    total = hidden.new_zeros((), dtype=torch.float32)
    for rows in _chunks(len(targets), len(head_weight)):
        total += _summed_loss(_log_probabilities(hidden[rows], head_weight), targets[rows])
    return total


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Loss and its gradient in one pass, chunk by chunk; backward only scales what forward stored."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head_weight: Tensor, targets: Tensor) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(head_weight)
        mixed = torch.is_autocast_enabled(hidden.device.type) or hidden.dtype != torch.float32
        for rows in _chunks(len(targets), len(head_weight)):
            log_probabilities = _log_probabilities(hidden[rows], head_weight)  # (n, V)
            total += _summed_loss(log_probabilities, targets[rows])
            # d loss / d logits = softmax(logits) - onehot(target), in place; zero where the target is ignored.
            counts = (targets[rows] != IGNORED)[:, None].to(log_probabilities.dtype)
            grad_logits = log_probabilities.exp_().mul_(counts)
            grad_logits.scatter_add_(1, targets[rows].clamp(min=0)[:, None], -counts)
            grad_hidden[rows] = grad_logits @ head_weight
            if mixed:
                grad_weight += grad_logits.T @ hidden[rows]
            else:  # adds to what is there: no product of the size of the weights in fresh memory
                grad_weight.addmm_(grad_logits.T, hidden[rows])
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor, Tensor, None]:
        grad_hidden, grad_weight = ctx.saved_tensors
        # In place: they are this function's own, and a backward pass runs once.
        return grad_hidden.mul_(grad_total), grad_weight.mul_(grad_total), None


def _chunks(num_rows: int, vocab_size: int) -> list[slice]:
    number = -(-num_rows // max(1, CHUNK_LOGITS // vocab_size))
    size = max(1, -(-num_rows // max(1, number)))  # all alike: few rows take nearly as long as many
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def _log_probabilities(hidden: Tensor, head_weight: Tensor) -> Tensor:
    # (n, V), in float32 whatever the matrix product ran in
    logits = (hidden @ head_weight.T).float()
    if torch.is_grad_enabled():
        return logits.log_softmax(dim=-1)
    return torch.log_softmax(logits, dim=-1, out=logits)  # in place: row by row, each is read before it is written


def _summed_loss(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    of_targets = log_probabilities.gather(1, targets.clamp(min=0)[:, None])[:, 0]  # (n,)
    return -of_targets.masked_fill(targets == IGNORED, 0.0).sum()
