"""The contenders in training: mini-gpt, nanoGPT and transformers, with equal initial weights on equal batches.

Dropout is 0; all clip the gradient to norm 1 and use AdamW with the same learning rate and weight decay.
"""

import contextlib
import resource
import runpy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.huggingface import to_gpt2
from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.transformer import GPT
from gpt.training.config import OptimConfig
from gpt.training.cpu_memory import reduce_cpu_memory
from gpt.training.optim import build_optimizer

# The learning rate is small, so that the losses of all contenders stay comparable over the steps of a benchmark.
_OPTIM = OptimConfig(learning_rate=1e-5, min_learning_rate=0.0, betas=(0.9, 0.95), weight_decay=0.1)


@dataclass(frozen=True)
class Task:
    """Training steps of a model on random tokens."""

    config: GPTConfig
    batch_size: int  # B
    length: int  # T
    device: str  # "cpu" or "cuda"
    nanogpt: Path | None = None  # a checkout, if it is a contender

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets, (B, T) each, int64, the same for all contenders."""
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(self.config.vocab_size, (self.batch_size, self.length + 1), generator=generator)
        return ids[:, :-1].contiguous().to(self.device), ids[:, 1:].contiguous().to(self.device)


@dataclass
class Contender:
    """A model with its loss and its optimizer."""

    model: nn.Module
    mean_loss: Callable[[Tensor, Tensor], Tensor]  # in nats, from inputs and targets, (B, T) each, int64
    optimizer: torch.optim.Optimizer
    foreach: bool | None = None  # for clip_grad_norm_

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Mean loss in nats; on a GPU with bfloat16 autocast."""
        device_type = inputs.device.type
        with torch.autocast(device_type, dtype=torch.bfloat16, enabled=device_type == "cuda"):
            return self.mean_loss(inputs, targets)

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Take an optimizer step; returns the loss before it."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(inputs, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0, foreach=self.foreach)
        self.optimizer.step()
        return loss.detach()

    def seconds(self, task: Task, steps: int) -> float:
        """Wall time of some steps; a GPU is synchronised once, at the end."""
        batches = [task.batch(number) for number in range(steps)]
        started = time.perf_counter()
        for batch in batches:
            self.step(*batch)
        if task.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    def peak_memory(self, task: Task) -> int:
        """Peak memory of this process in bytes: resident, or allocated on a GPU."""
        if task.device == "cuda":
            return torch.cuda.max_memory_allocated()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def attention_kernels(self, task: Task) -> list[str]:
        """Names, without template arguments, of the CUDA kernels in which attention runs in a step."""
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            self.step(*task.batch(0))
        keys = (event.key.replace("(anonymous namespace)::", "") for event in profile.key_averages())
        names = {key.removeprefix("void ").split("<")[0].split("(")[0] for key in keys}
        return sorted(name for name in names if any(word in name.lower() for word in ("flash", "fmha", "attention")))


def build(name: str, task: Task) -> Contender:
    """Build ``mini-gpt``, ``nanogpt`` or ``transformers``; a colon and a variant may follow: compiled, fused."""
    kind, _, variant = name.partition(":")
    if task.device == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for what stays in float32, as in train.py and nanoGPT
    torch.manual_seed(0)
    model, rate, decay, betas = GPT(task.config), _OPTIM.learning_rate, _OPTIM.weight_decay, _OPTIM.betas
    if kind == "mini-gpt":
        return mini_gpt(model.to(task.device), _OPTIM, compiled=variant == "compiled")
    if kind == "nanogpt":
        assert task.nanogpt is not None
        # On a GPU the vocabulary is padded to a multiple of 64, as nanoGPT does when it trains from scratch.
        peer = nanogpt_model(task.nanogpt, model, pad_multiple=64 if task.device == "cuda" else 1)
        peer.to(task.device).train()
        forward = torch.compile(peer) if variant == "compiled" else peer
        optimizer = peer.configure_optimizers(decay, rate, betas, task.device)
        return Contender(peer, lambda inputs, targets: forward(inputs, targets)[1], optimizer)
    peer = transformers_model(model).to(task.device).train()
    matrices, vectors = ([p for p in peer.parameters() if (p.ndim >= 2) == is_matrix] for is_matrix in (True, False))
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=rate, betas=betas, fused=variant == "fused" or None)  # None as the Trainer

    def mean_loss(inputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(peer(inputs).logits.float().flatten(0, 1), targets.flatten())

    return Contender(peer, mean_loss, adamw)


def mini_gpt(model: GPT, optim: OptimConfig, compiled: bool = False) -> Contender:
    """This project's step, as ``GPTModule`` takes it."""
    optimizer = build_optimizer(model.train(), optim)
    if model.device.type == "cpu":
        reduce_cpu_memory(model, optimizer)
    if compiled:
        model.transformer.compile()

    def mean_loss(inputs: Tensor, targets: Tensor) -> Tensor:
        loss = next_token_loss(model.transformer(inputs), model.lm_head_weight, targets, compiled)
        return loss / targets.numel()

    return Contender(model, mean_loss, optimizer, foreach=True)


def nanogpt_model(folder: Path, model: GPT, pad_multiple: int = 1) -> Any:
    """A checkout's model with the weights of a GPT; its vocabulary is padded to the multiple, with zeros."""
    config, vocab_size = model.config, -(-model.config.vocab_size // pad_multiple) * pad_multiple
    with contextlib.redirect_stdout(sys.stderr):  # nanoGPT prints; stdout is for results
        code = runpy.run_path(str(folder / "model.py"))
        shape = {"block_size": config.context_length, "vocab_size": vocab_size, "dropout": 0.0, "bias": True}
        return _with_weights(code["GPT"](code["GPTConfig"](**_shape(model), **shape)), model)


def transformers_model(model: GPT) -> Any:
    """Transformers' GPT2LMHeadModel with the weights of a GPT."""
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = {"n_positions": model.config.context_length, "vocab_size": model.config.vocab_size, **_shape(model)}
    dropout = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
    return _with_weights(GPT2LMHeadModel(GPT2Config(**shape, **dropout)), model)  # type: ignore[arg-type]


def _shape(model: GPT) -> dict[str, int]:
    return {"n_layer": model.config.num_layers, "n_head": model.config.num_heads, "n_embd": model.config.d_model}


def _with_weights(peer: nn.Module, model: GPT) -> nn.Module:
    """Load a GPT's weights into a peer, whose LM head is tied."""
    weights = to_gpt2(model.state_dict(), model.config)
    for name, tensor in weights.items():
        module, _, kind = name.rpartition(".")
        if kind == "weight" and isinstance(peer.get_submodule(module), nn.Linear):
            weights[name] = tensor.T  # Hugging Face's format is Conv1D's, (in, out)
    embedding = weights["transformer.wte.weight"]
    padding = peer.get_parameter("transformer.wte.weight").shape[0] - len(embedding)
    weights["transformer.wte.weight"] = F.pad(embedding, (0, 0, 0, padding))
    report = peer.load_state_dict(weights, strict=False)
    assert set(report.missing_keys) <= {"lm_head.weight"}
    assert not report.unexpected_keys
    return peer
