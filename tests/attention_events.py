"""Read captures back from event files with TensorBoard's own reader."""

import gzip
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from gpt.attention_maps import event_format


@dataclass(frozen=True)
class WrittenCapture:
    """One capture of a series, as an event file holds it."""

    step: int
    series: dict[str, Any]
    scores: dict[str, list[list[float]]]
    predictions: dict[str, Any] | None
    roles: list[list[Any]] | None
    layers: list[bytes]


def read_captures(run_dir: Path) -> dict[str, list[WrittenCapture]]:
    """Read every series of a run: tag to its captures, in the order in which they were written."""
    captures: dict[str, list[WrittenCapture]] = {}
    contents: dict[str, bytes] = {}
    for path in sorted(run_dir.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag == event_format.LOSS_TAG:
                    continue
                if value.metadata.plugin_data.plugin_name == event_format.PLUGIN_NAME:
                    contents.setdefault(value.tag, value.metadata.plugin_data.content)
                elif value.tag not in contents:
                    continue
                series = event_format.unpack_series(contents[value.tag])
                scores, *layers = value.tensor.string_val
                content = event_format.unpack_scores(scores)
                rest = content.get("predictions"), content.get("roles"), layers
                captures.setdefault(value.tag, []).append(WrittenCapture(event.step, series, content["scores"], *rest))
    return captures


def unpack_layer(blob: bytes, num_heads: int) -> np.ndarray:
    """Unpack ``event_format.pack_layer``: (H, T, T) float32, each weight within 0.004."""
    packed = np.frombuffer(gzip.decompress(blob), dtype=np.uint8).reshape(num_heads, -1)
    T = (math.isqrt(8 * packed.shape[1] + 1) - 1) // 2
    maps = np.zeros((num_heads, T, T), dtype=np.float32)
    rows, columns = np.tril_indices(T)
    maps[:, rows, columns] = (packed.astype(np.float32) / 255) ** 2
    return maps
