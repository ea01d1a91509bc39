"""The Lightning module: one step shared by training and validation, and what a step must remember."""

import platform
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

import gpt
from gpt.checkpoint import FORMAT_VERSION
from gpt.data.manifest import Manifest
from gpt.data.windows import TrainingBatch, Window
from gpt.evaluation import Evaluation, LossTotals
from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.masks import document_ids
from gpt.model.transformer import GPT
from gpt.training.config import RunConfig
from gpt.training.cpu_memory import reduce_cpu_memory
from gpt.training.optim import build_optimizer, learning_rate_factor


class GPTModule(L.LightningModule):
    """Trains a GPT on micro-batches of a global batch.

    Args:
        manifest: of the data: its vocabulary is the model's, and its hash goes into the checkpoint.
    """

    def __init__(self, config: RunConfig, manifest: Manifest) -> None:
        super().__init__()
        self.config = config
        self.manifest = manifest
        shape = {**asdict(config.model), "vocab_size": manifest.vocab_size}
        # Plain values only: dataclasses, paths and the like save well and then do not load safely.
        plain = {"model": shape, "tokenizer": manifest.tokenizer, "document_mask": config.data.document_mask}
        self.save_hyperparameters(plain, logger=False)
        self.model = GPT(GPTConfig(**shape))
        self.compiled_loss = False
        # Of the optimizer step under way: tensors on the device, read by whoever logs, so that no step waits.
        self.train_loss = torch.zeros(())
        self.gradient_norm = torch.zeros(())
        # Of the whole run so far: how many steps were void, and which was the first of them.
        self.skipped_steps = torch.zeros(())
        self.first_skipped_step = torch.zeros(())
        self.evaluation: Evaluation | None = None
        self.evaluated_step = -1
        self.git_revision = git_revision()  # now: later on, the tree may have changed under the run
        self._document_eot = manifest.eot_id if config.data.document_mask else None
        self._val_totals = LossTotals()

    def ends_step(self, batch: TrainingBatch) -> bool:
        """Whether the micro-batch completes an optimizer step, rather than lie in the middle of an accumulation."""
        return (batch["number"] + 1) % self.config.accumulation == 0

    def log_is_due(self) -> bool:
        """Whether the step just done is one that is logged: the only ones at which anybody asks the device."""
        step, options = self.global_step, self.config.trainer
        return step in (1, options.max_steps) or step % options.log_every_n_steps == 0

    def on_train_start(self) -> None:
        """Have the learning rate follow this run's schedule at once, also where a continued run has another length."""
        scheduler = self.lr_schedulers()
        assert isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR)
        for group, base, factor in zip(
            scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
        ):
            group["lr"] = base * factor(scheduler.last_epoch)

    def on_fit_start(self) -> None:
        """Have the counters where the gradients are."""
        self.skipped_steps = self.skipped_steps.to(self.device)
        self.first_skipped_step = self.first_skipped_step.to(self.device)

    def training_step(self, batch: TrainingBatch, batch_idx: int) -> Tensor:
        """This micro-batch's share of the mean loss over the global batch."""
        self._seed_generators(batch["number"])
        hidden = self.model.transformer(batch["inputs"], document_ids(batch["inputs"], self._document_eot))
        loss_sum = next_token_loss(hidden, self.model.lm_head_weight, batch["targets"], self.compiled_loss)
        share = loss_sum / batch["global_targets"]
        first_of_step = batch["number"] % self.config.accumulation == 0
        self.train_loss = share.detach() if first_of_step else self.train_loss + share.detach()
        # Lightning divides by the number of micro-batches, and data parallelism averages over ranks: both are
        # undone, since the share is already one of the whole.
        return share * (self.config.accumulation * self.trainer.world_size)

    def on_validation_epoch_start(self) -> None:
        """Start adding up."""
        self._val_totals = LossTotals(self._document_eot)

    def validation_step(self, batch: Window, batch_idx: int) -> None:
        """Add a batch of the validation split."""
        self._val_totals.add(self.model, batch)

    def on_validation_epoch_end(self) -> None:
        """Put the whole split's loss into measures, over all ranks."""
        totals = self._val_totals.totals().to(self.device if self.trainer.world_size > 1 else "cpu")
        nats, tokens = self.trainer.strategy.reduce(totals, reduce_op="sum").tolist()
        self.evaluated_step = self.global_step
        self.evaluation = Evaluation.from_totals(nats, int(tokens), self.manifest.splits["val"].utf8_bytes)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """The optimizer, and a learning rate for each of its steps."""
        optim, max_steps = self.config.optim, self.config.trainer.max_steps
        optimizer = build_optimizer(self.model, optim)
        if self.device.type == "cpu":
            reduce_cpu_memory(self.model, optimizer)
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: learning_rate_factor(step, optim, max_steps)
        )
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Scale the gradient down to the largest allowed norm, and void the step if it is not finite."""
        limit = self.config.trainer.gradient_clip_val or float("inf")
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.parameters(), limit, foreach=True)
        # A step that is not finite is void: fused optimizers look at this flag on the device, and nothing waits.
        # The norm tells for all: a loss that is not finite has gradients that are not, on every rank.
        bad = (~self.gradient_norm.isfinite()).float()
        optimizer.found_inf = bad  # type: ignore[attr-defined]
        this_step = torch.full_like(bad, self.global_step + 1)
        self.first_skipped_step = torch.where((bad > 0) & (self.skipped_steps == 0), this_step, self.first_skipped_step)
        self.skipped_steps = self.skipped_steps + bad

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Say what the file is and where it comes from, in plain values."""
        evaluation = self.evaluation if self.evaluated_step == self.global_step else None
        checkpoint["format_version"] = FORMAT_VERSION
        checkpoint["skipped_steps"] = [int(self.skipped_steps), int(self.first_skipped_step)]
        checkpoint["provenance"] = {
            "mini_gpt": gpt.__version__,
            "torch": str(torch.__version__),
            "lightning": L.__version__,
            "python": platform.python_version(),
            "git_revision": self.git_revision,
            "manifest_sha256": self.manifest.sha256,
            "val_loss_nats": evaluation.loss_nats if evaluation else None,
            "val_bits_per_byte": evaluation.bits_per_byte if evaluation else None,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Count the micro-batches done in this run's own: devices and micro-batch size may have changed."""
        self.skipped_steps, self.first_skipped_step = torch.tensor(checkpoint.get("skipped_steps", [0, 0])).float()
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        done = checkpoint["global_step"] * self.config.accumulation
        surplus = progress["total"]["ready"] - done  # of Lightning's count, made with another accumulation
        for counts in (progress["total"], progress["current"]):
            for name in ("ready", "started", "processed", "completed"):
                counts[name] -= surplus

    def _seed_generators(self, number: int) -> None:
        # Dropout of a micro-batch depends on its number alone: not on what was sampled, watched or validated
        # before it, nor on whether the run was interrupted. (torch.manual_seed would cost 0.3 ms.)
        seed = _mixed_seed(self.config.seed, number, self.trainer.global_rank)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(seed)
        elif self.device.type == "mps":
            torch.mps.manual_seed(seed)


def _mixed_seed(seed: int, number: int, rank: int) -> int:
    """A well spread 64-bit seed for each (seed, number, rank); a CPU generator uses its lower 32 bits."""
    value = seed
    for part in (number, rank):
        value = (value * 0x9E3779B97F4A7C15 + part + 1) % 2**64
        value ^= value >> 30
        value = value * 0xBF58476D1CE4E5B9 % 2**64
        value ^= value >> 27
    return value % 2**63


def git_revision() -> str | None:
    """The commit of the source tree that runs, with ``-dirty`` if it was changed; None outside a repository."""
    try:
        command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
        answer = subprocess.run(
            command, cwd=Path(gpt.__file__).parent, capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip() or None
