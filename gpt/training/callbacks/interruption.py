"""SIGTERM, Ctrl-C and max_time: finish the step, save, say where, leave."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint

from gpt.training.callbacks.run_checkpoints import RunCheckpoints
from gpt.training.callbacks.step_callback import StepCallback
from gpt.training.module import GPTModule

log = logging.getLogger(__name__)

_TIME_IS_UP = 1  # as a reason to stop, beside the signals' numbers (SIGINT is 2, SIGTERM 15)
_DOUBLE_SECONDS = 0.5  # "timeout -s INT" signals a process and then its group: one request, two signals


class Interruption(StepCallback, Checkpoint):
    """Ends a run early and loses nothing.

    A signal only sets a flag. The optimizer step under way, or the validation that it makes due, is finished and
    saved; then the process exits with 128 + the signal's number. A second Ctrl-C leaves at once. When
    ``trainer.max_time`` is over, the run ends like one that has reached its last step. A signal that finds the run
    at its end changes nothing.

    Several processes agree after each step, by taking the largest of their reasons.

    Args:
        checkpoints: does the saving; must come before this one in the list of callbacks.
    """

    def __init__(self, checkpoints: RunCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._reason = 0
        self._first_interrupt: float | None = None
        self._started = time.monotonic()

    @contextmanager
    def handlers(self) -> Iterator[None]:
        """Signals are noted rather than obeyed inside; for the whole of ``fit``."""
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Take SIGTERM back from Lightning, whose own handler would end the run without saving."""
        signal.signal(signal.SIGTERM, self._note)
        trainer._signal_connector.received_sigterm = False  # ours has noted it, too

    def after_step(self, trainer: L.Trainer, module: GPTModule) -> None:
        """Stop here, if there is a reason and no validation is due."""
        options, step = module.config.trainer, trainer.global_step
        if options.max_seconds is not None and time.monotonic() - self._started > options.max_seconds:
            self._reason = max(self._reason, _TIME_IS_UP)
        self._agree(trainer)
        if trainer.should_stop or self._reason == 0:
            return
        if self._reason == _TIME_IS_UP:
            trainer.should_stop = True  # makes Lightning validate, which saves
            if trainer.is_global_zero:
                name = self._checkpoints.folder.name
                log.info(
                    "trainer.max_time is over: stopping after step %d; --resume --run_name %s continues", step, name
                )
        elif step % options.validate_every_steps != 0:
            self._checkpoints.save(trainer)
            self._leave(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Stop after a validation, which RunCheckpoints has saved."""
        self._agree(trainer)
        if self._reason > _TIME_IS_UP and trainer.global_step < trainer.max_steps:
            self._leave(trainer)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT:
            if self._first_interrupt is not None and now - self._first_interrupt > _DOUBLE_SECONDS:
                os._exit(128 + number)  # asked twice: at once, without a word to anything that might hang
            self._first_interrupt = self._first_interrupt or now
        self._reason = max(self._reason, number)
        # Not print or logging: the signal may have come in the middle of one, or the pipe may be gone with it.
        with suppress(OSError):
            os.write(2, b"\nstopping once the step under way is done and saved\n")

    def _agree(self, trainer: L.Trainer) -> None:
        if trainer.world_size > 1:
            reason = torch.tensor(self._reason, device=trainer.strategy.root_device)
            self._reason = int(trainer.strategy.reduce(reason, reduce_op="max"))

    def _leave(self, trainer: L.Trainer) -> None:
        if not trainer.is_global_zero:
            raise SystemExit(0)  # a launcher would kill the first process for another's bad status
        name, step, last = signal.Signals(self._reason).name, trainer.global_step, self._checkpoints.last
        log.info("%s: step %d is saved in %s", name, step, last)
        log.info("the same command with --resume --run_name %s continues it", last.parent.name)
        raise SystemExit(128 + self._reason)
