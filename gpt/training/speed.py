"""How fast a run will be: a few timed micro-batches, and the share of the device's peak that they reach."""

import time
from typing import Any

import lightning as L
import torch

from gpt.data.windows import TrainingBatches
from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.masks import document_ids
from gpt.training.datamodule import TokenDataModule
from gpt.training.module import GPTModule

_MICRO_BATCHES = 3  # timed, after one that is not
# Dense peak in FLOP/s with float32 accumulation, by the beginning of the device's name and the precision: NVIDIA's data
# sheets. Whatever is not listed has no known share.
_PEAKS = {
    ("Tesla T4", "16-mixed"): 65e12,
    ("Tesla V100", "16-mixed"): 125e12,
    ("NVIDIA A100", "bf16-mixed"): 312e12,
    ("NVIDIA L4", "bf16-mixed"): 121e12,
    ("NVIDIA GeForce RTX 3090", "bf16-mixed"): 71e12,
    ("NVIDIA GeForce RTX 4090", "bf16-mixed"): 165e12,
    ("NVIDIA H100 80GB", "bf16-mixed"): 989e12,
    ("NVIDIA H100 PCIe", "bf16-mixed"): 756e12,
    ("NVIDIA H200", "bf16-mixed"): 989e12,
}


def flops_per_token(config: GPTConfig, num_parameters: int) -> float:
    """Floating-point operations of a training step per token: 6 per weight, and the attention's products.

    The token embedding is counted, since the tied LM head multiplies by it; the position embedding is not.

    Source: Chowdhery et al. 2022 (PaLM), appendix B.
    """
    weights = num_parameters - config.context_length * config.d_model
    return 6 * weights + 12 * config.num_layers * config.d_model * config.context_length


def utilisation(tokens_per_second: float, module: GPTModule, device: torch.device, precision: str) -> str:
    """Say the model FLOPs utilisation of one process; empty if the device's peak is not known."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    share = peak_share(tokens_per_second, module, name, precision)
    return "" if share is None else f", {share:.0%} of the dense peak of {name} (model FLOPs utilisation)"


def peak_share(tokens_per_second: float, module: GPTModule, device_name: str, precision: str) -> float | None:
    """Model FLOPs utilisation: the share of the device's dense peak; None if that is not known."""
    names = [name for name, kind in _PEAKS if device_name.startswith(name) and kind == precision]
    if not names:
        return None
    per_token = flops_per_token(module.model.config, module.model.num_parameters)
    return tokens_per_second * per_token / _PEAKS[max(names, key=len), precision]


def seconds_per_step(module: GPTModule, data: TokenDataModule, trainer: L.Trainer) -> float:
    """Time real micro-batches and an optimizer step of one process, eager; the module's weights change."""
    config, device = module.config, trainer.strategy.root_device
    batches = TrainingBatches(
        data.train_windows, config.seed, config.data.global_batch_size, config.data.micro_batch_size
    )
    module.to(device).train()
    configured: Any = module.configure_optimizers()
    times = []
    for number in range(1 + _MICRO_BATCHES):
        batch = batches[number]
        inputs, targets = batch["inputs"].to(device), batch["targets"].to(device)
        started = _now(device)
        with trainer.precision_plugin.forward_context():
            documents = document_ids(inputs, data.manifest.eot_id if config.data.document_mask else None)
            loss = next_token_loss(module.model.transformer(inputs, documents), module.model.lm_head_weight, targets)
        (loss / batch["global_targets"]).backward()  # type: ignore[no-untyped-call]
        times.append(_now(device) - started)
    started = _now(device)
    configured["optimizer"].step()
    return sum(times[1:]) / _MICRO_BATCHES * config.accumulation + _now(device) - started


def _now(device: torch.device) -> float:
    if device.type in ("cuda", "mps"):
        getattr(torch, device.type).synchronize()
    return time.perf_counter()
