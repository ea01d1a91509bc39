"""One optimizer step, in order. Lightning runs the loop, and calls these methods (its hooks) by their names.

A global batch is the sequences of one optimizer step. Each rank (process) computes its part in micro-batches, which are
numbered over the run, and accumulates their gradients.

    (next micro-batch)           from the loader of TokenDataModule: a pure function of seed and number
    on_train_batch_start         StepCallback: start the clock
    training_step                GPTModule: seed dropout; forward pass; the micro-batch's share of the mean loss
    (backward pass)              Lightning; all of the above accumulate_grad_batches times
    configure_gradient_clipping  GPTModule: clip the norm; skip the step on the device if it is not finite
    (optimizer, schedule)        Lightning: AdamW, or Muon with AdamW; the learning rate of the next step
    on_train_batch_end           StepCallback: log, capture attention, stop if diverged, save, stop if asked to

    Every validate_every_steps and at the last step:
    validation_step              GPTModule: the summed loss of a batch; all batches cover the split once
    on_validation_epoch_end      GPTModule: loss, perplexity, bits per byte over all ranks
    on_validation_end            StepCallback: log, sample a text, save (last.ckpt, best.ckpt), stop if asked to

Lightning's own ways that are replaced, and why (docs/experiments.md has the figures):

- ``self.log`` and ``TQDMProgressBar`` take 1 ms each per step, whether or not a log is due. Here: ``TrainingLog``.
- ``ModelCheckpoint`` saves before a validation at the same step, which a resume then omits. Here: ``RunCheckpoints``.
- ``Trainer(max_time=...)`` stops in the middle of an accumulation; a signal saves nothing. Here: ``Interruption``.
- A checkpoint file is not synced and can be half written. Here: ``AtomicCheckpointIO``.
- On a resume, Lightning drops a batch of a loader that has no length. Here: ``TrainingLoader``, which has one.
- ``Trainer(gradient_clip_val=...)`` does not give the norm. Here: ``configure_gradient_clipping``.
"""

import logging
from pathlib import Path
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from gpt.checkpoint import BEST
from gpt.data.windows import TrainingBatch
from gpt.errors import UserError
from gpt.generation.generate import Request, generate
from gpt.generation.sampling import Sampling
from gpt.training.attention_capture import AttentionCapture
from gpt.training.checkpoints import Interruption, RunCheckpoints
from gpt.training.datamodule import TokenDataModule
from gpt.training.module import GPTModule
from gpt.training.training_log import TrainingLog

log = logging.getLogger(__name__)

_SAMPLING = Sampling(temperature=0.8, top_k=50)


class DivergedError(UserError):
    """More steps than ``guard.max_skipped_steps`` were skipped."""

    exit_status = 1


class StepCallback(Checkpoint):
    """What follows each step and each validation; being a ``Checkpoint``, it keeps Lightning from adding its own."""

    def __init__(self, data: TokenDataModule, run_dir: Path) -> None:
        self.training_log = TrainingLog(data.config)
        self.attention = AttentionCapture(data) if data.config.attention_maps.enabled else None
        self.checkpoints = RunCheckpoints(run_dir, data.config.checkpoint.keep_last)
        self.interruption = Interruption(self.checkpoints)
        self.sample = ""
        self._tokenizer = data.tokenizer

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.training_log.start(trainer)
        if self.attention and trainer.global_step == 0:
            self.attention.capture(trainer, pl_module)
        self.interruption.take_sigterm(trainer)

    def on_train_batch_start(self, *args: Any) -> None:
        self.training_log.start_clock()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: TrainingBatch, batch_idx: int
    ) -> None:
        assert isinstance(pl_module, GPTModule)
        if not pl_module.completes_step(batch):
            return
        self.training_log.after_step(trainer, pl_module)
        if self.attention:
            self.attention.after_step(trainer, pl_module)
        self._stop_if_diverged(trainer, pl_module)
        self.checkpoints.after_step(trainer, pl_module.config)
        self.interruption.after_step(trainer, pl_module.config)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.training_log.before_validation(trainer, pl_module)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        assert isinstance(pl_module, GPTModule)
        assert pl_module.evaluation is not None
        self.training_log.after_validation(trainer, pl_module.evaluation)
        if trainer.is_global_zero and pl_module.config.trainer.sample_tokens > 0:
            self._sample(trainer, pl_module)
        self.checkpoints.after_validation(trainer, pl_module.evaluation)
        self.interruption.after_validation(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.training_log.close()
        if self.attention:
            self.attention.capture(trainer, pl_module, is_last=True)  # no effect if this step is captured already

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.training_log.close()
        if self.attention and isinstance(exception, SystemExit | DivergedError):
            self.attention.capture(trainer, pl_module, is_last=True)

    def state_dict(self) -> dict[str, Any]:
        return {"best_loss": self.checkpoints.best_loss}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.checkpoints.best_loss = state_dict["best_loss"]

    def _stop_if_diverged(self, trainer: L.Trainer, module: GPTModule) -> None:
        if not module.is_log_due():
            return
        step, skipped, first = trainer.global_step, int(module.skipped_steps), int(module.first_skipped_step)
        if trainer.logger is not None:
            trainer.logger.log_metrics({"train/skipped_steps": skipped}, step=step)
        if skipped <= module.config.guard.max_skipped_steps:
            return
        if not trainer.is_global_zero:
            raise SystemExit(0)  # the first process reports; a launcher would kill it if another one failed
        raise DivergedError(
            f"by step {step}, {skipped} steps had a gradient that is not finite, the first of them step {first} "
            f"(global batch {first - 1} of seed {module.config.seed}); the weights of the lowest validation loss, if "
            f"one was finite, are in {self.checkpoints.folder / BEST}; lower the learning rate, or look at that batch"
        )

    def _sample(self, trainer: L.Trainer, module: GPTModule) -> None:
        """Generate from an empty prompt, with the same seed at each validation, for TensorBoard's Text tab."""
        try:
            request = Request(module.config.trainer.sample_tokens, _SAMPLING)
            (continuation,) = generate(module.model, self._tokenizer, [[]], request, seeds=[0])
        except UserError as error:  # the model has diverged; it is still saved
            log.warning("no sample: %s", error)
            return
        self.sample = continuation.text
        # Indented by four spaces it is a code block in Markdown, which keeps line breaks and symbols.
        markdown = "\n".join(f"    {line}" for line in self.sample.splitlines())
        trainer.logger.experiment.add_text("sample", markdown, trainer.global_step)  # type: ignore[union-attr]
