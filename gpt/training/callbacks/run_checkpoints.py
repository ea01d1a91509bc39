"""last.ckpt and best.ckpt of a run."""

import os
import shutil
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from gpt.checkpoint import BEST, LAST
from gpt.files import atomic_write, sync_folder
from gpt.training.callbacks.step_callback import StepCallback
from gpt.training.module import GPTModule


class RunCheckpoints(StepCallback, Checkpoint):
    """Saves ``last.ckpt`` at intervals and after each validation, and keeps the best validated one as ``best.ckpt``.

    The last step of a run is always validated and saved, whatever the intervals. Saving waits for a validation
    that is due at the same step, so that no checkpoint lies between a step and its validation.

    Args:
        keep_last: how many saves to keep under the name of their step, too.
    """

    def __init__(self, folder: Path, keep_last: int) -> None:
        self.folder = folder
        self.keep_last = keep_last
        self.best_loss = float("inf")

    def state_dict(self) -> dict[str, Any]:
        """What a continued run must know."""
        return {"best_loss": self.best_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue."""
        self.best_loss = state_dict["best_loss"]

    def after_step(self, trainer: L.Trainer, module: GPTModule) -> None:
        """Save if that is due and no validation is."""
        step, config = trainer.global_step, module.config
        if step == trainer.max_steps:
            trainer.should_stop = True  # makes Lightning validate, which saves
        elif step % config.trainer.validate_every_steps != 0 and step % config.checkpoint.every_steps == 0:
            self.save(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Save, and if the loss is the lowest so far, keep this very file as the best."""
        assert isinstance(pl_module, GPTModule)
        assert pl_module.evaluation is not None
        if pl_module.evaluation.loss_nats < self.best_loss:
            self.best_loss = pl_module.evaluation.loss_nats
            # The best first: a kill between the two continues from the last one before, and comes by here again.
            self._save(trainer, self.folder / BEST)
            if trainer.is_global_zero:
                _link(self.folder / BEST, self.last)
            self._keep(trainer, self.folder / BEST)
        else:
            self.save(trainer)

    @property
    def last(self) -> Path:
        """The file that a run is continued from."""
        return self.folder / LAST

    def save(self, trainer: L.Trainer) -> None:
        """Save ``last.ckpt``; all processes must call it."""
        self._save(trainer, self.last)
        self._keep(trainer, self.last)

    def _save(self, trainer: L.Trainer, path: Path) -> None:
        if trainer.logger is not None and trainer.is_global_zero:
            # What was logged up to here is on disk before the checkpoint is, so that a continued run misses nothing.
            trainer.logger.experiment.flush()  # type: ignore[attr-defined]
        trainer.save_checkpoint(path)

    def _keep(self, trainer: L.Trainer, saved: Path) -> None:
        """Give the file just saved a name of its own, and remove the oldest such names."""
        if self.keep_last == 0 or not trainer.is_global_zero:
            return
        _link(saved, self.folder / f"step_{trainer.global_step:08d}.ckpt")
        for path in sorted(self.folder.glob("step_*.ckpt"))[: -self.keep_last]:
            path.unlink()


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, atomically: at no cost, since the next save renames over the first name."""
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
