"""From a split's tokens to batches: windows that cover each token once, in an order that is a pure function.

Which windows are in the n-th batch follows from (seed, n) alone, so continuing a run means counting on from a number,
whatever the number of loader workers or of processes.

Shape letters: B micro-batch, T context_length.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from gpt.data.manifest import SplitTokens
from gpt.errors import UserError

IGNORED = -100  # a target with this id counts for nothing (PyTorch's own convention)

# Lightning skips a batch when it resumes a loader without a length, so give one that is never reached.
_ENDLESS = 2**48


class Window(TypedDict):
    """Inputs and, one step ahead, targets: (T,) each, int64; (B, T) once collated."""

    inputs: Tensor
    targets: Tensor


class TrainingBatch(TypedDict):
    """One micro-batch (B, T), its number in the run, and the targets in the global batch that it is part of."""

    inputs: Tensor
    targets: Tensor
    number: int
    global_targets: int


class TokenWindows(Dataset[Window]):
    """A split cut into windows of T tokens, such that each token but the first is a target exactly once.

    The last window may be shorter: it is padded at its end, with targets that count for nothing.

    Args:
        context_length: T.
        overlap: how many tokens of the window before each one repeats, as context alone: they are no targets again.

    Raises:
        ValueError: the split is shorter than one whole window, or the overlap leaves nothing new.
    """

    def __init__(self, tokens: SplitTokens, context_length: int, overlap: int = 0) -> None:
        if len(tokens) < context_length + 1:
            raise UserError(
                f"one window needs {context_length + 1} tokens and split {tokens.name!r} has {len(tokens)}; "
                "prepare more text (or another --val-fraction), or lower model.context_length"
            )
        if overlap < 0:
            raise UserError(f"an overlap of {overlap} tokens is none; it must be at least 0")
        if overlap >= context_length:
            raise UserError(
                f"an overlap of {overlap} tokens leaves nothing new of {context_length}; choose a smaller one"
            )
        self.tokens = tokens
        self.context_length = context_length
        self.stride = context_length - overlap

    def __len__(self) -> int:
        return 1 + -(-(len(self.tokens) - 1 - self.context_length) // self.stride)

    def num_targets(self, index: int) -> int:
        """How many targets of the window count: what is new in it, fewer in the last one."""
        if index == 0:
            return self.context_length
        return min(self.stride, len(self.tokens) - 1 - self.context_length - (index - 1) * self.stride)

    def __getitem__(self, index: int) -> Window:
        if not 0 <= index < len(self):
            raise IndexError(index)
        T, start = self.context_length, index * self.stride
        n = min(T, len(self.tokens) - 1 - start)  # inputs, of which the last num_targets are new
        tokens = torch.from_numpy(self.tokens.read(start, start + n + 1))
        if n == T == self.num_targets(index):
            return {"inputs": tokens[:-1], "targets": tokens[1:]}
        inputs, targets = torch.zeros(T, dtype=torch.int64), torch.full((T,), IGNORED)
        inputs[:n], targets[:n] = tokens[:-1], tokens[1:]
        targets[: n - self.num_targets(index)] = IGNORED
        return {"inputs": inputs, "targets": targets}


class TrainingBatches(Dataset[TrainingBatch]):
    """The endless sequence of micro-batches of a run, as a map from their number.

    Epoch after epoch, each in an order of its own, the windows form one long line; global batch g is its g-th
    stretch of ``global_batch_size``, cut into micro-batches, dealt to the ranks in turn. So the processes of a
    run see disjoint windows, and together just those that one process would see.

    Args:
        windows: what to draw from.
        seed: of the order.
        global_batch_size: windows per optimizer step, over all ranks.
        micro_batch_size: B, windows per forward pass on one rank.
        rank: of this process.
        world_size: number of processes; ``global_batch_size`` must be a multiple of B times it.
    """

    def __init__(
        self,
        windows: TokenWindows,
        seed: int,
        global_batch_size: int,
        micro_batch_size: int,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        assert global_batch_size % (micro_batch_size * world_size) == 0
        self.windows = windows
        self.seed = seed
        self.global_batch_size = global_batch_size
        self.micro_batch_size = micro_batch_size
        self.rank = rank
        self.world_size = world_size
        self.accumulation = global_batch_size // (micro_batch_size * world_size)

        self._step, self._windows_of_step = -1, np.empty(0, dtype=np.int64)

    def window_indices(self, step: int) -> NDArray[np.int64]:
        """The windows of a global batch: (global_batch_size,)."""
        if step != self._step:  # a step's micro-batches share them: kept, for speed alone
            self._step, self._windows_of_step = step, self._permuted(step)
        return self._windows_of_step

    def _permuted(self, step: int) -> NDArray[np.int64]:
        slot, end, parts = step * self.global_batch_size, (step + 1) * self.global_batch_size, []
        while slot < end:  # a batch may straddle epochs
            epoch, position = divmod(slot, len(self.windows))
            stop = min(position + end - slot, len(self.windows))
            parts.append(epoch_permutation(np.arange(position, stop), len(self.windows), self.seed, epoch))
            slot += stop - position
        return np.concatenate(parts)

    def __getitem__(self, number: int) -> TrainingBatch:
        step, micro = divmod(number, self.accumulation)
        batch = self.window_indices(step)
        start = (micro * self.world_size + self.rank) * self.micro_batch_size
        windows = [self.windows[index] for index in batch[start : start + self.micro_batch_size].tolist()]
        last = len(self.windows) - 1  # the only window that may have fewer targets than T
        missing = self.windows.context_length - self.windows.num_targets(last)
        return {
            "inputs": torch.stack([window["inputs"] for window in windows]),
            "targets": torch.stack([window["targets"] for window in windows]),
            "number": number,
            "global_targets": len(batch) * self.windows.context_length - int((batch == last).sum()) * missing,
        }


class TrainingLoader(DataLoader[TrainingBatch]):
    """Reads micro-batches ahead in worker processes, from a number on.

    A tensor that leaves a worker takes a file descriptor and a mapping with it, milliseconds for each; an array is
    some bytes in a pipe. So batches travel as arrays: three times as many of them in a second.

    Args:
        start: number of micro-batches that were consumed before.
        num_workers: processes; 0 reads in this one.
        worker_init_fn: called in each of them first, with its number.
    """

    def __init__(
        self,
        batches: TrainingBatches,
        start: int = 0,
        num_workers: int = 0,
        worker_init_fn: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(
            batches,
            batch_size=None,  # an item is a whole micro-batch already
            sampler=range(start, start + _ENDLESS),
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            worker_init_fn=worker_init_fn,
            collate_fn=_as_arrays,  # type: ignore[arg-type]
        )

    def __iter__(self) -> Iterator[TrainingBatch]:  # type: ignore[override]
        for batch in super().__iter__():
            batch["inputs"], batch["targets"] = torch.as_tensor(batch["inputs"]), torch.as_tensor(batch["targets"])
            yield batch


def _as_arrays(batch: TrainingBatch) -> dict[str, Any]:
    return {**batch, "inputs": batch["inputs"].numpy(), "targets": batch["targets"].numpy()}


def epoch_permutation(positions: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Where a random order of ``range(size)`` puts the given positions, without holding that order.

    A Feistel network permutes the smallest square power of two that holds ``size``; results beyond ``size``
    are permuted again until they fall inside ("cycle walking"), which keeps it a permutation.

    Args:
        positions: (n,) in ``range(size)``.
        size: length of the order.
        epoch: each has an order of its own.

    Returns:
        (n,) int64, all different for different positions.

    Source: Luby & Rackoff 1988; Black & Rogaway 2002, "Ciphers with arbitrary finite domains", section 4.
    """
    half_bits = max(1, -(-(size - 1).bit_length() // 2))
    keys = np.random.SeedSequence([seed, epoch]).generate_state(_FEISTEL_ROUNDS, np.uint64).astype(np.uint64)
    values = positions.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        values[outside] = _feistel(values[outside], half_bits, keys)
        outside = values >= size
    return values.astype(np.int64)


_FEISTEL_ROUNDS = 6


def _feistel(values: NDArray[np.uint64], half_bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << shift) | right


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: every input bit reaches every output bit (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
