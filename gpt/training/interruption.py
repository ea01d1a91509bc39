"""SIGTERM, Ctrl-C and max_time: complete the step, save, exit."""

import logging
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import lightning as L
import torch

from gpt.training.checkpoints import RunCheckpoints
from gpt.training.config import RunConfig

log = logging.getLogger(__name__)

_MAX_TIME = 1  # as a reason to stop, next to the signal numbers (SIGINT is 2, SIGTERM 15)
_SAME_REQUEST_SECONDS = 0.5  # `timeout -s INT` signals the process and then its group


class Interruption:
    """Stops a run early without losing a step.

    A signal only sets a flag: the current step, or the validation that is due after it, is completed and saved, and the
    process exits with 128 + the signal number. A second Ctrl-C exits at once. After ``max_time`` the run ends as after
    its last step. Ranks agree after each step, on the largest of their reasons.
    """

    def __init__(self, checkpoints: RunCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._reason = 0
        self._first_interrupt: float | None = None
        self._started = time.monotonic()

    @contextmanager
    def handlers(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM within this context."""
        previous = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def take_sigterm(self, trainer: L.Trainer) -> None:
        """Replace the SIGTERM handler that Lightning sets in ``fit``, which ends the run without saving."""
        signal.signal(signal.SIGTERM, self._handle)
        trainer._signal_connector.received_sigterm = False  # it calls the handler that it replaced, which is this one

    def after_step(self, trainer: L.Trainer, config: RunConfig) -> None:
        """Save and exit if there is a reason and no validation is due."""
        step = trainer.global_step
        if time.monotonic() - self._started > config.trainer.max_seconds:
            self._reason = max(self._reason, _MAX_TIME)
        self._agree(trainer)
        if trainer.should_stop or self._reason == 0:
            return
        if self._reason == _MAX_TIME:
            trainer.should_stop = True  # makes Lightning validate, and validation saves
            if trainer.is_global_zero:
                name = self._checkpoints.folder.name
                log.info("trainer.max_time reached at step %d; --resume --run_name %s continues the run", step, name)
        elif step % config.trainer.validate_every_steps != 0:
            self._checkpoints.save(trainer)
            self._exit(trainer)

    def after_validation(self, trainer: L.Trainer) -> None:
        """Exit after a validation, which is saved."""
        self._agree(trainer)
        if self._reason > _MAX_TIME and trainer.global_step < trainer.max_steps:
            self._exit(trainer)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT:
            if self._first_interrupt is not None and now - self._first_interrupt > _SAME_REQUEST_SECONDS:
                os._exit(128 + number)
            self._first_interrupt = self._first_interrupt or now
        self._reason = max(self._reason, number)
        # os.write, because the signal may interrupt a print or a log call, or the pipe may be closed.
        with suppress(OSError):
            os.write(2, b"\nstopping after the current step is completed and saved\n")

    def _agree(self, trainer: L.Trainer) -> None:
        if trainer.world_size > 1:
            reason = torch.tensor(self._reason, device=trainer.strategy.root_device)
            self._reason = int(trainer.strategy.reduce(reason, reduce_op="max"))

    def _exit(self, trainer: L.Trainer) -> None:
        if not trainer.is_global_zero:
            raise SystemExit(0)  # a launcher would kill the first process if another one failed
        name, step, last = signal.Signals(self._reason).name, trainer.global_step, self._checkpoints.last
        log.info("%s: step %d is saved in %s", name, step, last)
        log.info("the same command with --resume --run_name %s continues the run", last.parent.name)
        raise SystemExit(128 + self._reason)
