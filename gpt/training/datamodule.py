"""The Lightning data module: micro-batches for training, the whole validation split for validation."""

import multiprocessing
import signal
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from torch.utils.data import DataLoader

from gpt.data.manifest import Manifest, SplitTokens
from gpt.data.windows import TokenWindows, TrainingBatch, TrainingBatches, TrainingLoader, Window
from gpt.errors import UserError
from gpt.training.config import RunConfig

_SEARCHED_TOKENS = 2**14
_OPENING_TOKENS = 48
_PROMPT_CHARACTERS = 24


class TokenDataModule(L.LightningDataModule):
    """Windows of a prepared folder, distributed over the ranks of a run."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        folder = Path(config.data.path)
        self.config = config
        self.manifest = Manifest.load(folder)
        self.tokenizer = self.manifest.open_tokenizer(folder)
        self.train_windows, self.val_windows = (
            TokenWindows(SplitTokens(folder, self.manifest, split), config.model.context_length)
            for split in ("train", "val")
        )
        if (count := len(self.val_windows)) < config.world_size:
            raise UserError(f"the validation split has {count} windows; {config.world_size} processes need one each")
        self._loaders: list[DataLoader[Any]] = []

    @cached_property
    def opening(self) -> str:
        """The beginning of a validation document: the first one that is long enough, in whole characters."""
        tokens = self.val_windows.tokens
        token_ids = tokens.read(0, min(len(tokens), _SEARCHED_TOKENS))
        documents = np.split(token_ids, np.flatnonzero(token_ids == self.manifest.eot_id))
        beginning = max((ids[ids != self.manifest.eot_id][:_OPENING_TOKENS] for ids in documents), key=len)
        return self.tokenizer.decode_bytes(beginning.tolist()).decode(errors="ignore")

    @property
    def prompt(self) -> str:
        """The first printable words of the opening."""
        line = next((line for line in self.opening.splitlines() if line.strip()), "")
        start = "".join(takewhile(str.isprintable, " ".join(line.split())))[:_PROMPT_CHARACTERS]
        return start if len(start) < _PROMPT_CHARACTERS else start.rpartition(" ")[0] or start

    def train_dataloader(self) -> DataLoader[TrainingBatch]:
        """Endless micro-batches of this rank, from the step at which the run stands."""
        assert self.trainer is not None
        sizes = self.config.data.global_batch_size, self.config.data.micro_batch_size
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        batches = TrainingBatches(self.train_windows, self.config.seed, *sizes, rank, world_size)
        consumed = self.trainer.global_step * batches.accumulation
        loader = TrainingLoader(batches, consumed, self.config.data.num_workers, worker_init_fn=_ignore_signals)
        self._loaders.append(loader)
        return loader

    def val_dataloader(self) -> DataLoader[Window]:
        """Every window of the validation split once, over all ranks together."""
        assert self.trainer is not None
        loader = DataLoader(
            self.val_windows,
            batch_size=self.config.data.micro_batch_size,
            sampler=range(self.trainer.global_rank, len(self.val_windows), self.trainer.world_size),
            num_workers=self.config.data.num_workers,
            persistent_workers=self.config.data.num_workers > 0,
            worker_init_fn=_ignore_signals,
        )
        self._loaders.append(loader)
        return loader

    def close(self) -> None:
        """End the loader processes: at exit Python would wait for them, since they ignore SIGTERM."""
        for loader in self._loaders:
            if loader._iterator is not None:
                loader._iterator._shutdown_workers()  # type: ignore[attr-defined]
        kill_loader_processes()


def kill_loader_processes() -> None:
    """Kill the loader processes that are left."""
    for process in multiprocessing.active_children():
        process.kill()


def _ignore_signals(worker: int) -> None:
    """Signals may reach the whole process group, and a run needs its workers to complete the current step."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
