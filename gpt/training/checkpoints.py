"""Save a run's checkpoints atomically, and stop it early without losing a step."""

import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import lightning as L
import torch
from lightning.fabric.plugins import TorchCheckpointIO
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher

from gpt.checkpoint import BEST, LAST, read_checkpoint
from gpt.errors import UserError
from gpt.evaluation import Evaluation
from gpt.files import atomic_write, sync_folder
from gpt.training.config import RunConfig
from gpt.training.datamodule import kill_loader_processes
from gpt.training.module import GPTModule

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NONE, _OUT_OF_TIME = -1, 0  # reasons to stop; the others are signal numbers. Ranks agree on the maximum.
_REPORT_SECONDS = 20.0
_SAME_REQUEST_SECONDS = 0.5  # `timeout -s INT` signals the process and then its group: two signals, one request


class RunCheckpoints:
    """Saves ``last.ckpt`` at intervals and after each validation, and the best validated weights as ``best.ckpt``.

    The last step of a run is always validated and saved. A save waits for a validation that is due at the same step, so
    that no checkpoint lies between a step and its validation. No save after a skipped step, nor after a validation loss
    that is not finite, replaces a good checkpoint. The latest ``keep_last`` saves are kept as step_*.ckpt.
    """

    def __init__(self, folder: Path, keep_last: int, patience: int = 0) -> None:
        self.folder = folder
        self.patience = patience
        self.validations_since_best = 0
        self.last = folder / LAST
        self.keep_last = keep_last
        self.best_loss = float("inf")

    def after_step(self, trainer: L.Trainer, module: GPTModule) -> None:
        """Save if a save is due and a validation is not."""
        step, config = trainer.global_step, module.config
        if step == trainer.max_steps:
            trainer.should_stop = True  # makes Lightning validate, and validation saves
            return
        is_due = step % config.trainer.validate_every_steps != 0 and step % config.checkpoint.every_steps == 0
        if is_due and module.gradient_norm.isfinite():
            self.save(trainer)

    def after_validation(self, trainer: L.Trainer, evaluation: Evaluation) -> None:
        """Save ``last.ckpt``; if the loss is the lowest so far, save ``best.ckpt`` and link it as ``last.ckpt``."""
        self.validations_since_best += 1
        if evaluation.loss_nats >= self.best_loss:
            self.save(trainer)
            if self.validations_since_best == self.patience:
                trainer.should_stop = True
                log.info("no lower loss in %d validations; the run ends (trainer.patience)", self.patience)
            return
        self.best_loss, self.validations_since_best = evaluation.loss_nats, 0
        # best.ckpt first: a kill between the two leaves the older last.ckpt, and a resume repeats this validation.
        self.save(trainer, self.folder / BEST)
        if trainer.is_global_zero:
            _link(self.folder / BEST, self.last)

    def save(self, trainer: L.Trainer, path: Path | None = None) -> None:
        """Save ``last.ckpt``, or another path; every process must call it."""
        path = path or self.last
        if trainer.logger is not None and trainer.is_global_zero:
            trainer.logger.experiment.flush()  # type: ignore[attr-defined]  # a resume cannot restore events of earlier steps
        trainer.save_checkpoint(path)
        if self.keep_last and trainer.is_global_zero:
            _link(path, self.folder / f"step_{trainer.global_step:08d}.ckpt")
            for old in step_checkpoints(self.folder)[: -self.keep_last]:
                old.unlink()


def step_checkpoints(folder: Path) -> list[Path]:
    """The saves that ``keep_last`` has kept, the earliest first."""
    return sorted(path for path in folder.iterdir() if re.fullmatch(r"step_\d{8,}\.ckpt", path.name))


