"""Who is measured: each takes whole optimizer steps from the same weights, on the same batches.

All have dropout 0, clip the gradient to norm 1, and AdamW with the same learning rate and weight decay.
"""

import contextlib
import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.errors import UserError
from gpt.huggingface import lies_transposed, to_gpt2
from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.transformer import GPT
from gpt.training.config import OptimConfig
from gpt.training.optim import build_optimizer

LEARNING_RATE = 1e-5  # small: the losses of all contenders stay comparable over a benchmark's steps
BETAS = (0.9, 0.95)
WEIGHT_DECAY = 0.1

Weights = dict[str, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Contender:
    """A model with its optimizer.

    Args:
        model: its parameters are trained.
        loss: mean loss in nats from inputs and targets, (B, T) each, int64.
        optimizer: over the model's parameters.
        clip: scales the gradient to norm 1.
    """

    name: str
    model: nn.Module
    loss: Loss
    optimizer: torch.optim.Optimizer
    clip: Callable[[], Any]

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """One whole optimizer step; returns the loss before it."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        self.clip()
        self.optimizer.step()
        return loss.detach()

    def seconds(self, batches: list[tuple[Tensor, Tensor]]) -> float:
        """Wall time of a step on each batch, the device waited for once, at the end."""
        device = next(self.model.parameters()).device
        started = time.perf_counter()
        for inputs, targets in batches:
            self.step(inputs, targets)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    def attention_kernels(self, inputs: Tensor, targets: Tensor) -> list[str]:
        """Names of the CUDA kernels of a step that have to do with attention, without their templates."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            self.step(inputs, targets)
        keys = (event.key.replace("(anonymous namespace)::", "") for event in profile.key_averages())
        names = {key.removeprefix("void ").split("<")[0].split("(")[0] for key in keys}
        return sorted(name for name in names if any(word in name.lower() for word in ("flash", "fmha", "attention")))


def ours(config: GPTConfig, weights: Weights, device: torch.device, compiled: bool = False) -> Contender:
    """This project's step, as ``GPTModule`` takes it."""
    with torch.device("meta"):
        model = GPT(config)
    model.load_state_dict({name: tensor.clone() for name, tensor in weights.items()}, assign=True)
    model.to(device).train()
    optim = OptimConfig(learning_rate=LEARNING_RATE, min_learning_rate=0.0, betas=BETAS, weight_decay=WEIGHT_DECAY)
    optimizer = build_optimizer(model, optim)
    if compiled:
        model.transformer.compile()

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        with _autocast(device):
            return next_token_loss(model.transformer(inputs), model.lm_head_weight, targets, compiled) / targets.numel()

    name = "mini-gpt" + (", compiled" if compiled else "")
    return Contender(name, model, loss, optimizer, lambda: _clip(model, foreach=True))


def nanogpt_model(folder: Path, config: GPTConfig, weights: Weights, vocab_size: int | None = None) -> Any:
    """The model of a checkout of nanoGPT, with our weights.

    Args:
        weights: ours.
        vocab_size: a larger vocabulary; the ids that nobody uses have zeros.

    Raises:
        ValueError: the folder is no checkout of nanoGPT.
    """
    if not (folder / "model.py").is_file():
        raise UserError(f"{folder} is no checkout of nanoGPT (it has no model.py)")
    spec = importlib.util.spec_from_file_location("nanogpt_model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with contextlib.redirect_stdout(sys.stderr):  # what it prints is not a result
        spec.loader.exec_module(module)
        shape = module.GPTConfig(
            block_size=config.context_length,
            vocab_size=vocab_size or config.vocab_size,
            n_layer=config.num_layers,
            n_head=config.num_heads,
            n_embd=config.d_model,
            dropout=0.0,
            bias=True,
        )
        model = module.GPT(shape)
    # Its matrices are Linear's, (out, in).
    theirs = to_gpt2(weights, config)
    embedding = theirs["transformer.wte.weight"]
    theirs["transformer.wte.weight"] = F.pad(embedding, (0, 0, 0, (vocab_size or len(embedding)) - len(embedding)))
    load_gpt2(model, {name: tensor.T if lies_transposed(name) else tensor for name, tensor in theirs.items()})
    return model


def nanogpt(
    folder: Path, config: GPTConfig, weights: Weights, device: torch.device, compiled: bool = False
) -> Contender:
    """A checkout of nanoGPT: its model, and its optimizer as its own ``configure_optimizers`` makes it.

    On a GPU its vocabulary is padded to a multiple of 64, as it does for itself when it trains from scratch.
    """
    padded = -(-config.vocab_size // 64) * 64 if device.type == "cuda" else None
    model = nanogpt_model(folder, config, weights, padded)
    model.to(device).train()
    optimizer = model.configure_optimizers(WEIGHT_DECAY, LEARNING_RATE, BETAS, device.type)
    forward = torch.compile(model) if compiled else model

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        with _autocast(device):
            return forward(inputs, targets)[1]

    name = "nanoGPT" + (", compiled" if compiled else "")
    return Contender(name, model, loss, optimizer, lambda: _clip(model))


def transformers_model(config: GPTConfig, weights: Weights) -> Any:
    """Transformers' GPT2LMHeadModel, with our weights."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = GPT2Config(
        vocab_size=config.vocab_size,
        n_positions=config.context_length,
        n_embd=config.d_model,
        n_layer=config.num_layers,
        n_head=config.num_heads,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
    )
    model = GPT2LMHeadModel(shape)
    load_gpt2(model, to_gpt2(weights, config))
    return model


def transformers_gpt2(config: GPTConfig, weights: Weights, device: torch.device, fused: bool = False) -> Contender:
    """Transformers' GPT2LMHeadModel with torch's AdamW, as its Trainer uses it; or with the fused form."""
    model = transformers_model(config, weights)
    model.to(device).train()
    decaying = [p for p in model.parameters() if p.ndim >= 2]
    others = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decaying, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, fused=fused or None)

    def loss(inputs: Tensor, targets: Tensor) -> Tensor:
        with _autocast(device):
            logits = model(inputs).logits
            return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())

    name = "transformers" + (", fused AdamW" if fused else "")
    return Contender(name, model, loss, optimizer, lambda: _clip(model))


def load_gpt2(model: nn.Module, weights: Weights) -> None:
    """Load weights into a peer's model; the head is tied, so it needs none of its own."""
    report = model.load_state_dict(weights, strict=False)
    assert set(report.missing_keys) <= {"lm_head.weight"}
    assert not report.unexpected_keys


def _clip(model: nn.Module, foreach: bool | None = None) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=foreach)


def _autocast(device: torch.device) -> Any:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
