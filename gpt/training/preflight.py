"""The first lines of a run: what is trained on what, for how long, in how much memory, and what looks wrong."""

import logging
from pathlib import Path

import lightning as L
import torch

from gpt.errors import UserError
from gpt.model.config import GPTConfig
from gpt.model.loss import max_chunk_logits
from gpt.model.transformer import GPT
from gpt.training.config import OptimConfig, RunConfig
from gpt.training.datamodule import TokenDataModule
from gpt.training.module import GPTModule
from gpt.training.speed import seconds_per_step, utilisation

log = logging.getLogger(__name__)

_MANY_EPOCHS = 100  # beyond this the model memorises the text


def preflight(
    config: RunConfig,
    module: GPTModule,
    data: TokenDataModule,
    trainer: L.Trainer,
    run_dir: Path,
    flags: list[str],
    times_steps: bool,
) -> None:
    """Log what a run will do, and, if it ``times_steps``, what it will cost; refuse flags that have no effect."""
    device = trainer.strategy.root_device
    if config.data.document_mask and config.model.dropout > 0 and device.type == "cuda":
        raise UserError("data.document_mask on a GPU uses FlexAttention, which has no dropout; set model.dropout to 0")
    for key, reason in unused_keys(config).items():
        if any(flag.partition("=")[0] == f"--{key}" for flag in flags):
            raise UserError(f"--{key} has no effect: {reason}")
        log.warning("%s has no effect: %s", key, reason)
    model, options, optim = config.model, config.trainer, config.optim
    tokens_per_epoch = len(data.train_windows.tokens) - 1  # the first token is not a target
    epochs = options.max_steps * config.tokens_per_step / tokens_per_epoch
    memory = memory_estimate(module.model, config, device)
    processes = f" on each of {config.world_size} processes" if config.world_size > 1 else ""
    parts = ", ".join(f"{name} {format_bytes(size)}" for name, size in memory.items())
    log.info(
        f"model: {module.model.num_parameters:,} parameters, {model.num_layers} layers, {model.num_heads} heads, "
        f"d_model {model.d_model}, context {model.context_length}, {data.manifest.vocab_size} token ids\n"
        f"data: {config.data.path} (tokenizer {data.manifest.tokenizer}), {tokens_per_epoch:,} tokens per epoch, "
        f"{len(data.val_windows):,} validation windows\n"
        f"run: {options.max_steps:,} steps of {config.tokens_per_step:,} tokens = {epochs:.2f} epochs; warmup "
        f"{optim.warmup_steps:,} steps; validation every {options.validate_every_steps:,}; {config.accumulation} x "
        f"{config.data.micro_batch_size} sequences per step{processes}\n"
        f"device: {device}, {trainer.precision}, {attention_kernel(config, trainer)} attention\n"
        f"memory: about {format_bytes(sum(memory.values()))} per process, without libraries ({parts})\n"
        f"run folder: {run_dir}"
    )
    if optim.warmup_steps >= options.max_steps:
        log.warning("the run ends before its warmup (%d steps)", optim.warmup_steps)
    if epochs > _MANY_EPOCHS:
        log.warning("the run has %.0f epochs: use more text, or a smaller trainer.max_steps", epochs)
    if times_steps:
        _log_cost(module, data, trainer)


def _log_cost(module: GPTModule, data: TokenDataModule, trainer: L.Trainer) -> None:
    """Log how fast some timed steps were, and how long the run would take at that speed, without validations."""
    config, device = module.config, trainer.strategy.root_device
    seconds = seconds_per_step(module, data, trainer)
    rate = config.tokens_per_step / seconds / config.world_size
    said = utilisation(rate, module, device, trainer.precision)
    hours = seconds * config.trainer.max_steps / 3600
    duration = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    log.info(
        f"cost: {rate:,.0f} tokens/s in a few timed micro-batches{said}, uncompiled and by one process; "
        f"the run takes about {duration}, without validation"
    )


def format_bytes(num_bytes: int) -> str:
    """A size in MiB or GiB."""
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def unused_keys(config: RunConfig) -> dict[str, str]:
    """Keys that differ from their default but are not used by this config, with the reason."""
    optim = config.optim
    reasons: dict[str, str] = {}
    if optim.name != "muon":
        reasons |= dict.fromkeys(("muon_learning_rate", "muon_momentum"), f"optim.name is {optim.name}")
    if optim.schedule != "wsd":
        reasons["decay_fraction"] = f"optim.schedule is {optim.schedule}"
    if optim.schedule == "constant":
        reasons["min_learning_rate"] = "optim.schedule is constant"
    return {f"optim.{k}": why for k, why in reasons.items() if getattr(optim, k) != getattr(OptimConfig(), k)}


def memory_estimate(model: GPT, config: RunConfig, device: torch.device) -> dict[str, int]:
    """Bytes that training holds in one process, by purpose; an estimate for planning."""
    weights = 4 * model.num_parameters
    muon_parameters = sum(p.numel() for n, p in model.named_parameters() if ".blocks." in n and p.ndim >= 2)
    all_logits = config.data.micro_batch_size * model.config.context_length * model.config.vocab_size
    return {
        "weights": weights,
        "gradients": weights,
        "optimizer": 2 * weights - (4 * muon_parameters if config.optim.name == "muon" else 0),
        "activations": activation_bytes(
            model.config,
            config.data.micro_batch_size,
            device.type == "cpu",
            config.trainer.activation_checkpointing,
        ),
        # At most logits, log-probabilities and their gradient of a chunk; the padded LM head and its gradient.
        "loss": 3 * 4 * min(max_chunk_logits(device), all_logits) + 2 * 4 * model.lm_head_weight.numel(),
    }


def activation_bytes(config: GPTConfig, batch_size: int, on_cpu: bool, is_checkpointed: bool = False) -> int:
    """Bytes of activations saved for the backward pass, in float32.

    Per token and block, in vectors of width d_model: its two inputs (2), their layer norms (2), queries, keys and
    values (3), the heads' output (1), the MLP's expanded vector (4); on a GPU also its activation (4), which a CPU
    recomputes. With dropout, also its masks, and on a CPU the attention weights, which CUDA's kernels do not store.
    With activation checkpointing, all of that for one block, and of each block its input.
    """
    tokens = batch_size * config.context_length
    per_block = (2 + 2 + 3 + 1 + 4 + (0 if on_cpu else 4)) * config.d_model
    if config.dropout > 0:
        per_block += 2 * config.d_model + (3 * config.num_heads * config.context_length if on_cpu else 0)
    blocks = config.num_layers * config.d_model + per_block if is_checkpointed else config.num_layers * per_block
    return 4 * tokens * (blocks + 2 * config.d_model)


def attention_kernel(config: RunConfig, trainer: L.Trainer) -> str:
    """Name of the attention kernel that will run."""
    device = trainer.strategy.root_device.type
    if device == "cuda":
        is_flash = trainer.precision == "bf16-mixed" and torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
        return "flex" if config.data.document_mask else "flash" if is_flash else "memory-efficient"
    # On a CPU, dropout on attention weights falls back to the kernel that materialises them.
    return "math" if config.model.dropout > 0 or device == "mps" else "flash"
