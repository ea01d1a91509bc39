"""The Lightning data module: micro-batches for training, the whole validation split for validation."""

import signal
from pathlib import Path

import lightning as L
from torch.utils.data import DataLoader

from gpt.data.manifest import Manifest, SplitTokens
from gpt.data.windows import TokenWindows, TrainingBatch, TrainingBatches, TrainingLoader, Window
from gpt.errors import UserError
from gpt.tokenizer import Tokenizer
from gpt.training.config import RunConfig


class TokenDataModule(L.LightningDataModule):
    """Windows of a prepared folder, distributed over the ranks of a run."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        folder = Path(config.data.path)
        self.config = config
        self.manifest = Manifest.load(folder)
        self.tokenizer = Tokenizer(self.manifest.tokenizer)
        self.manifest.check_tokenizer(self.tokenizer)
        self.train_windows, self.val_windows = (
            TokenWindows(SplitTokens(folder, self.manifest, split), config.model.context_length)
            for split in ("train", "val")
        )
        if (count := len(self.val_windows)) < config.world_size:
            raise UserError(f"the validation split has {count} windows; {config.world_size} processes need one each")

    def train_dataloader(self) -> DataLoader[TrainingBatch]:
        """Endless micro-batches of this rank, from the step at which the run stands."""
        assert self.trainer is not None
        sizes = self.config.data.global_batch_size, self.config.data.micro_batch_size
        rank, world_size = self.trainer.global_rank, self.trainer.world_size
        batches = TrainingBatches(self.train_windows, self.config.seed, *sizes, rank, world_size)
        consumed = self.trainer.global_step * batches.accumulation
        return TrainingLoader(batches, consumed, self.config.data.num_workers, worker_init_fn=_ignore_signals)

    def val_dataloader(self) -> DataLoader[Window]:
        """Every window of the validation split once, over all ranks together."""
        assert self.trainer is not None
        return DataLoader(
            self.val_windows,
            batch_size=self.config.data.micro_batch_size,
            sampler=range(self.trainer.global_rank, len(self.val_windows), self.trainer.world_size),
            num_workers=self.config.data.num_workers,
            persistent_workers=self.config.data.num_workers > 0,
            worker_init_fn=_ignore_signals,
        )


def _ignore_signals(worker: int) -> None:
    """Ctrl-C reaches the whole process group, and a run needs its workers to complete the current step."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