class Interruption:
    """Stops a run early without losing a step.

    A signal only sets a flag: the current step is completed and saved, and the process exits with 128 + the signal
    number. A validation is left and repeated by the resumed run, except that of the last step or of several ranks. The
    same signal again exits at once. A signal that the process was started to ignore (nohup) stays ignored. After
    ``max_time`` the run ends as after its last step. Ranks agree after each step, on the largest of their reasons.
    """

    def __init__(self, checkpoints: RunCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._requested = self._reason = _NONE  # in this process; as all ranks have agreed
        self._launcher: Any = None  # of the other ranks on this machine
        self._started = time.monotonic()

    @contextmanager
    def handlers(self) -> Iterator[None]:
        """Handle SIGINT, SIGTERM and SIGHUP within this context."""
        previous = {number: signal.getsignal(number) for number in _SIGNALS}
        self._handled = [number for number in _SIGNALS if previous[number] != signal.SIG_IGN]
        receiver, sender = socket.socketpair()
        sender.setblocking(False)  # as set_wakeup_fd needs
        previous_descriptor = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
        threading.Thread(target=self._watch, args=[receiver], daemon=True).start()
        try:
            self.take_signals()
            yield
        finally:
            signal.set_wakeup_fd(previous_descriptor)
            sender.close()  # ends the thread
            for number, handler in previous.items():
                signal.signal(number, handler)

    def take_signals(self) -> None:
        """Set the handlers; again in ``fit``, where Lightning sets one for SIGTERM that ends the run without saving."""
        for number in _SIGNALS:
            signal.signal(number, self._handle if number in self._handled else signal.SIG_IGN)

    def watch_ranks(self, launcher: Any) -> list["subprocess.Popen[bytes]"]:
        """Watch the ranks that this process has launched, which are returned: it would wait for one that has ended."""
        if not isinstance(launcher, _SubprocessScriptLauncher):
            return []
        self._launcher = launcher
        # In place of Lightning's observer, which kills this process before it can say why.
        for observer in (thread for thread in threading.enumerate() if thread.name == "child-process-observer"):
            observer._child_processes = []  # type: ignore[attr-defined]
        threading.Thread(target=self._watch_ranks, daemon=True).start()
        return launcher.procs

    def _watch_ranks(self) -> None:
        while not any(process.poll() for process in self._launcher.procs):
            time.sleep(1)
        time.sleep(_REPORT_SECONDS)  # in which this process is usually told, and reports it
        with suppress(OSError):
            os.write(2, b"error: a process of the run has ended; --resume continues it\n")
        self._exit_at_once(2)

    def _exit_at_once(self, status: int) -> None:
        try:
            kill_loader_processes()
            if self._launcher is not None:
                self._launcher.kill(signal.SIGKILL)
        finally:
            os._exit(status)

    def exit_before_start(self) -> None:
        """Exit if a signal has been received, before there is a step to save."""
        if self._requested > _OUT_OF_TIME:
            log.info("%s before the first step", signal.Signals(self._requested).name)
            raise SystemExit(128 + self._requested)

    def after_step(self, trainer: L.Trainer, config: RunConfig) -> None:
        """Save and exit if there is a reason and no validation is due."""
        step = trainer.global_step
        if time.monotonic() - self._started > config.trainer.max_seconds:
            self._requested = max(self._requested, _OUT_OF_TIME)
        self._agree(trainer)
        if trainer.should_stop or self._reason == _NONE:
            return
        if self._reason == _OUT_OF_TIME:
            trainer.should_stop = True  # makes Lightning validate, and validation saves
            if trainer.is_global_zero:
                name = self._checkpoints.folder.name
                log.info("trainer.max_time reached at step %d; --resume --run_name %s continues the run", step, name)
        elif step % config.trainer.validate_every_steps != 0:
            self._checkpoints.save(trainer)
            self._exit(trainer)

    def in_validation(self, trainer: L.Trainer) -> None:
        """Save and exit between two batches of a validation."""
        if self._requested > _OUT_OF_TIME and trainer.world_size == 1 and not trainer.should_stop:
            self._reason = self._requested
            self._checkpoints.save(trainer)
            self._exit(trainer)

    def after_validation(self, trainer: L.Trainer) -> None:
        """Exit after a validation, which is saved."""
        self._agree(trainer)
        if self._reason > _OUT_OF_TIME and trainer.global_step < trainer.max_steps:
            self._exit(trainer)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._requested = max(self._requested, number)

    def _watch(self, receiver: socket.socket) -> None:
        """Answer signals on a thread: the main one may wait in C++ for another rank, where no Python handler runs."""
        first: dict[int, float] = {}  # time of each signal's first
        with receiver:
            while number := int.from_bytes(receiver.recv(1)):
                now = time.monotonic()
                if number not in self._handled:
                    continue
                if now - first.setdefault(number, now) > _SAME_REQUEST_SECONDS:
                    self._exit_at_once(128 + number)
                with suppress(OSError):  # the terminal may be lost
                    os.write(2, b"\nstopping after the current step is saved; the same signal again stops at once\n")

    def _agree(self, trainer: L.Trainer) -> None:
        self._reason = self._requested  # a signal from here on counts at the next step
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


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoint files, written next to their final name, synced and renamed.

    Lightning writes to $TMPDIR first, which may be another filesystem; its final move is then a copy that can be torn.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Save a checkpoint; after a kill or a full disk the previous one is intact."""
        try:
            with atomic_write(Path(path)) as file:
                torch.save(checkpoint, file)
        except OSError as error:
            previous = "the previous checkpoint is intact" if Path(path).exists() else "no earlier checkpoint exists"
            raise UserError(f"cannot save {path}: {error.strerror}; {previous}") from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = None) -> dict[str, Any]:
        """Load tensors and plain values only, and compare the whole file with its checksums."""
        return read_checkpoint(path, whole=True)


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
