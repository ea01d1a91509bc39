"""``scripts/benchmark.py train``: training steps of GPT-2 small against peers and against limits of the hardware."""

import logging
import time
from collections.abc import Sequence

import torch

from gpt.model.config import GPTConfig
from gpt.model.loss import max_chunk_logits
from gpt.model.transformer import GPT
from scripts.benchmarks.contenders import Contender, Task
from scripts.benchmarks.isolated import Isolated, check_equal_losses, fastest_variant
from scripts.benchmarks.protocol import Peers, Row, Rows, alternate, ratio_row, value_row
from scripts.benchmarks.runs import learning_rows, overhead_rows

log = logging.getLogger(__name__)

GPT2_SMALL = GPTConfig(dropout=0.0)
_VARIANTS = {"nanogpt": ("nanogpt", "nanogpt:compiled"), "transformers": ("transformers", "transformers:fused")}

# Dense bfloat16 peaks in TFLOP/s, from NVIDIA's data sheets; the PCIe and NVL variants have lower ones.
_PEAKS = {"H200": 989, "H100 80GB HBM3": 989, "A100-SXM4-40GB": 312, "A100-SXM4-80GB": 312, "L40S": 362}


def rows(peers: Peers) -> Rows:
    """The rows that this machine can measure."""
    device, nanogpt = "cuda" if torch.cuda.is_available() else "cpu", peers.get("nanogpt")

    def step(names: set[str], batch_size: int, length: int, pairs: int) -> list[Row]:
        return step_rows(Task(GPT2_SMALL, batch_size, length, device, nanogpt), sorted(names & set(peers)), pairs)

    if device == "cuda":
        return {"gpu": lambda folder: step({"nanogpt"}, 32, 1024, 10), "noise": lambda folder: noise_rows(device)}
    return {
        "step": lambda folder: step({"nanogpt", "transformers"}, 2, 256, 6),
        "long": lambda folder: step({"nanogpt"}, 4, 1024, 3),
        "overhead": lambda folder: overhead_rows(folder, gpt2_small=False),
        "overhead-small": lambda folder: overhead_rows(folder, gpt2_small=True),
        "learning": lambda folder: learning_rows(folder, nanogpt),
        "noise": lambda folder: noise_rows(device),
        "scaling": lambda folder: scaling_rows(device),
    }


def step_rows(task: Task, peers: Sequence[str], pairs: int) -> list[Row]:
    """Speed and peak memory of training steps against each peer's fastest variant, then speed against the limits."""
    precision, own_name = ("fp32", "mini-gpt") if task.device == "cpu" else ("bf16", "mini-gpt:compiled")
    work = f"training step of GPT-2 small, {precision}, batch {task.batch_size}, T {task.length}"
    measured, rates, own_work = [], [], f"{work}: {own_name}"
    for name in peers:
        log.info("%s: mini-gpt and %s (tokens/s)", work, name)
        peer, own = Isolated(fastest_variant(_VARIANTS[name], task), task), Isolated(own_name, task)
        check_equal_losses(own, peer)
        own.seconds(2), peer.seconds(2)  # warmup
        results = alternate(own.tokens_per_second, peer.tokens_per_second, pairs)
        rates += [rate for rate, _ in results]
        measured.append(ratio_row(work, peer.name, results))
        measured.append(value_row(f"{work}: {peer.name}", "-", [rate for _, rate in results], "tokens/s"))
        if task.device == "cuda":
            kernels = ", ".join(own.call(Contender.attention_kernels))
            own_work = f"{work}: {own_name}, attention in {kernels or 'an unknown kernel'}"
        memory = own.close() / peer.close()
        measured.append(Row(f"peak memory of a {work}", peer.name, memory, memory, memory, "times as much", False))
    if not rates:
        return []
    measured.append(value_row(own_work, "-", rates, "tokens/s"))
    limit = matmul_rate(task.config, task.batch_size * task.length, task.device)
    limits = {f"matrix products alone, {limit / 1e9:.0f} GFLOP/s": limit}
    gpu = torch.cuda.get_device_name().removeprefix("NVIDIA ") if task.device == "cuda" else ""
    if gpu in _PEAKS:
        limits[f"dense bf16 peak, {_PEAKS[gpu]} TFLOP/s"] = _PEAKS[gpu] * 1e12
    flops = flops_per_token(task.config, task.length)
    return measured + [
        value_row(own_work, name, [rate * flops / limit for rate in rates], "of it") for name, limit in limits.items()
    ]


