"""The first lines of a run: what is trained, on what, for how long, in how much memory, and what makes no sense."""

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

log = logging.getLogger(__name__)

_MANY_EPOCHS = 100  # by then a text is known by heart


def preflight(
    config: RunConfig, module: GPTModule, data: TokenDataModule, trainer: L.Trainer, run_dir: Path, flags: list[str]
) -> None:
    """Log what a run will be.

    Raises:
        ValueError: a flag was given that would have no effect, or there is no such attention on this device.
    """
    on_gpu = trainer.strategy.root_device.type == "cuda"
    if config.data.document_mask and config.model.dropout > 0 and on_gpu:
        raise UserError("data.document_mask on a GPU uses FlexAttention, which has no dropout; set model.dropout to 0")
    idle = without_effect(config)
    for key, reason in idle.items():
        if any(flag.partition("=")[0] == f"--{key}" for flag in flags):
            raise UserError(f"--{key} would have no effect: {reason}")
    model, options, manifest = config.model, config.trainer, data.manifest
    train_tokens = len(data.train_windows.tokens)
    per_epoch = train_tokens - 1  # the first token is nobody's target
    epochs = options.max_steps * config.tokens_per_step / per_epoch
    parts = memory_estimate(module.model, config, trainer.strategy.root_device)
    lines = [
        f"model: {module.model.num_parameters:,} parameters, {model.num_layers} layers, {model.num_heads} heads, "
        f"d_model {model.d_model}, context {model.context_length}, {manifest.vocab_size} token ids",
        f"data: {config.data.path} (tokenizer {manifest.tokenizer}), {per_epoch:,} tokens an epoch, "
        f"{len(data.val_windows):,} validation windows",
        f"run: {options.max_steps:,} steps of {config.tokens_per_step:,} tokens = {epochs:.2f} epochs; warmup "
        f"{config.optim.warmup_steps:,} steps; validation every "
        f"{options.validate_every_steps:,}; {config.accumulation} x {config.data.micro_batch_size} windows per step"
        + (f" on each of {config.world_size} processes" if config.world_size > 1 else ""),
        f"device: {trainer.strategy.root_device}, {trainer.precision}, {attention_kernel(config, trainer)} attention",
        f"memory: about {_size(sum(parts.values()))} per process beside the libraries ("
        + ", ".join(f"{name} {_size(size)}" for name, size in parts.items())
        + ")",
        f"run folder: {run_dir}",
    ]
    for line in lines:
        log.info("%s", line)
    if config.optim.warmup_steps >= options.max_steps:
        log.warning("the warmup (%d steps) is not over when the run ends", config.optim.warmup_steps)
    if epochs > _MANY_EPOCHS:
        log.warning("the run reads its data %.0f times over: more text, or a smaller trainer.max_steps", epochs)
    for key, reason in idle.items():
        log.warning("%s has no effect: %s", key, reason)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.1f} GiB" if num_bytes >= 2**30 else f"{num_bytes / 2**20:.1f} MiB"


def without_effect(config: RunConfig) -> dict[str, str]:
    """Keys that were changed from their default and that nothing will look at, with the reason."""
    optim, default = config.optim, OptimConfig()
    idle: dict[str, str] = {}
    if optim.name != "muon":
        for name in ("muon_learning_rate", "muon_momentum"):
            if getattr(optim, name) != getattr(default, name):
                idle[f"optim.{name}"] = f"optim.name is {optim.name}"
    if optim.schedule != "wsd" and optim.decay_fraction != default.decay_fraction:
        idle["optim.decay_fraction"] = f"optim.schedule is {optim.schedule}"
    if optim.schedule == "constant" and optim.min_learning_rate != default.min_learning_rate:
        idle["optim.min_learning_rate"] = "optim.schedule is constant"
    return idle


def memory_estimate(model: GPT, config: RunConfig, device: torch.device) -> dict[str, int]:
    """Bytes that training will hold in one process, by what they are for; an estimate for planning.

    Args:
        device: a CPU works some of it out again instead of keeping it, and holds fewer logits at once.
    """
    weights = 4 * model.num_parameters
    averaged_once = sum(p.numel() for n, p in model.named_parameters() if ".blocks." in n and p.ndim >= 2)
    optimizer = 2 * weights - (4 * averaged_once if config.optim.name == "muon" else 0)
    all_logits = config.data.micro_batch_size * model.config.context_length * model.config.vocab_size
    return {
        "weights": weights,
        "gradients": weights,
        "optimizer": optimizer,
        "activations": activation_bytes(model.config, config.data.micro_batch_size, device.type == "cpu"),
        "loss": 3 * 4 * min(max_chunk_logits(device), all_logits) + 2 * 4 * model.lm_head_weight.numel(),
    }


def activation_bytes(config: GPTConfig, batch_size: int, on_cpu: bool) -> int:
    """Bytes that the transformer's backward pass needs from the forward pass, in float32.

    Counted per token, in vectors of width d_model. A block keeps: its two inputs (2), queries, keys and values (3), the
    heads' output (1), and the expanded vector of four times the width (4). A GPU also keeps the normalised copies of
    the inputs (2) and the activated vector (4). With dropout, a CPU also keeps the attention weights and masks.
    """
    tokens = batch_size * config.context_length
    per_block = (2 + 3 + 1 + 4 + (0 if on_cpu else 2 + 4)) * config.d_model
    if config.dropout > 0:
        per_block += 2 * config.d_model + 3 * config.num_heads * config.context_length
    return 4 * tokens * (config.num_layers * per_block + 2 * config.d_model)


def attention_kernel(config: RunConfig, trainer: L.Trainer) -> str:
    """Which of torch's attention kernels will run, in its own words."""
    device = trainer.strategy.root_device.type
    if device == "cuda" and config.data.document_mask:
        return "flex"
    if device == "cuda":
        half = trainer.precision == "bf16-mixed" and torch.backends.cuda.flash_sdp_enabled()  # type: ignore[no-untyped-call]
        return "flash" if half else "memory-efficient"
    # On a CPU, dropout on the weights leaves only the kernel that holds them.
    return "math" if config.model.dropout > 0 or device == "mps" else "flash"
