"""A run's scalars as ``metrics.csv``, for those who plot them elsewhere."""

import logging
from collections.abc import Mapping
from pathlib import Path

from gpt.files import atomic_write

log = logging.getLogger(__name__)

COLUMNS = (
    "step",
    "loss/train_nats",
    "loss/val_nats",
    "loss/val_perplexity",
    "loss/val_bits_per_byte",
    "scores/in_context_learning_nats",
    "optimizer/learning_rate",
    "optimizer/gradient_norm",
    "optimizer/skipped_steps",
    "speed/tokens_per_second",
)


class MetricsFile:
    """Appends a row per log and per validation, with the tags of TensorBoard as columns, empty where not measured.

    A resumed run first drops the rows from ``first_step`` on, which it repeats. After a write that fails (a full disk)
    the run goes on without the file.
    """

    def __init__(self, path: Path, first_step: int) -> None:
        self._path, self._has_failed = path, False
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)[1:] if path.is_file() else []
        # A killed run may have left half a line.
        steps = [line.partition(",")[0] for line in lines]
        kept = [line for line, step in zip(lines, steps, strict=True) if step.isdecimal() and int(step) < first_step]
        self._append(",".join(COLUMNS) + "\n" + "".join(line for line in kept if line.endswith("\n")), replace=True)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append a row."""
        assert metrics.keys() <= set(COLUMNS), metrics.keys()
        cells = [f"{metrics[tag]:.9g}" if tag in metrics else "" for tag in COLUMNS[1:]]
        self._append(",".join([str(step), *cells]) + "\n")

    def _append(self, text: str, replace: bool = False) -> None:
        if self._has_failed:
            return
        try:
            if replace:
                with atomic_write(self._path) as file:
                    file.write(text.encode())
            else:
                with self._path.open("a", encoding="utf-8", newline="") as file:
                    file.write(text)
        except OSError as error:
            self._has_failed = True
            log.warning("cannot write %s: %s; the run goes on without it", self._path, error.strerror)
