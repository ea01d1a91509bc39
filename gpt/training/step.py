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
import math
from pathlib import Path
from typing import Any, NoReturn

import lightning as L
from lightning.pytorch.callbacks import Checkpoint

from gpt.checkpoint import BEST, is_finite
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
    """More steps than ``guard.max_skipped_steps`` were skipped, or the validation loss is not finite."""

    exit_status = 1


class StepCallback(Checkpoint):
    """What follows each step and each validation; being a ``Checkpoint``, it keeps Lightning from adding its own."""

    def __init__(self, data: TokenDataModule, run_dir: Path) -> None:
        self.training_log = TrainingLog(data.config)
        self.attention = AttentionCapture(data) if data.config.attention_maps.enabled else None
        self.checkpoints = RunCheckpoints(run_dir, data.config.checkpoint.keep_last, data.config.trainer.patience)
        self.interruption = Interruption(self.checkpoints)
        self._data = data
        self._has_started = self._is_validating = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._has_started = True
        self.training_log.start(trainer)
        if self.attention and trainer.global_step == 0:
            self.attention.capture(trainer, pl_module)
        self.interruption.take_signals()
        trainer._signal_connector.received_sigterm = False  # of an earlier SIGTERM, which ``Interruption`` has seen

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
        self.checkpoints.after_step(trainer, pl_module)
        self.interruption.after_step(trainer, pl_module.config)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._is_validating = True
        self.training_log.before_validation(trainer, pl_module)

    def on_validation_batch_end(self, trainer: L.Trainer, *args: Any) -> None:
        self.interruption.in_validation(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._is_validating = False
        assert isinstance(pl_module, GPTModule)
        assert pl_module.evaluation is not None
        self.training_log.after_validation(trainer, pl_module)
        if self.attention:
            self.attention.after_validation(trainer, pl_module)
        if not math.isfinite(loss := pl_module.evaluation.loss_nats):
            self._diverged(trainer, f"the validation loss at step {trainer.global_step} is {loss}")
        if trainer.is_global_zero and pl_module.config.trainer.sample_tokens > 0:
            self._sample(trainer, pl_module)
        self.checkpoints.after_validation(trainer, pl_module.evaluation)
        self.interruption.after_validation(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.training_log.close()
        if self.attention:
            self.attention.capture(trainer, pl_module, is_last=True)  # no effect if this step is captured already
        assert isinstance(pl_module, GPTModule)
        if trainer.is_global_zero and pl_module.skipped_steps:
            log.warning("skipped: %s", _skipped(pl_module))

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self.training_log.close()
        if self.attention and self._has_started and isinstance(exception, SystemExit | DivergedError):
            self.attention.capture(trainer, pl_module, is_last=True)

    def state_dict(self) -> dict[str, Any]:
        saved = self.checkpoints
        return {"best_loss": saved.best_loss, "validations_since_best": saved.validations_since_best}

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        if not is_finite(pl_module.parameters()):
            self._diverged(trainer, f"the weights at step {trainer.global_step} are not finite")
        if self._is_validating:  # these counts make Lightning begin with the validation, from its first batch
            counts = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
            progress |= {"total": counts, "current": counts}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.checkpoints.best_loss = state_dict["best_loss"]
        self.checkpoints.validations_since_best = state_dict.get("validations_since_best", 0)

    def _stop_if_diverged(self, trainer: L.Trainer, module: GPTModule) -> None:
        if not module.is_log_due():
            return
        skipped = int(module.skipped_steps)
        if skipped > module.config.guard.max_skipped_steps:
            self._diverged(trainer, f"by step {trainer.global_step}, {_skipped(module)}")

    def _diverged(self, trainer: L.Trainer, reason: str) -> NoReturn:
        if not trainer.is_global_zero:
            raise SystemExit(0)  # the first process reports; a launcher would kill it if another one failed
        best, loss = self.checkpoints.folder / BEST, self.checkpoints.best_loss
        kept = f"{best} has a validation loss of {loss:.4f} nats" if best.exists() else "no validated checkpoint exists"
        raise DivergedError(f"{reason}; {kept}. Lower optim.learning_rate, or look at the batch of that step")

    def _sample(self, trainer: L.Trainer, module: GPTModule) -> None:
        """Continue the prompt, with the same seed at each validation, for the log and TensorBoard's Text tab."""
        request = Request(module.config.trainer.sample_tokens, _SAMPLING)
        prompt_ids = self._data.tokenizer.encode(self._data.prompt)
        (continuation,) = generate(module.model, self._data.tokenizer, [prompt_ids], request, seeds=[0])
        text = self._data.prompt + continuation.text
        printable = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)  # a young byte model
        self.training_log.print(f"\n--- sample of the model ---\n{printable}\n---\n")
        # Indented by four spaces it is a code block in Markdown, which keeps line breaks and symbols.
        markdown = "\n".join(f"    {line}" for line in text.splitlines())
        trainer.logger.experiment.add_text("sample", markdown, trainer.global_step)  # type: ignore[union-attr]


def _skipped(module: GPTModule) -> str:
    count, first = int(module.skipped_steps), int(module.first_skipped_step)
    return (
        f"{count} {'step' if count == 1 else 'steps'} had a gradient that is not finite, the first of them step "
        f"{first} (global batch {first - 1} of seed {module.config.seed})"
    )
