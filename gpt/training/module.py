"""The Lightning module; ``gpt.training.step`` has an optimizer step in order."""

import os
import platform
import subprocess
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor

import gpt
from gpt.checkpoint import FORMAT_VERSION, tokenizer_values
from gpt.data.manifest import Manifest
from gpt.data.windows import TrainingBatch, Window
from gpt.errors import UserError
from gpt.evaluation import Evaluation, LossTotals, loss_by_position
from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.masks import document_ids
from gpt.model.transformer import GPT
from gpt.training.activation_checkpointing import checkpoint_activations
from gpt.training.config import RunConfig
from gpt.training.cpu_memory import reduce_cpu_memory
from gpt.training.optim import build_optimizer, learning_rate_factor


class GPTModule(L.LightningModule):
    """Trains a GPT on micro-batches of a global batch; any ``L.Trainer`` can fit it."""

    def __init__(self, config: RunConfig, manifest: Manifest) -> None:
        super().__init__()
        self.config = config
        self.manifest = manifest
        shape = {**asdict(config.model), "vocab_size": manifest.vocab_size}
        tokenizer = tokenizer_values(manifest.open_tokenizer(Path(config.data.path)))
        plain_values = {"model": shape, **tokenizer, "document_mask": config.data.document_mask}
        self.save_hyperparameters(plain_values, logger=False)  # torch.load(weights_only=True) refuses other types
        self.model = GPT(GPTConfig(**shape))
        self.is_loss_compiled = False
        # Of the current optimizer step. They stay on the GPU: reading them would make the CPU wait for it.
        self.train_loss = torch.zeros(())
        self.gradient_norm = torch.zeros(())
        # Of the whole run: the number of skipped steps, and the first of them.
        self.skipped_steps = torch.zeros(())
        self.first_skipped_step = torch.zeros(())
        self.evaluation: Evaluation | None = None
        self.loss_by_position: tuple[list[int], list[float]] = [], []
        self.evaluated_step = -1
        self.git_revision = _git_revision()  # now, since the source tree may change during the run
        self._mask_eot_id = manifest.eot_id if config.data.document_mask else None
        self._val_totals = LossTotals(self._mask_eot_id)

    def completes_step(self, batch: TrainingBatch) -> bool:
        """Whether this micro-batch is the last of its optimizer step."""
        return (batch["number"] + 1) % self.config.accumulation == 0

    def is_log_due(self) -> bool:
        """Whether the step just completed is logged: with one process, only then does the CPU wait for a CUDA GPU."""
        options = self.config.trainer
        return self.global_step in (1, options.max_steps) or self.global_step % options.log_every_n_steps == 0

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Build the optimizer and a learning rate schedule per optimizer step."""
        optim, max_steps = self.config.optim, self.config.trainer.max_steps
        optimizer = build_optimizer(self.model, optim)
        if self.device.type == "cpu":
            reduce_cpu_memory(self.model, optimizer)  # also replaces the forward pass of the blocks
        if self.config.trainer.activation_checkpointing:
            checkpoint_activations(self.model)
        factor = partial(learning_rate_factor, config=optim, max_steps=max_steps)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_fit_start(self) -> None:
        """Check the Trainer's gradient accumulation, and move the counters to the device of the gradients."""
        if (given := self.trainer.accumulate_grad_batches) != (needed := self.config.accumulation):
            raise UserError(f"the Trainer's accumulate_grad_batches is {given}; the config's batch sizes need {needed}")
        self.skipped_steps = self.skipped_steps.to(self.device)
        self.first_skipped_step = self.first_skipped_step.to(self.device)

    def on_train_start(self) -> None:
        """Set the learning rate from this run's schedule: a resumed run may have another ``max_steps``."""
        schedule = self.lr_schedulers()
        assert isinstance(schedule, torch.optim.lr_scheduler.LambdaLR)
        factor = learning_rate_factor(schedule.last_epoch, self.config.optim, self.config.trainer.max_steps)
        for group, base_lr in zip(schedule.optimizer.param_groups, schedule.base_lrs, strict=True):
            group["lr"] = base_lr * factor

    def training_step(self, batch: TrainingBatch, batch_idx: int) -> Tensor:
        """Return this micro-batch's share of the mean loss over the global batch."""
        self._seed_dropout(batch["number"])
        hidden = self.model.transformer(batch["inputs"], document_ids(batch["inputs"], self._mask_eot_id))
        loss_sum = next_token_loss(hidden, self.model.lm_head_weight, batch["targets"], self.is_loss_compiled)
        share = loss_sum / batch["global_targets"]
        is_first = batch["number"] % self.config.accumulation == 0
        self.train_loss = share.detach() if is_first else self.train_loss + share.detach()
        # Lightning divides by the number of micro-batches, and data parallelism averages over ranks; the share is
        # normalised already, so this undoes both.
        return share * (self.config.accumulation * self.trainer.world_size)

    def configure_gradient_clipping(self, optimizer: torch.optim.Optimizer, *options: Any, **more: Any) -> None:
        """Clip the gradient norm, and skip the step if it is not finite."""
        max_norm = self.config.trainer.gradient_clip_val or float("inf")
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.parameters(), max_norm)
        # PyTorch's fused optimizers read found_inf, made for GradScaler: where it is 1, they leave weights and state as
        # they are, and the CPU need not wait to know. On MPS they ignore it, but pass over a gradient that is None.
        # The norm is of the gradient averaged over ranks, so a loss that is not finite on one rank skips on all.
        is_skipped = optimizer.found_inf = (~self.gradient_norm.isfinite()).float()  # type: ignore[attr-defined]
        if self.device.type == "mps" and is_skipped:
            optimizer.zero_grad(set_to_none=True)
        is_first = is_skipped * (self.skipped_steps == 0)
        self.first_skipped_step = self.first_skipped_step + is_first * (self.global_step + 1)
        self.skipped_steps = self.skipped_steps + is_skipped

    def validation_step(self, batch: Window, batch_idx: int) -> None:
        """Add a batch of the validation split."""
        self._val_totals.add(self.model, batch)

    def on_validation_epoch_end(self) -> None:
        """Compute loss, perplexity, bits per byte and loss by position of the whole split, over all ranks."""
        # NCCL reduces on the GPU only, and MPS has no float64.
        totals = self._val_totals.totals().to(self.device if self.trainer.world_size > 1 else "cpu")
        self._val_totals = LossTotals(self._mask_eot_id)
        totals = self.trainer.strategy.reduce(totals, reduce_op="sum").cpu()
        nats, tokens = totals.sum(dim=1).tolist()
        self.evaluated_step = self.global_step
        self.loss_by_position = loss_by_position(totals)
        self.evaluation = Evaluation.from_totals(nats, int(tokens), self.manifest.splits["val"].utf8_bytes)
        # For Lightning's own callbacks and progress bar, such as ModelCheckpoint(monitor="val_loss_nats").
        self.log("val_loss_nats", self.evaluation.loss_nats, prog_bar=True, logger=False, sync_dist=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add format, counters and provenance, as plain values."""
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
            "config": asdict(self.config),
            "val_loss_nats": evaluation.loss_nats if evaluation else None,
            "val_bits_per_byte": evaluation.bits_per_byte if evaluation else None,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Restore the counters, and Lightning's count of micro-batches in this run's micro-batch size."""
        self.skipped_steps, self.first_skipped_step = torch.tensor(checkpoint["skipped_steps"]).float()
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        # Lightning derives the end of a step from it; a resume may change micro_batch_size or the number of processes.
        difference = progress["total"]["ready"] - checkpoint["global_step"] * self.config.accumulation
        for counts in (progress["total"], progress["current"]):
            for name in ("ready", "started", "processed", "completed"):
                counts[name] -= difference

    def _seed_dropout(self, number: int) -> None:
        # Dropout masks depend on seed, micro-batch number and rank only: not on sampling or validation in between, and
        # not on a resume. (torch.manual_seed would cost 0.3 ms.)
        seed = _mixed_seed(self.config.seed, number, self.trainer.global_rank)
        torch.default_generator.manual_seed(seed)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(seed)
        elif self.device.type == "mps":
            torch.mps.manual_seed(seed)


def _mixed_seed(seed: int, number: int, rank: int) -> int:
    """Hash to 63 bits (as SplitMix64), so that neighbours get unrelated seeds; a CPU generator uses the lower 32."""
    for part in (number, rank):
        seed = (seed * 0x9E3779B97F4A7C15 + part + 1) % 2**64
        seed = (seed ^ seed >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        seed ^= seed >> 27
    return seed % 2**63


def _git_revision() -> str | None:
    """Commit of the source tree, with ``-dirty`` if it has changes; None unless it is this project's git repository."""
    root = Path(gpt.__file__).parents[1]
    command = ["git", "-c", "core.fsmonitor=false", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CEILING_DIRECTORIES": str(root.parent), "GIT_OPTIONAL_LOCKS": "0"}
    with suppress(OSError, subprocess.SubprocessError):
        if (root / ".git").exists() and 'name = "mini-gpt"' in (root / "pyproject.toml").read_text(encoding="utf-8"):
            return subprocess.check_output(
                command, cwd=root, env=environment, stderr=subprocess.DEVNULL, text=True, timeout=10
            ).strip()
    return None
