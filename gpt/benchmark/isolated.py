"""Each contender in a process of its own: none gains from another's settings, and each has a peak of memory."""

import multiprocessing
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpt.benchmark.contenders import Contender, nanogpt, ours, transformers_gpt2
from gpt.errors import UserError
from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT
from gpt.training.cpu_memory import disable_malloc_trim


@dataclass(frozen=True)
class Work:
    """What a contender is to do: whole training steps of a model on random tokens.

    Args:
        batch_size: B.
        length: T.
        nanogpt_folder: a checkout of nanoGPT, if that is a contender.
    """

    config: GPTConfig
    batch_size: int
    length: int
    device: str
    nanogpt_folder: Path | None = None

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Inputs and targets (B, T), int64, the same for all contenders."""
        generator = torch.Generator().manual_seed(number)
        ids = torch.randint(self.config.vocab_size, (self.batch_size, self.length + 1), generator=generator)
        return ids[:, :-1].contiguous().to(self.device), ids[:, 1:].contiguous().to(self.device)


def build(name: str, work: Work) -> Contender:
    """Make a contender: ``mini-gpt``, ``nanogpt`` or ``transformers``, each also with a variant behind a colon."""
    kind, _, variant = name.partition(":")
    device = torch.device(work.device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")  # TF32 for what stays in float32, as train.py and nanoGPT have it
    torch.manual_seed(0)
    weights = {key: tensor.detach() for key, tensor in GPT(work.config).state_dict().items()}
    if kind == "mini-gpt":
        if device.type == "cpu":
            disable_malloc_trim()
        return ours(work.config, weights, device, compiled=variant == "compiled")
    if kind == "nanogpt":
        assert work.nanogpt_folder is not None
        return nanogpt(work.nanogpt_folder, work.config, weights, device, compiled=variant == "compiled")
    return transformers_gpt2(work.config, weights, device, fused=variant == "fused")


class Isolated:
    """A contender in another process, which works only when asked to.

    Args:
        name: as ``build`` takes it.
        work: what to do.

    Raises:
        ValueError: it could not be made.
    """

    def __init__(self, name: str, work: Work) -> None:
        self.name, self._number = name, 0
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, work), daemon=True)
        self._process.start()
        theirs.close()
        self.loss: float = self._answer()

    def seconds(self, steps: int) -> float:
        """Wall time of some steps, on the next batches."""
        self._pipe.send((self._number, steps))
        self._number += steps
        return self._answer()

    def attention_kernels(self) -> list[str]:
        """Names of the CUDA kernels that its attention ran in."""
        self._pipe.send("kernels")
        kernels: list[str] = self._answer()
        return kernels

    def close(self) -> int:
        """End the process; returns the peak in bytes of its resident memory, or of what it held on a GPU."""
        self._pipe.send(None)
        peak: int = self._answer()
        self._process.join()
        return peak

    def _answer(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise UserError(f"{self.name} ended by itself; see above") from None
        if isinstance(answer, Exception):
            raise UserError(f"{self.name} cannot be measured: {answer}")
        return answer


def _serve(pipe: Connection, name: str, work: Work) -> None:
    sys.stdout = sys.stderr  # what a library prints is not a result
    try:
        contender = build(name, work)
        pipe.send(float(contender.loss(*work.batch(0))))  # with gradients: as it will be timed
    except Exception as error:  # whatever it is, the parent is to say it
        pipe.send(error)
        return
    while (order := pipe.recv()) is not None:
        if order == "kernels":
            pipe.send(contender.attention_kernels(*work.batch(0)))
        else:
            first, steps = order
            pipe.send(contender.seconds([work.batch(number) for number in range(first, first + steps)]))
    if work.device == "cpu":
        pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    else:
        pipe.send(torch.cuda.max_memory_allocated(work.device))


def check_equal_losses(contenders: list[Isolated], tolerance: float = 2e-3) -> None:
    """See that all compute the same thing; nanoGPT's GELU is the exact one, hence the tolerance.

    Raises:
        ValueError: a loss differs.
    """
    first = contenders[0]
    for contender in contenders[1:]:
        if abs(contender.loss - first.loss) > tolerance * first.loss:
            raise UserError(f"{contender.name} has loss {contender.loss} and {first.name} {first.loss}: not the same")


def fastest(names: list[str], work: Work, say: Callable[[str], None]) -> Isolated:
    """Start the variants of a peer one by one, and keep the one with the fastest second step."""
    best: tuple[float, Isolated] | None = None
    for name in names:
        try:
            contender = Isolated(name, work)
            first = contender.seconds(1)
            seconds = contender.seconds(1)
        except ValueError as error:  # no compiler, say
            say(f"  {name}: {error}")
            continue
        say(f"  {name}: {seconds:.2f} s a step (the first took {first:.1f})")
        if best is None or seconds < best[0]:
            if best is not None:
                best[1].close()
            best = seconds, contender
        else:
            contender.close()
    if best is None:
        raise UserError(f"none of {', '.join(names)} can be measured; see above")
    return best[1]