def flops_per_token(config: GPTConfig, length: int) -> float:
    """Floating-point operations of a training step per token: 6N + 12 L H D T, N without position embeddings.

    Source: Chowdhery et al. 2022 (PaLM), appendix B.
    """
    with torch.device("meta"):
        model = GPT(config)
    parameters = model.num_parameters - config.context_length * config.d_model
    return 6 * parameters + 12 * config.num_layers * config.d_model * length


def matmul_rate(config: GPTConfig, tokens: int, device: str, seconds: float = 4.0) -> float:
    """FLOP/s of a training step's matrix products alone: one forward and two backward per weight matrix."""
    E, L, V, dtype, repetitions = config.d_model, config.num_layers, config.vocab_size, torch.float32, 1
    if device == "cuda":
        V, dtype, repetitions = -(-V // 64) * 64, torch.bfloat16, 50  # padded as in the loss
    products = []  # allocated once: fresh memory is not what is measured
    for fan_in, fan_out, count in ((E, 3 * E, L), (E, E, L), (E, 4 * E, L), (4 * E, E, L), (E, V, 1)):
        # The LM head's products run on as many tokens as the loss takes at once.
        n = min(tokens, max_chunk_logits(torch.device(device)) // V) if fan_out == V else tokens
        x, w = (torch.randn(size, fan_in, device=device, dtype=dtype) for size in (n, fan_out))
        products.append((count * tokens / n, x, w, x @ w.T, torch.zeros_like(x), torch.zeros_like(w)))

    def step_seconds() -> float:
        total = 0.0
        for count, x, w, y, grad_x, grad_w in products:
            started = time.perf_counter()
            for _ in range(repetitions):
                torch.mm(x, w.T, out=y)
                torch.mm(y, w, out=grad_x)
                torch.mm(y.T, x, out=grad_w)
            if device == "cuda":
                torch.cuda.synchronize()
            total += (time.perf_counter() - started) / repetitions * count
        return total

    step_seconds()  # warmup
    rounds, deadline = [step_seconds()], time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        rounds.append(step_seconds())
    return 6 * tokens * (12 * L * E**2 + E * V) * len(rounds) / sum(rounds)


def noise_rows(device: str) -> list[Row]:
    """mini-gpt against itself: the ratio that noise alone produces on this machine."""
    task = Task(GPT2_SMALL, 2, 256, device)
    first, second = (Isolated("mini-gpt", task) for _ in range(2))
    first.seconds(), second.seconds()  # warmup
    results = alternate(first.tokens_per_second, second.tokens_per_second, pairs=6)
    first.close(), second.close()
    return [ratio_row("noise: training step of GPT-2 small, batch 2, T 256", "itself", results)]


def scaling_rows(device: str) -> list[Row]:
    """Time and memory of a training step by sequence length, batch size and model size."""
    measured = []
    shapes = [("small", b, t) for b, t in ((1, 128), (1, 256), (1, 512), (1, 1024), (2, 512), (4, 512), (8, 256))]
    for name, batch_size, length in [*shapes, ("medium", 1, 256)]:
        config = GPT2_SMALL if name == "small" else GPTConfig(d_model=1024, num_layers=24, num_heads=16, dropout=0.0)
        contender = Isolated("mini-gpt", Task(config, batch_size, length, device))
        contender.seconds()
        seconds = [contender.seconds() for _ in range(3)]
        work = f"training step of GPT-2 {name}, batch {batch_size}, T {length}"
        peak = contender.close() / 1e9
        log.info("  %s: %.2f s, %.2f GB", work, min(seconds), peak)
        measured.append(value_row(f"{work}, peak memory {peak:.2f} GB", "-", seconds, "s", higher_is_better=False))
    return measured
