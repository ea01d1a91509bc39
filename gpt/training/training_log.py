"""Loss, learning rate, gradient norm and tokens per second, to TensorBoard and to the terminal."""

import logging
import sys
import time
from contextlib import suppress
from typing import Any

import lightning as L
from tqdm import tqdm

from gpt.evaluation import in_context_learning_score
from gpt.training.config import RunConfig
from gpt.training.module import GPTModule
from gpt.training.optim import learning_rate_factor
from gpt.training.speed import utilisation

log = logging.getLogger(__name__)

_LINE_SECONDS = 10.0  # without a terminal: at most one progress line in this time


class _Terminal:
    """Standard error, whose loss (a closed terminal) does not end the run."""

    def write(self, text: str) -> None:
        """Write, unless the terminal is lost."""
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


class TrainingLog:
    """Writes scalars when a log is due, and only then reads them from the device.

    A terminal gets a progress bar, anything else a line from time to time. Validation time is not counted.
    """

    def __init__(self, config: RunConfig) -> None:
        self.train_loss = self.tokens_per_second = float("nan")  # of the last step; of all steps of this process
        self._config = config
        self._bar: tqdm[Any] | None = None
        self._terminal: Any = _Terminal()
        self._clock: float | None = None  # when it was last read; None while it is stopped
        self._steps, self._seconds = 0, 0.0  # of training, until the clock was last read
        self._steps_at_log, self._seconds_at_log = 0, 0.0
        self._has_warned = self._has_said_utilisation = False
        self._started = time.monotonic()
        self._logged_step, self._next_line = -1, time.monotonic()

    def start(self, trainer: L.Trainer) -> None:
        """Open the progress bar in a terminal."""
        if trainer.is_global_zero and sys.stderr.isatty():
            done, steps = trainer.global_step, trainer.max_steps
            self._bar = tqdm(total=steps, initial=done, unit="step", dynamic_ncols=True, file=self._terminal)

    def start_clock(self) -> None:
        """Start the clock if it is stopped."""
        if self._clock is None:
            self._clock = time.monotonic()

    def after_step(self, trainer: L.Trainer, module: GPTModule) -> None:
        """Count the step, and log it if that is due."""
        self._steps += 1
        if self._bar is not None:
            self._bar.update()
        if not module.is_log_due():
            return
        factor = learning_rate_factor(trainer.global_step - 1, self._config.optim, self._config.trainer.max_steps)
        rate = self._read(trainer, module)
        metrics = {
            "loss/train_nats": self.train_loss,
            "speed/tokens_per_second": rate,
            "optimizer/learning_rate": self._config.optim.learning_rate * factor,
            "optimizer/gradient_norm": float(module.gradient_norm),
            "optimizer/skipped_steps": int(module.skipped_steps),
        }
        if trainer.logger is not None:
            trainer.logger.log_metrics(metrics, step=trainer.global_step)

    def before_validation(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        """Stop the clock, after a progress line for this step."""
        assert isinstance(module, GPTModule)
        if self._logged_step != trainer.global_step and self._steps:
            self._read(trainer, module)
        self._clock = None

    def after_validation(self, trainer: L.Trainer, module: GPTModule) -> None:
        """Log the validation."""
        evaluation = module.evaluation
        assert evaluation is not None
        if trainer.logger is not None:
            metrics = {
                "loss/val_nats": evaluation.loss_nats,
                "loss/val_perplexity": evaluation.perplexity,
                "loss/val_bits_per_byte": evaluation.bits_per_byte,
                "scores/in_context_learning_nats": in_context_learning_score(*module.loss_by_position),
            }
            trainer.logger.log_metrics(metrics, step=trainer.global_step)
        if trainer.is_global_zero:
            self.print(f"step {trainer.global_step}: validation {evaluation}")
            rate = self.tokens_per_second / self._config.world_size
            said = utilisation(rate, module, trainer.strategy.root_device, trainer.precision)
            if said and not self._has_said_utilisation:
                self.print(f"training runs at {rate:,.0f} tokens/s per device{said}")
            self._has_said_utilisation = True

    def close(self) -> None:
        """Close the progress bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def _read(self, trainer: L.Trainer, module: GPTModule) -> float:
        """Read loss and clock, print progress, return tokens per second since the last time."""
        step = self._logged_step = trainer.global_step
        # Reading the loss waits for the device, so the clock is read after it.
        self.train_loss = float(trainer.strategy.reduce(module.train_loss.clone(), reduce_op="sum"))
        now = time.monotonic()
        assert self._clock is not None
        self._seconds, self._clock = self._seconds + now - self._clock, now
        steps, seconds = self._steps - self._steps_at_log, self._seconds - self._seconds_at_log
        rate = steps * self._config.tokens_per_step / max(seconds, 1e-9)
        self.tokens_per_second = self._steps * self._config.tokens_per_step / max(self._seconds, 1e-9)
        self._steps_at_log, self._seconds_at_log = self._steps, self._seconds
        self._warn_if_out_of_time(step)
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {self.train_loss:.4f}, {rate:,.0f} tokens/s", refresh=False)
        elif trainer.is_global_zero and now >= self._next_line:
            seconds_left = (trainer.max_steps - step) * self._seconds / self._steps
            progress = f"step {step} of {trainer.max_steps}: loss {self.train_loss:.4f}"
            if self._steps > 1:  # the first includes one-time setup
                progress += f", {rate:,.0f} tokens/s, {seconds_left:.0f} s left"
            self.print(progress)
            self._next_line = now + _LINE_SECONDS
        return rate

    def _warn_if_out_of_time(self, step: int) -> None:
        """Warn once if ``trainer.max_time`` will end the run before its learning rate has decayed."""
        options = self._config.trainer
        elapsed = time.monotonic() - self._started  # with validations, as max_time is measured
        last_step = step + (options.max_seconds - elapsed) * self._steps / elapsed
        is_steady = self._steps > options.validate_every_steps or elapsed > options.max_seconds / 4
        if not is_steady or self._has_warned or self._config.optim.schedule == "constant":
            return
        if last_step < 0.9 * options.max_steps:
            self._has_warned = True
            self.print(
                f"trainer.max_time will end the run at about step {last_step:.0f} of {options.max_steps}, before the "
                f"learning rate has decayed; --trainer.max_steps {last_step:.0f} would let it"
            )

    def print(self, message: str) -> None:
        """Print above the progress bar, or log."""
        if self._bar is None:
            log.info(message)
        else:
            self._bar.write(message, file=self._terminal)
