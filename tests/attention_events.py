"""What the tests of watching share: reading event files back, with TensorBoard's own reader."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

from gpt.attention_maps import event_format


@dataclass(frozen=True)
class Written:
    """One capture as it lies in a file."""

    step: int
    series: dict[str, Any]
    scores: dict[str, list[list[float]]]
    layers: list[bytes]


def read_captures(run_dir: Path) -> dict[str, list[Written]]:
    """Every series of a run: tag to its captures in the order in which they were written."""
    captures: dict[str, list[Written]] = {}
    contents: dict[str, bytes] = {}
    for path in sorted(run_dir.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == event_format.PLUGIN_NAME:
                    contents.setdefault(value.tag, value.metadata.plugin_data.content)
                elif value.tag not in contents:
                    continue
                series = event_format.unpack_series(contents[value.tag])
                scores, *layers = value.tensor.string_val
                captures.setdefault(value.tag, []).append(
                    Written(event.step, series, event_format.unpack_scores(scores), layers)
                )
    return captures
