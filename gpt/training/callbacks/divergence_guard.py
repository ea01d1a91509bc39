"""Stops a run whose gradients keep being unusable."""

from pathlib import Path

import lightning as L

from gpt.checkpoint import LAST
from gpt.training.callbacks.step_callback import StepCallback
from gpt.training.module import GPTModule


class DivergedError(RuntimeError):
    """Too many steps had to be skipped."""


class DivergenceGuard(StepCallback):
    """Counts the steps that were skipped because a gradient was not finite, and gives up after too many.

    The skipping itself happens on the device (``GPTModule.configure_gradient_clipping``), so bad numbers reach
    neither weights nor optimizer and every checkpoint is good. The host looks only when a log is due.
    """

    def after_step(self, trainer: L.Trainer, module: GPTModule) -> None:
        """Look, if a log is due.

        Raises:
            DivergedError: more steps than ``guard.max_skipped_steps`` were skipped.
        """
        config, step = module.config, trainer.global_step
        if not module.log_is_due():
            return
        skipped = int(module.skipped_steps)
        if trainer.logger is not None:
            trainer.logger.log_metrics({"train/skipped_steps": skipped}, step=step)
        if skipped > config.guard.max_skipped_steps:
            first = int(module.first_skipped_step)
            raise DivergedError(
                f"by step {step}, {skipped} steps had a gradient that is not finite, the first of them step {first} "
                f"(global batch {first - 1} of seed {config.seed}); the last good checkpoint is "
                f"{Path(str(trainer.log_dir)) / LAST}; lower the learning rate, or look at that batch"
            )
