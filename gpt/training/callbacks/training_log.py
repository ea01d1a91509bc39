"""Losses, learning rate, gradient norm and speed, to TensorBoard and to the terminal."""

import logging
import sys
import time
from typing import Any

import lightning as L
from tqdm import tqdm

from gpt.training.callbacks.step_callback import StepCallback
from gpt.training.module import GPTModule
from gpt.training.optim import learning_rate_factor

log = logging.getLogger(__name__)

_LINE_SECONDS = 10.0  # without a terminal: a line at most this often


class TrainingLog(StepCallback):
    """Writes scalars when they are due, and only then asks the device for them.

    In a terminal there is a bar with loss, tokens per second and the time left; elsewhere a line now and then.
    """

    def __init__(self) -> None:
        self.train_loss = float("nan")
        self._bar: tqdm[Any] | None = None
        self._training_seconds = 0.0
        self._training_steps = 0
        self._steps_at_log, self._seconds_at_log = 0, 0.0
        self._resumed_at: float | None = None  # None while the clock stands still
        self._next_line = 0.0
        self._logged_step = -1

    @property
    def tokens_per_second(self) -> float:
        """Over the whole run so far, without the time spent on validation and what comes with it."""
        return self._training_steps * self._tokens_per_step / max(self._training_seconds, 1e-9)

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Start the clock and, in a terminal, the bar."""
        assert isinstance(pl_module, GPTModule)
        self._tokens_per_step = pl_module.config.tokens_per_step
        if trainer.is_global_zero and sys.stderr.isatty():
            self._bar = tqdm(total=trainer.max_steps, initial=trainer.global_step, unit="step", dynamic_ncols=True)
        self._next_line = time.monotonic()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Let the clock run, if validation, sampling and saving had stopped it."""
        if self._resumed_at is None:
            self._resumed_at = time.monotonic()

    def after_step(self, trainer: L.Trainer, module: GPTModule) -> None:
        """Log, if that is due."""
        self._training_steps += 1
        if self._bar is not None:
            self._bar.update()
        if module.log_is_due():
            self._log(trainer, module, trainer.global_step, to_board=True)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the step, if it was not one to be logged, and stop the clock."""
        assert isinstance(pl_module, GPTModule)
        if self._logged_step != trainer.global_step:
            self._log(trainer, pl_module, trainer.global_step, to_board=False)
        if self._resumed_at is not None:
            self._training_seconds += time.monotonic() - self._resumed_at
            self._resumed_at = None

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Log the validation."""
        assert isinstance(pl_module, GPTModule)
        evaluation = pl_module.evaluation
        assert evaluation is not None
        if trainer.logger is not None:
            names = ("loss_nats", "perplexity", "bits_per_byte")
            metrics = {f"val/{name}": getattr(evaluation, name) for name in names}
            trainer.logger.log_metrics(metrics, step=trainer.global_step)
        if trainer.is_global_zero:
            self._say(
                f"step {trainer.global_step}: validation loss {evaluation.loss_nats:.4f} nats, "
                f"perplexity {evaluation.perplexity:.2f}, {evaluation.bits_per_byte:.4f} bits per byte"
            )

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Close the bar."""
        self._close()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        """Close the bar."""
        self._close()

    def _log(self, trainer: L.Trainer, module: GPTModule, step: int, to_board: bool) -> None:
        self._logged_step = step
        # Reading the loss waits for the device, so the clock is read after it.
        self.train_loss = float(trainer.strategy.reduce(module.train_loss.clone(), reduce_op="sum"))
        gradient_norm = float(module.gradient_norm)
        now = time.monotonic()
        assert self._resumed_at is not None
        self._training_seconds += now - self._resumed_at
        self._resumed_at = now
        steps = self._training_steps - self._steps_at_log
        rate = steps * self._tokens_per_step / max(self._training_seconds - self._seconds_at_log, 1e-9)
        self._steps_at_log, self._seconds_at_log = self._training_steps, self._training_seconds
        if trainer.logger is not None and to_board:
            optim = module.config.optim
            factor = learning_rate_factor(step - 1, optim, module.config.trainer.max_steps)
            metrics = {
                "train/loss_nats": self.train_loss,
                "train/learning_rate": optim.learning_rate * factor,
                "train/gradient_norm": gradient_norm,
                "train/tokens_per_second": rate,
            }
            trainer.logger.log_metrics(metrics, step=step)
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {self.train_loss:.4f}, {rate:,.0f} tokens/s", refresh=False)
        elif trainer.is_global_zero and now >= self._next_line:
            left = (trainer.max_steps - step) * self._training_seconds / self._training_steps
            progress = f"step {step} of {trainer.max_steps}: loss {self.train_loss:.4f}"
            # The first step warms everything up: its speed says nothing.
            self._say(progress if steps == 1 else f"{progress}, {rate:,.0f} tokens/s, {left:.0f} s left")
            self._next_line = now + _LINE_SECONDS

    def _say(self, message: str) -> None:
        if self._bar is not None:
            self._bar.write(message, file=sys.stderr)
        else:
            log.info(message)

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
