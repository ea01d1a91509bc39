"""Batches from a split's tokens: windows that contain each token once, in an order that is a pure function.

The windows of the n-th batch depend on (seed, n) alone, so a run resumes exactly by counting on from n, with any number
of loader workers and of data-parallel ranks.

Shape letters: B micro-batch, T context_length.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import DataLoader, Dataset

from gpt.data.manifest import SplitTokens
from gpt.errors import UserError

IGNORED = -100  # a target without loss (PyTorch's ignore_index)

# Lightning skips a batch when it resumes a loader without a length, so there is one that is never reached.
_ENDLESS = 2**48


class Window(TypedDict):
    """Inputs and the targets one token ahead: (T,) each, int64; (B, T) once collated."""

    inputs: Tensor
    targets: Tensor


class TrainingBatch(Window):
    """A micro-batch (B, T), its number in the run, and the number of targets in its global batch."""

    number: int
    global_targets: int


class TokenWindows(Dataset[Window]):
    """A split cut into windows of T tokens; each token but the first is a target exactly once.

    Each window repeats the last ``overlap`` tokens of the previous one, as context without targets. A last window that
    is shorter is padded at its end with ignored targets.
    """

    def __init__(self, tokens: SplitTokens, context_length: int, overlap: int = 0) -> None:
        if len(tokens) < context_length + 1:
            raise UserError(
                f"one window needs {context_length + 1} tokens and split {tokens.name!r} has {len(tokens)}; "
                "prepare more text (or with another val_fraction), or lower model.context_length"
            )
        if not 0 <= overlap < context_length:
            raise UserError(f"overlap is {overlap}; expected at least 0 and less than context_length {context_length}")
        self.tokens, self.context_length, self.stride = tokens, context_length, context_length - overlap

    def __len__(self) -> int:
        return 1 + -(-(len(self.tokens) - 1 - self.context_length) // self.stride)

    def num_targets(self, index: int) -> int:
        """Number of targets of a window that are not ignored."""
        if index == 0:
            return self.context_length
        return min(self.stride, len(self.tokens) - 1 - self.context_length - (index - 1) * self.stride)

    def __getitem__(self, index: int) -> Window:
        if not 0 <= index < len(self):
            raise IndexError(index)
        T, start = self.context_length, index * self.stride
        n = min(T, len(self.tokens) - 1 - start)  # inputs, of which the last num_targets are new
        tokens = torch.from_numpy(self.tokens.read(start, start + n + 1))
        inputs, targets, num_targets = tokens[:-1], tokens[1:], self.num_targets(index)
        if num_targets < T:
            inputs, targets = pad(inputs, (0, T - n)), pad(targets, (0, T - n), value=IGNORED)
            targets[: n - num_targets] = IGNORED
        return {"inputs": inputs, "targets": targets}


@dataclass(eq=False)
class TrainingBatches(Dataset[TrainingBatch]):
    """The endless sequence of micro-batches of a run, indexed by their number.

    The windows of all epochs, each in an order of its own, form one sequence. Global batch g is its g-th slice of
    ``global_batch_size`` windows, cut into micro-batches that are dealt to the ranks in turn: the ranks see disjoint
    windows, and together those that a single process would see.
    """

    windows: TokenWindows
    seed: int
    global_batch_size: int  # windows per optimizer step, over all ranks
    micro_batch_size: int  # B, windows per forward pass of one rank
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        self.accumulation, rest = divmod(self.global_batch_size, self.micro_batch_size * self.world_size)
        assert rest == 0
        self._step, self._windows_of_step = -1, np.empty(0, dtype=np.int64)

    def window_indices(self, step: int) -> NDArray[np.int64]:
        """Windows of a global batch: (global_batch_size,)."""
        if step != self._step:  # the micro-batches of a step share them
            size, slots = len(self.windows), step * self.global_batch_size + np.arange(self.global_batch_size)
            epochs, positions = np.divmod(slots, size)
            parts = [
                epoch_permutation(positions[epochs == epoch], size, self.seed, epoch)
                for epoch in range(epochs[0], epochs[-1] + 1)  # a batch may span epochs
            ]
            self._step, self._windows_of_step = step, np.concatenate(parts)
        return self._windows_of_step

    def __getitem__(self, number: int) -> TrainingBatch:
        step, micro_batch = divmod(number, self.accumulation)
        global_batch = self.window_indices(step)
        start = (micro_batch * self.world_size + self.rank) * self.micro_batch_size
        windows = [self.windows[index] for index in global_batch[start : start + self.micro_batch_size].tolist()]
        T, last = self.windows.context_length, len(self.windows) - 1
        missing = T - self.windows.num_targets(last)  # only the last window may have fewer targets than T
        return {
            "inputs": torch.stack([window["inputs"] for window in windows]),
            "targets": torch.stack([window["targets"] for window in windows]),
            "number": number,
            "global_targets": len(global_batch) * T - int((global_batch == last).sum()) * missing,
        }


class TrainingLoader(DataLoader[TrainingBatch]):
    """Prefetches micro-batches in worker processes, from number ``start`` on; ``options`` are those of DataLoader.

    Workers send arrays through a pipe, which is three times as fast as tensors: each of those costs a file descriptor
    and a memory mapping.
    """

    def __init__(self, batches: TrainingBatches, start: int = 0, num_workers: int = 0, **options: Any) -> None:
        super().__init__(
            batches,
            batch_size=None,  # an item is already a micro-batch
            sampler=range(start, start + _ENDLESS),
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            collate_fn=_to_arrays,  # type: ignore[arg-type]
            **options,
        )

    def __iter__(self) -> Iterator[TrainingBatch]:  # type: ignore[override]
        for batch in super().__iter__():
            batch["inputs"], batch["targets"] = torch.as_tensor(batch["inputs"]), torch.as_tensor(batch["targets"])
            yield batch


def _to_arrays(batch: TrainingBatch) -> dict[str, Any]:
    return {**batch, "inputs": batch["inputs"].numpy(), "targets": batch["targets"].numpy()}


def epoch_permutation(positions: NDArray[np.int64], size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Evaluate a random permutation of ``range(size)`` at some positions, without storing it: (n,) to (n,) int64.

    A Feistel network permutes the smallest square power of two that is at least ``size``; results outside
    ``range(size)`` are permuted again until they are inside (cycle walking), which keeps it a permutation.

    Source: Luby & Rackoff 1988; Black & Rogaway 2002, "Ciphers with arbitrary finite domains", section 4.
    """
    half_bits = max(1, -(-(size - 1).bit_length() // 2))
    shift, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    keys = np.random.SeedSequence([seed, epoch]).generate_state(6, np.uint64)  # one per round
    values = positions.astype(np.uint64)
    outside = np.ones(len(values), dtype=bool)
    while outside.any():
        left, right = values[outside] >> shift, values[outside] & mask
        for key in keys:
            left, right = right, left ^ (_mix(right ^ key) & mask)
        values[outside] = (left << shift) | right
        outside = values >= size
    return values.astype(np.int64)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: every input bit affects every output bit (Steele et al. 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
