"""Next-token loss straight from the hidden states, without ever holding all logits.

The logits of GPT-2 small at batch 4, T 1024 take 0.8 GB in float32, and autograd keeps several copies: they,
not the transformer, decide how much memory a step needs. So the head and its loss are worked out together, a
few rows at a time, and the gradient of each chunk is taken while its logits are still there.

A CPU works in place, on chunks that its caches hold. A GPU that trains wants large chunks of one size, a vocabulary
that is a multiple of 64 (so there, and only there, the head is padded), and a compiler that fuses what lies between the
matrix products.

Shape letters: N tokens (batch and time flattened), n those of a chunk, E d_model, V vocab_size.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Logits held at once, in numbers, whatever V and N are: 32 MiB of float32 on a CPU. On CUDA 256 MiB of bfloat16, if a
# compiler fuses what would be several copies in float32; a quarter as many, if not.
CHUNK_LOGITS = 2**23
CUDA_CHUNK_LOGITS = 2**27

_GPU_MULTIPLE = 64  # tensor cores like rows of whole 128 bytes


def next_token_loss(hidden: Tensor, head_weight: Tensor, targets: Tensor, compiled: bool = False) -> Tensor:
    """Cross-entropy of the targets under ``softmax(hidden @ head_weight.T)``, summed.

    A sum, not a mean: whoever adds micro-batches, ranks or windows together divides once, at the end, by the
    number of targets, and so weighs each token the same.

    Args:
        hidden: (..., E), float32 or bfloat16.
        head_weight: (V, E).
        targets: (...), int64, below V (not checked); negative where there is nothing to predict.
        compiled: whether a GPU may use torch's compiler; the numbers are the same but for rounding.

    Returns:
        A float32 scalar, in nats.
    """
    hidden = hidden.reshape(-1, hidden.shape[-1])
    targets = targets.reshape(-1)
    if torch.is_grad_enabled() and (hidden.requires_grad or head_weight.requires_grad):
        if hidden.device.type == "cuda":
            return _PaddedCrossEntropy.apply(hidden, head_weight, targets, compiled)  # type: ignore[no-untyped-call]
        return _ChunkedCrossEntropy.apply(hidden, head_weight, targets)  # type: ignore[no-untyped-call]
    return loss_without_gradients(lambda chunk: chunk @ head_weight.T, len(head_weight), hidden, targets)


@torch.no_grad()
def loss_without_gradients(
    head: Callable[[Tensor], Tensor], vocab_size: int, hidden: Tensor, targets: Tensor
) -> Tensor:
    """The same loss under any head, from (n, E) to new logits (n, V)."""
    hidden, targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)  # (N, E) and (N,)
    total = hidden.new_zeros((), dtype=torch.float32)
    for rows in _chunks(len(targets), vocab_size, chunk_logits(hidden.device)):
        total += _summed_loss(_log_softmax(head(hidden[rows])), targets[rows])
    return total


def chunk_logits(device: torch.device) -> int:
    """How many logits are held at once on a device, at most."""
    return CUDA_CHUNK_LOGITS if device.type == "cuda" else CHUNK_LOGITS


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Loss and its gradient in one pass, chunk by chunk; backward only scales what forward stored."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head_weight: Tensor, targets: Tensor) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(head_weight)
        mixed = torch.is_autocast_enabled(hidden.device.type) or hidden.dtype != torch.float32
        for rows in _chunks(len(targets), len(head_weight), CHUNK_LOGITS):
            log_probabilities = _log_softmax(hidden[rows] @ head_weight.T)  # (n, V)
            total += _summed_loss(log_probabilities, targets[rows])
            # d loss / d logits = softmax(logits) - onehot(target), in place; zero where the target is ignored.
            counts = (targets[rows] >= 0)[:, None].to(log_probabilities.dtype)
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
        return *_scaled(ctx.saved_tensors, grad_total), None


class _PaddedCrossEntropy(torch.autograd.Function):
    """The same for a GPU."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head_weight: Tensor, targets: Tensor, compiled: bool) -> Tensor:
        kind = hidden.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else hidden.dtype
        V = len(head_weight)
        padded = F.pad(head_weight.to(dtype), (0, 0, 0, -V % _GPU_MULTIPLE))  # (V and a few, E)
        of_chunk = _compiled_loss_and_gradients() if compiled else _loss_and_gradients
        total = hidden.new_zeros((), dtype=torch.float32)
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(head_weight)
        # A power of two: aligned, and the same for nearly all chunks, so that there is one thing to compile.
        size = 2 ** int(math.log2(max(1, CUDA_CHUNK_LOGITS // len(padded) // (1 if compiled else 4))))
        with torch.autocast(kind, enabled=False):
            for start in range(0, len(targets), size):
                rows = slice(start, start + size)
                loss, grad_rows, grad_padded = of_chunk(hidden[rows].to(dtype), padded, targets[rows], V)
                total += loss
                grad_hidden[rows] = grad_rows
                grad_weight += grad_padded[:V]
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor, Tensor, None, None]:
        return *_scaled(ctx.saved_tensors, grad_total), None, None


def _scaled(gradients: tuple[Tensor, Tensor], grad_total: Tensor) -> tuple[Tensor, Tensor]:
    grad_hidden, grad_weight = gradients
    # In place: they are the function's own, and a backward pass runs once.
    return grad_hidden.mul_(grad_total), grad_weight.mul_(grad_total)


def _loss_and_gradients(
    hidden: Tensor, padded: Tensor, targets: Tensor, vocab_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """A chunk's summed loss in float32, and its gradients to hidden, (n, E), and padded, (V and a few, E)."""
    logits = (hidden @ padded.T).float()
    columns = torch.arange(len(padded), device=hidden.device)
    log_probabilities = logits.masked_fill(columns >= vocab_size, -torch.inf).log_softmax(dim=-1)
    hit, counts = columns == targets[:, None], (targets >= 0)[:, None]
    loss = -torch.where(hit, log_probabilities, 0.0).sum()  # an ignored target hits nothing
    grad_logits = ((log_probabilities.exp() - hit.float()) * counts).to(hidden.dtype)
    return loss, grad_logits @ padded, grad_logits.T @ hidden


@cache
def _compiled_loss_and_gradients() -> Any:
    return torch.compile(_loss_and_gradients, dynamic=False)


def _chunks(num_rows: int, vocab_size: int, most_logits: int) -> list[slice]:
    number = -(-num_rows // max(1, most_logits // vocab_size))
    size = max(1, -(-num_rows // max(1, number)))  # all alike: few rows take nearly as long as many
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]


def _log_softmax(logits: Tensor) -> Tensor:
    # In float32 whatever the matrix product ran in; in place: row by row, each is read before it is written.
    logits = logits.float()
    return torch.log_softmax(logits, dim=-1, out=logits)


def _summed_loss(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    of_targets = log_probabilities.gather(1, targets.clamp(min=0)[:, None])[:, 0]  # (n,)
    return -of_targets.masked_fill(targets < 0, 0.0).sum()
