"""last.ckpt and best.ckpt of a run, written atomically."""

import os
import shutil
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins import TorchCheckpointIO

from gpt.checkpoint import BEST, LAST
from gpt.errors import UserError
from gpt.evaluation import Evaluation
from gpt.files import atomic_write, sync_folder
from gpt.training.config import RunConfig


class RunCheckpoints:
    """Saves ``last.ckpt`` at intervals and after each validation, and the best validated weights as ``best.ckpt``.

    The last step of a run is always validated and saved. A save waits for a validation that is due at the same step, so
    that no checkpoint lies between a step and its validation. ``keep_last`` saves are also kept by step.
    """

    def __init__(self, folder: Path, keep_last: int) -> None:
        self.folder = folder
        self.last = folder / LAST
        self.keep_last = keep_last
        self.best_loss = float("inf")

    def after_step(self, trainer: L.Trainer, config: RunConfig) -> None:
        """Save if a save is due and a validation is not."""
        step = trainer.global_step
        if step == trainer.max_steps:
            trainer.should_stop = True  # makes Lightning validate, and validation saves
        elif step % config.trainer.validate_every_steps != 0 and step % config.checkpoint.every_steps == 0:
            self.save(trainer)

    def after_validation(self, trainer: L.Trainer, evaluation: Evaluation) -> None:
        """Save, and link the file as ``best.ckpt`` if the loss is the lowest so far."""
        if not evaluation.loss_nats < self.best_loss:
            self.save(trainer)
            return
        self.best_loss = evaluation.loss_nats
        # best.ckpt first: after a kill between the two, a resume repeats this validation.
        self.save(trainer, self.folder / BEST)
        if trainer.is_global_zero:
            _link(self.folder / BEST, self.last)

    def save(self, trainer: L.Trainer, path: Path | None = None) -> None:
        """Save ``last.ckpt``, or another path; every process must call it."""
        path = path or self.last
        if trainer.logger is not None and trainer.is_global_zero:
            trainer.logger.experiment.flush()  # type: ignore[attr-defined]  # a resume writes events after this step only
        trainer.save_checkpoint(path)
        if self.keep_last and trainer.is_global_zero:
            _link(path, self.folder / f"step_{trainer.global_step:08d}.ckpt")
            for old in sorted(self.folder.glob("step_*.ckpt"))[: -self.keep_last]:
                old.unlink()


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint files, written next to their final name, synced and renamed.

    Lightning writes to $TMPDIR first, which may be another filesystem; its final move is then a copy that can be torn.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Save a checkpoint; after a kill or a full disk the previous one is intact."""
        try:
            with atomic_write(Path(path)) as file:
                torch.save(checkpoint, file)
        except (OSError, RuntimeError) as error:  # torch wraps an OSError, such as a full disk, in a RuntimeError
            cause = error if isinstance(error, OSError) else error.__context__
            if not isinstance(cause, OSError):
                raise
            raise UserError(f"cannot save {path}: {cause.strerror}; the previous checkpoint is intact") from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Load tensors and plain values only, so that a hostile file runs no code."""
        content: dict[str, Any] = torch.load(Path(path), map_location=map_location or "cpu", weights_only=True)
        return content


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, atomically."""
    temporary = target.with_name(target.name + ".tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(source, temporary)
    except OSError:  # a filesystem without hard links
        with source.open("rb") as original, atomic_write(target) as copy:
            shutil.copyfileobj(original, copy)
        return
    temporary.replace(target)
    sync_folder(target.parent)
