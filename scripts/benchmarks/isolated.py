"""Each contender in a process of its own: with its own settings of torch and malloc, and its own peak memory."""

import logging
import multiprocessing
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from gpt.errors import UserError
from scripts.benchmarks.contenders import Contender, Task, build

log = logging.getLogger(__name__)

_contender: Contender | None = None  # of this process, if it is a worker


class Isolated:
    """A contender, by its name for ``build``, in a worker process; a failure there becomes a UserError here."""

    def __init__(self, name: str, task: Task) -> None:
        self.name, self.task = name, task
        # Ctrl-C, which reaches the whole process group, ends the worker without a traceback.
        context, ends_at_once = multiprocessing.get_context("spawn"), (signal.SIGINT, signal.SIG_DFL)
        self._pool = ProcessPoolExecutor(1, context, initializer=signal.signal, initargs=ends_at_once)
        self.initial_loss: float = self.call(_start, name)

    def seconds(self, steps: int = 1) -> float:
        """Wall time of some steps."""
        return self.call(Contender.seconds, steps)

    def tokens_per_second(self) -> float:
        """Tokens per second of one step."""
        return self.task.batch_size * self.task.length / self.seconds()

    def close(self) -> int:
        """End the process; returns its peak memory in bytes."""
        peak: int = self.call(Contender.peak_memory)
        self._pool.shutdown()
        return peak

    def call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the contender with the task and these arguments."""
        try:
            return self._pool.submit(_call, method, self.task, *arguments).result()
        except Exception as error:  # any: a peer's code may fail in any way
            self._pool.shutdown()
            raise UserError(f"{self.name} cannot be measured: {error}") from error


def _call(method: Callable[..., Any], *arguments: Any) -> Any:
    return method(_contender, *arguments)


def _start(_: None, task: Task, name: str) -> float:
    global _contender
    sys.stdout = sys.stderr  # libraries print; stdout is for results
    _contender = build(name, task)
    return _contender.loss(*task.batch(0)).item()  # with gradients, as it will be timed


def check_equal_losses(first: Isolated, second: Isolated, tolerance: float = 2e-3) -> None:
    """Check that two contenders compute the same loss; the relative tolerance is for nanoGPT's exact GELU."""
    if abs(second.initial_loss - first.initial_loss) > tolerance * first.initial_loss:
        losses = f"{second.name} has loss {second.initial_loss} and {first.name} {first.initial_loss}"
        raise UserError(f"{losses}; expected equal losses")


def fastest_variant(names: Sequence[str], task: Task) -> str:
    """The variant of a peer whose second step is fastest; each runs alone."""
    seconds = {}
    for name in names:
        try:
            contender = Isolated(name, task)
            first, seconds[name] = contender.seconds(), contender.seconds()
            contender.close()
            log.info("  %s: %.2f s per step (the first took %.1f)", name, seconds[name], first)
        except UserError as error:  # for example, torch.compile finds no C++ compiler
            log.info("  %s", error)
    if not seconds:
        raise UserError(f"none of {', '.join(names)} can be measured; see above")
    return min(seconds, key=lambda name: seconds[name])
