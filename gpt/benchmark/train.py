"""``scripts/benchmark.py train``: whole training steps against nanoGPT and transformers, and runs against the loop."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gpt.benchmark.isolated import Isolated, Work, check_equal_losses, fastest
from gpt.benchmark.learning import learning_rows
from gpt.benchmark.overhead import overhead_rows
from gpt.benchmark.protocol import Row, alternate, ratio_row, value_row
from gpt.model.config import GPTConfig
from gpt.model.loss import max_chunk_logits
from gpt.model.transformer import GPT

log = logging.getLogger(__name__)

GPT2_SMALL = GPTConfig(dropout=0.0)

# Dense bfloat16 peaks in FLOP/s, from NVIDIA's data sheets, by a word of the device's name; without a peak, no share.
_PEAKS = {"H200": 989e12, "H100": 989e12, "A100-SXM4-40GB": 312e12, "A100-SXM4-80GB": 312e12, "L40S": 362e12}
_OTHER_CLOCKS = {"NVL", "PCIe"}
VARIANTS = {
    "nanogpt": ["nanogpt", "nanogpt:compiled"],
    "transformers": ["transformers", "transformers:fused"],
}


@dataclass(frozen=True)
class Peers:
    """Whom to measure against: a checkout of nanoGPT, transformers."""

    nanogpt: Path | None = None
    transformers: bool = False

    def __contains__(self, name: str) -> bool:
        return self.nanogpt is not None if name == "nanogpt" else self.transformers


def flops_per_token(config: GPTConfig, length: int) -> float:
    """Floating-point operations of a training step per token: 6N + 12 L H D T, N without position embeddings.

    Source: Chowdhery et al. 2022 (PaLM), appendix B.
    """
    with torch.device("meta"):
        model = GPT(config)
    parameters = model.num_parameters - config.context_length * config.d_model
    return 6 * parameters + 12 * config.num_layers * config.d_model * length


def matmul_rate(config: GPTConfig, rows: int, device: str, seconds: float = 4.0) -> float:
    """Rate of the products of a training step by themselves, in FLOP/s: each forward and both backward ones.

    Rows are limited where the vocabulary is concerned, as the loss limits them. A first round, which finds its memory
    and its threads cold, does not count.
    """
    E = config.d_model
    vocab_size = config.vocab_size if device == "cpu" else -(-config.vocab_size // 64) * 64  # as the loss pads it
    shapes = [(E, 3 * E), (E, E), (E, 4 * E), (4 * E, E)] * config.num_layers + [(E, vocab_size)]
    kinds = {shape: shapes.count(shape) for shape in shapes}
    dtype = torch.float32 if device == "cpu" else torch.bfloat16  # as the step runs
    work = []  # made once: fresh memory is not what is measured here
    for (fan_in, fan_out), count in kinds.items():
        n = rows if fan_out != vocab_size else min(rows, max_chunk_logits(torch.device(device)) // fan_out)
        x, w = (torch.randn(size, fan_in, device=device, dtype=dtype) for size in (n, fan_out))
        work.append((n, fan_in, fan_out, count * rows / n, x, w, x @ w.T, torch.zeros_like(x), torch.zeros_like(w)))
    flops = elapsed = 0.0
    deadline, rounds = time.perf_counter() + seconds, 0
    while rounds < 2 or time.perf_counter() < deadline:
        if rounds == 1:
            flops = elapsed = 0.0
        rounds += 1
        for n, fan_in, fan_out, share, x, w, y, gx, gw in work:
            started = time.perf_counter()
            repetitions = 1 if device == "cpu" else 50
            for _ in range(repetitions):
                torch.mm(x, w.T, out=y)
                torch.mm(y, w, out=gx)
                torch.mm(y.T, x, out=gw)
            if device != "cpu":
                torch.cuda.synchronize()
            elapsed += (time.perf_counter() - started) * share
            flops += 6 * n * fan_in * fan_out * share * repetitions
    return flops / elapsed


def step_rows(
    batch_size: int, length: int, goals: dict[str, tuple[float, float]], share_goal: tuple[float, float] | None,
    memory_goal: tuple[float, float] | None, peers: Peers, pairs: int, device: str,
) -> list[Row]:  # fmt: skip
    """Whole steps of GPT-2 small: ours against each peer's fastest variant, one after the other.

    Args:
        batch_size: B.
        length: T.
        goals: must and aim against each peer.
        share_goal: of the GPU's peak; where none is known, and on a CPU, of the rate of matrix products by themselves.
        memory_goal: of our peak memory over nanoGPT's.
        pairs: how many pairs of steps.
    """
    work = Work(GPT2_SMALL, batch_size, length, device, peers.nanogpt)
    what = f"GPT-2 small, {'bf16' if device != 'cpu' else 'fp32'}, batch {batch_size}, T {length}: whole step"
    tokens = batch_size * length
    rows, our_peak = [], 0
    kernels: list[str] = []
    our_seconds: list[float] = []
    for peer, (must, aim) in goals.items():
        if peer not in peers:
            log.warning("%s is left out: name it with --peers", peer)
            continue
        log.info("%s against %s", what, peer)
        theirs = fastest(VARIANTS[peer], work, log.info)
        ours = Isolated("mini-gpt" if device == "cpu" else "mini-gpt:compiled", work)
        check_equal_losses([ours, theirs])
        ours.seconds(2)
        results = alternate(lambda o=ours: o.seconds(1), lambda t=theirs: t.seconds(1), pairs)  # type: ignore[misc]
        our_seconds += [mine for mine, _ in results]
        inverted = [(1 / mine, 1 / other) for mine, other in results]
        rows.append(ratio_row(what, theirs.name, inverted, must, aim))
        rows.append(value_row(what, f"{theirs.name} by itself", [tokens / t for _, t in results], "tokens/s"))
        if device != "cpu":
            kernels = ours.attention_kernels()
            log.info("  attention ran in %s", ", ".join(kernels) or "no kernel of a known name")
        our_peak, their_peak = ours.close(), theirs.close()
        log.info("  peak memory %.2f and %.2f GB", our_peak / 1e9, their_peak / 1e9)
        if peer == "nanogpt" and memory_goal is not None:
            ratio = our_peak / their_peak
            rows.append(Row(f"{what}: peak memory", theirs.name, ratio, ratio, ratio, "of its", False, *memory_goal))
    if our_seconds:
        attention = f" (attention: {', '.join(kernels)})" if kernels else ""
        rows.append(value_row(what + attention, "-", [tokens / t for t in our_seconds], "tokens/s"))
        achieved = [tokens * flops_per_token(GPT2_SMALL, length) / t for t in our_seconds]
        rate, peak = matmul_rate(GPT2_SMALL, tokens, device), _peak(device)
        limits = [(f"matrix products alone, {rate / 1e9:.0f} GFLOP/s", rate)]
        if peak is not None:
            limits.append((f"dense bf16 peak, {peak / 1e12:.0f} TFLOP/s", peak))
        for limit, flops in limits:
            rows.append(value_row(what, limit, [value / flops for value in achieved], "of it"))
        if share_goal is not None:  # what is known best is what counts
            rows[-1] = replace(rows[-1], must=share_goal[0], aim=share_goal[1])
    return rows


def _peak(device: str) -> float | None:
    """A GPU's dense bfloat16 peak in FLOP/s, if it is a known one."""
    if device == "cpu":
        return None
    words = set(torch.cuda.get_device_name(device).split())
    return None if words & _OTHER_CLOCKS else next((peak for word, peak in _PEAKS.items() if word in words), None)


