"""The data of a run as Lightning wants it."""

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
    """Windows of a prepared folder, dealt to the processes of a run.

    Raises:
        ValueError: the folder is not prepared data, is damaged, or has a split without one whole window.
    """

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
        if len(self.val_windows) < config.world_size:
            raise UserError(
                f"the validation split has {len(self.val_windows)} windows and the run {config.world_size} processes, "
                "each of which needs one; prepare more validation text"
            )

    def train_dataloader(self) -> DataLoader[TrainingBatch]:
        """Micro-batches of this process, from where the run stands, without end."""
        assert self.trainer is not None
        batches = TrainingBatches(
            self.train_windows,
            seed=self.config.seed,
            global_batch_size=self.config.data.global_batch_size,
            micro_batch_size=self.config.data.micro_batch_size,
            rank=self.trainer.global_rank,
            world_size=self.trainer.world_size,
        )
        consumed = self.trainer.global_step * batches.accumulation
        return TrainingLoader(batches, consumed, self.config.data.num_workers, _ignore_signals)

    def val_dataloader(self) -> DataLoader[Window]:
        """Every window of the validation split once, over all processes together."""
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
    """Ctrl-C reaches a whole process group: a run that finishes its step needs its loader workers for that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
