"""SIGTERM, Ctrl-C and max_time: finish the step, save, say where, leave."""

import logging
import os
import signal
import sys
import time
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint

from gpt.training.callbacks.run_checkpoints import RunCheckpoints
from gpt.training.module import GPTModule

log = logging.getLogger(__name__)

_TIME_IS_UP = 1  # as a reason to stop, beside the signals' numbers (SIGINT is 2, SIGTERM 15)


class Interruption(Checkpoint):
    """Ends a run early and loses nothing.

    A signal only sets a flag. The optimizer step under way, or the validation that it makes due, is finished and
    saved; then the process exits with 128 + the signal's number. A second Ctrl-C leaves at once. When
    ``trainer.max_time`` is over, the run ends like one that has reached its last step.

    Several processes agree by taking the largest of their reasons, at the steps that are logged.

    Args:
        checkpoints: does the saving; must come before this one in the list of callbacks.
    """

    def __init__(self, checkpoints: RunCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._reason = 0
        self._handlers: dict[int, Any] = {}
        self._started = time.monotonic()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take over from Lightning's handlers, which save nothing."""
        self._handlers = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop here, if there is a reason and no validation is due."""
        assert isinstance(pl_module, GPTModule)
        if not pl_module.ends_step(batch):
            return
        options, step = pl_module.config.trainer, pl_module.steps_done
        if options.max_seconds is not None and time.monotonic() - self._started > options.max_seconds:
            self._reason = max(self._reason, _TIME_IS_UP)
        if trainer.world_size > 1 and step % options.log_every_n_steps != 0:
            return
        self._agree(trainer)
        if self._reason == _TIME_IS_UP:
            trainer.should_stop = True  # makes Lightning validate, which saves
        elif self._reason and not trainer.should_stop and step % options.validate_every_steps != 0:
            self._checkpoints.save(trainer)
            self._leave(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop after a validation, which RunCheckpoints has saved."""
        self._agree(trainer)
        if self._reason > _TIME_IS_UP:
            self._leave(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Put the handlers back."""
        self._restore()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Put the handlers back."""
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._reason == signal.SIGINT:
            os._exit(128 + number)  # asked twice: at once, without a word to anything that might hang
        self._reason = max(self._reason, number)
        sys.stderr.write("\nstopping after this step; Ctrl-C again leaves at once\n")

    def _agree(self, trainer: L.Trainer) -> None:
        if trainer.world_size > 1:
            reason = torch.tensor(self._reason, device=trainer.strategy.root_device)
            self._reason = int(trainer.strategy.reduce(reason, reduce_op="max"))

    def _leave(self, trainer: L.Trainer) -> None:
        if trainer.is_global_zero:
            name = signal.Signals(self._reason).name
            log.info(
                "%s: step %d is saved in %s; --resume continues it", name, trainer.global_step, self._checkpoints.last
            )
        raise SystemExit(128 + self._reason)

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
