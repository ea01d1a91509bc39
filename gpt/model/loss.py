"""Next-token cross-entropy from hidden states, in chunks, so that the logits of a batch are never all in memory.

The logits of GPT-2 small at batch 4, T 1024 take 0.8 GB in float32, and autograd saves several copies. So LM head, loss
and gradient are computed together for a chunk of tokens; the backward pass only scales the gradient, since the loss is
a scalar. CUDA takes large chunks of one size, and pads the LM head to a multiple of 64 ids; others work in place.

Shape letters: N tokens (batch and time flattened), n tokens of a chunk, E d_model, V vocab_size.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Most logits held at once: 32 MiB of float32; on CUDA 256 MiB of bfloat16, and a quarter of that if training is not
# compiled, since there are then several copies in float32.
CHUNK_LOGITS = 2**23
CUDA_CHUNK_LOGITS = 2**27
_PAD_MULTIPLE = 64  # tensor cores are fastest on multiples of 128 bytes, here of bfloat16


def next_token_loss(hidden: Tensor, lm_head_weight: Tensor, targets: Tensor, compiled: bool = False) -> Tensor:
    """Summed cross-entropy of the targets under ``softmax(hidden @ lm_head_weight.T)``.

    A sum, not a mean: callers sum over micro-batches and processes, and normalise once by the number of targets.

    Args:
        hidden: (..., E), float32, or bfloat16 under autocast or on CUDA.
        lm_head_weight: (V, E).
        targets: (...), int64, below V (not checked); negative targets are ignored.
        compiled: whether a GPU uses torch.compile.

    Returns:
        A float32 scalar, in nats.
    """
    if not (torch.is_grad_enabled() and (hidden.requires_grad or lm_head_weight.requires_grad)):
        return eval_losses(lambda chunk: chunk @ lm_head_weight.T, len(lm_head_weight), hidden, targets).sum()
    hidden, targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    chunked = _cuda_chunks if hidden.device.type == "cuda" else _in_place_chunks
    chunk_loss, chunks = chunked(hidden, lm_head_weight, len(targets), compiled)
    return _ChunkedCrossEntropy.apply(hidden, lm_head_weight, targets, chunk_loss, chunks)  # type: ignore[no-untyped-call]


@torch.no_grad()
def eval_losses(lm_head: Callable[[Tensor], Tensor], vocab_size: int, hidden: Tensor, targets: Tensor) -> Tensor:
    """The loss of each target, without gradients, for any LM head: (...) float32, 0 for ignored targets.

    ``lm_head`` is a function from (n, E) to new logits, which are overwritten.
    """
    flat_hidden, flat_targets = hidden.reshape(-1, hidden.shape[-1]), targets.reshape(-1)
    chunks = _equal_chunks(len(flat_targets), max_chunk_logits(hidden.device) // vocab_size)
    losses = [_losses_and_log_probs(lm_head(flat_hidden[chunk]), flat_targets[chunk])[0] for chunk in chunks]
    return torch.cat(losses).view(targets.shape)


def max_chunk_logits(device: torch.device) -> int:
    """Most logits held at once on a device."""
    return CUDA_CHUNK_LOGITS if device.type == "cuda" else CHUNK_LOGITS


# From hidden states (n, E) and targets (n,) to the summed loss; writes the gradient of the hidden states, (n, E), and
# adds to that of the LM head, (V, E).
_ChunkLoss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class _ChunkedCrossEntropy(torch.autograd.Function):
    """Computes loss and gradients in the forward pass, chunk by chunk; the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk_loss: _ChunkLoss, chunks: list[slice]
    ) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        for chunk in chunks:
            total += chunk_loss(hidden[chunk], targets[chunk], grad_hidden[chunk], grad_weight)
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total

    @staticmethod
    def backward(ctx: Any, grad_total: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors
        # In place: nothing else holds them, and a backward pass runs once.
        return grad_hidden.mul_(grad_total), grad_weight.mul_(grad_total), None, None, None


def _in_place_chunks(hidden: Tensor, weight: Tensor, N: int, compiled: bool) -> tuple[_ChunkLoss, list[slice]]:
    is_mixed = torch.is_autocast_enabled(hidden.device.type) or hidden.dtype != torch.float32

    def chunk_loss(hidden: Tensor, targets: Tensor, grad_hidden: Tensor, grad_weight: Tensor) -> Tensor:
        losses, log_probs = _losses_and_log_probs(hidden @ weight.T, targets)
        # d loss / d logits = softmax(logits) - onehot(target), in place; zero where the target is ignored.
        is_counted = (targets >= 0)[:, None].to(log_probs.dtype)
        grad_logits = log_probs.exp_().mul_(is_counted).scatter_add_(1, targets.clamp(min=0)[:, None], -is_counted)
        grad_hidden.copy_(grad_logits @ weight)
        if is_mixed:
            grad_weight += grad_logits.T @ hidden
        else:  # accumulates in place: a product of the size of the weight would need fresh memory
            grad_weight.addmm_(grad_logits.T, hidden)
        return losses.sum()

    return chunk_loss, _equal_chunks(N, CHUNK_LOGITS // len(weight))


def _cuda_chunks(hidden: Tensor, weight: Tensor, N: int, compiled: bool) -> tuple[_ChunkLoss, list[slice]]:
    device_type, V = hidden.device.type, len(weight)
    dtype = torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else hidden.dtype
    padded = F.pad(weight.to(dtype), (0, 0, 0, -V % _PAD_MULTIPLE))
    loss_and_gradients = _compiled_loss_and_gradients() if compiled else _loss_and_gradients

    def chunk_loss(hidden: Tensor, targets: Tensor, grad_hidden: Tensor, grad_weight: Tensor) -> Tensor:
        with torch.autocast(device_type, enabled=False):
            loss, grad_chunk, grad_padded = loss_and_gradients(hidden.to(dtype), padded, targets, V)
            grad_hidden.copy_(grad_chunk)
            grad_weight += grad_padded[:V]
        return loss

    # A power of two for alignment; all chunks but the last have one size, so that one shape is compiled.
    n = 2 ** int(math.log2(max(1, CUDA_CHUNK_LOGITS // len(padded) // (1 if compiled else 4))))
    return chunk_loss, [slice(start, start + n) for start in range(0, N, n)]


def _loss_and_gradients(hidden: Tensor, padded: Tensor, targets: Tensor, V: int) -> tuple[Tensor, Tensor, Tensor]:
    """A chunk's summed loss in float32, and its gradients with respect to hidden, (n, E), and the padded LM head."""
    logits = (hidden @ padded.T).float()
    columns = torch.arange(len(padded), device=hidden.device)
    log_probs = logits.masked_fill(columns >= V, -torch.inf).log_softmax(dim=-1)
    is_target, is_counted = columns == targets[:, None], (targets >= 0)[:, None]
    loss = -torch.where(is_target, log_probs, 0.0).sum()  # an ignored target equals no column
    grad_logits = ((log_probs.exp() - is_target.float()) * is_counted).to(hidden.dtype)
    return loss, grad_logits @ padded, grad_logits.T @ hidden


@cache
def _compiled_loss_and_gradients() -> Any:
    return torch.compile(_loss_and_gradients, dynamic=False)


def _equal_chunks(N: int, largest: int) -> list[slice]:
    """Slices of about equal size: each reads the whole LM head, so a small one takes nearly as long."""
    count = max(1, math.ceil(N / max(1, largest)))
    size = max(1, math.ceil(N / count))
    return [slice(start, start + size) for start in range(0, N, size)]


def _losses_and_log_probs(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Losses of a chunk, (n,), and its log-probabilities, (n, V) float32, which overwrite float32 logits."""
    logits = logits.float()  # whatever dtype the matrix product ran in
    log_probs = torch.log_softmax(logits, dim=-1, out=logits)  # in place: each row is read before it is written
    target_log_probs = log_probs.gather(1, targets.clamp(min=0)[:, None])[:, 0]  # (n,)
    return -target_log_probs.masked_fill(targets < 0, 0.0), log_probs