def noise_rows(device: str) -> list[Row]:
    """The same against itself: what a ratio means on this machine today."""
    work = Work(GPT2_SMALL, 2, 256, device)
    first, second = (Isolated("mini-gpt", work) for _ in range(2))
    for contender in (first, second):
        contender.seconds(1)
    results = alternate(lambda: 1 / first.seconds(1), lambda: 1 / second.seconds(1), pairs=6)
    for contender in (first, second):
        contender.close()
    return [ratio_row("noise: GPT-2 small, batch 2, T 256", "itself", results)]


def scaling_rows(device: str) -> list[Row]:
    """How time and memory of a step grow with length, batch and model."""
    rows = []
    medium = GPTConfig(d_model=1024, num_layers=24, num_heads=16, dropout=0.0)
    shapes = [(GPT2_SMALL, "small", b, t) for b, t in ((1, 128), (1, 256), (1, 512), (1, 1024), (2, 512), (4, 512))]
    for config, name, batch_size, length in [*shapes, (GPT2_SMALL, "small", 8, 256), (medium, "medium", 1, 256)]:
        contender = Isolated("mini-gpt", Work(config, batch_size, length, device))
        contender.seconds(1)
        seconds = [contender.seconds(1) for _ in range(3)]
        peak = contender.close() / 1e9
        what = f"GPT-2 {name}, batch {batch_size}, T {length}"
        rows.append(value_row(what, f"peak memory {peak:.2f} GB", seconds, "s a step", higher_is_better=False))
        log.info("  %s: %.2f s, %.2f GB", what, min(seconds), peak)
    return rows


def rows(peers: Peers) -> dict[str, Callable[[Path], list[Row]]]:
    """The rows that this machine can measure."""
    if torch.cuda.is_available():
        goals = {"nanogpt": (1.08, 1.2)}
        return {
            "gpu": lambda folder: step_rows(32, 1024, goals, (0.4, 0.53), None, peers, 10, "cuda"),
            "noise": lambda folder: noise_rows("cuda"),
        }
    both = {"nanogpt": (1.15, 1.3), "transformers": (1.15, 1.3)}
    long = {"nanogpt": (1.25, 1.6)}
    return {
        "step": lambda folder: step_rows(2, 256, both, None, None, peers, 6, "cpu"),
        "long": lambda folder: step_rows(4, 1024, long, (0.63, 0.8), (0.6, 0.5), peers, 3, "cpu"),
        "overhead": lambda folder: overhead_rows(folder, small=True),
        "overhead-small": lambda folder: overhead_rows(folder, small=False),
        "learning": lambda folder: learning_rows(folder, peers.nanogpt),
        "noise": lambda folder: noise_rows("cpu"),
        "scaling": lambda folder: scaling_rows("cpu"),
    }
