"""Write attention maps and head scores to TensorBoard's event files."""

import io
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_BLOB_SEQUENCE, Summary, SummaryMetadata
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util.tensor_util import make_tensor_proto
from torch.utils.tensorboard import SummaryWriter

from gpt.attention_maps import event_format
from gpt.attention_maps.capture import Capture
from gpt.attention_maps.head_metrics import head_metrics
from gpt.attention_maps.head_roles import Role
from gpt.errors import UserError
from gpt.files import atomic_write

# Scalars over all heads, one line per run; the Attention tab has the scores of each head.
_SUMMARIES = {
    "mean": ("previous_token", "sink", "induction", "duplicate_token", "entropy", "normalised_entropy", "distance"),
    "max": ("previous_token", "sink", "induction", "duplicate_token", "max_logit"),
    "min": ("normalised_entropy",),
}
_IMAGE_PIXELS = 512


def write_captures(writer: SummaryWriter, step: int, captures: Sequence[Capture], **options: Any) -> None:
    """Write the captures of one step to a running writer; options as ``summarise_captures`` takes them."""
    # One event for all values wakes the writer's thread once, and is written whole or not at all.
    summary = summarise_captures(captures, **options)
    writer._get_file_writer().add_summary(summary, step)  # type: ignore[no-untyped-call]


def write_loss_by_position(writer: SummaryWriter, step: int, positions: list[int], losses: list[float]) -> None:
    """Write the validation loss by position, for the Attention tab."""
    value = _blobs(event_format.LOSS_TAG, event_format.pack_losses(positions, losses))
    writer._get_file_writer().add_summary(Summary(value=[value]), step)  # type: ignore[no-untyped-call]


def write_event_file(run_dir: Path, step: int, summary: Summary) -> None:
    """Write one step as an event file: a SummaryWriter would lose the errors of its thread, such as a full disk."""
    now = time.time()
    path = run_dir / f"events.out.tfevents.{now:.6f}"
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        with atomic_write(path) as file:
            for content in {"file_version": "brain.Event:2"}, {"step": step, "summary": summary}:
                RecordWriter(file).write(Event(wall_time=now, **content).SerializeToString())
    except OSError as error:
        with suppress(OSError):  # the folder has other files
            run_dir.rmdir()
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another logdir") from None


def summarise_captures(
    captures: Sequence[Capture],
    roles: list[list[Role]] | None = None,
    random_maps: bool = True,
    image: bool = False,
) -> Summary:
    """Pack the captures of one step for the Attention tab, and summaries over all heads as scalars.

    A score that is defined on several probes is summarised for the last of them.

    Args:
        roles: of the heads, from ``head_roles``; packed with each capture.
        random_maps: whether to write the maps of the repeated random sequence, not only its scores.
        image: whether to write the last probe's maps as an image too, for a TensorBoard without the tab.
    """
    values: list[Summary.Value] = []
    all_scores: dict[str, NDArray[np.float32]] = {}
    for capture in captures:
        scores = {name: metric.numpy() for name, metric in head_metrics(capture).items()}
        if capture.ablation is not None:
            kind, rises = capture.ablation
            scores[f"{kind}_ablation"] = rises.numpy()
        blobs = [event_format.pack_scores(scores, capture.predictions, roles)]
        if random_maps or not capture.probe.is_repeated_random:
            blobs += [event_format.pack_layer(layer) for layer in capture.maps.numpy()]
        tag, content = event_format.series_tag(capture.probe), event_format.pack_series(capture.probe)
        values.append(_blobs(tag, *blobs, content=content))
        values += _copy_losses(capture)
        all_scores |= scores
    values += [
        Summary.Value(tag=f"scores/{name}_{reduction}", simple_value=float(getattr(np, reduction)(all_scores[name])))
        for reduction, names in _SUMMARIES.items()
        for name in names
        if name in all_scores
    ]
    if image:
        grid, png = attention_image(captures[-1].maps.numpy()), io.BytesIO()
        grid.save(png, "png", compress_level=1)  # five times faster than the default level
        encoded = Summary.Image(height=grid.height, width=grid.width, colorspace=1, encoded_image_string=png.getvalue())
        values.append(Summary.Value(tag="thumbnails/all_heads", image=encoded))
    return Summary(value=values)


def _blobs(tag: str, *blobs: bytes, content: bytes = b"") -> Summary.Value:
    plugin = SummaryMetadata.PluginData(plugin_name=event_format.PLUGIN_NAME, content=content)
    metadata = SummaryMetadata(plugin_data=plugin, data_class=DATA_CLASS_BLOB_SEQUENCE)
    return Summary.Value(tag=tag, metadata=metadata, tensor=make_tensor_proto(blobs))


def _copy_losses(capture: Capture) -> list[Summary.Value]:
    """Mean losses on the two copies of the repeated random sequence [end-of-text, r1 .. rP, r1 .. rP].

    The second copy without its first token, which nothing predicts.
    """
    if not capture.probe.is_repeated_random or capture.predictions is None:
        return []
    losses, P = capture.predictions.losses, len(capture.probe.token_ids) // 2
    means = {"first": losses[:P].mean(), "second": losses[P + 1 :].mean()}
    return [
        Summary.Value(tag=f"scores/{copy}_copy_loss_nats", simple_value=float(loss)) for copy, loss in means.items()
    ]


def attention_image(maps: NDArray[np.float32]) -> Image.Image:
    """Draw the maps of all heads, (L, H, T, T), as one grayscale image: a row per layer, a column per head.

    In each map, rows are queries, columns are keys, and brightness is the square root of the attention weight.
    """
    num_layers, num_heads, T, _ = maps.shape
    scale = max(1, _IMAGE_PIXELS // (max(num_layers, num_heads) * T))
    pixels = (np.sqrt(np.nan_to_num(maps)) * 255).round().astype(np.uint8)
    enlarged = pixels.repeat(scale, axis=2).repeat(scale, axis=3)
    framed = np.pad(enlarged, ((0, 0), (0, 0), (3, 3), (3, 3)), constant_values=128)  # (L, H, height, width)
    return Image.fromarray(framed.swapaxes(1, 2).reshape(num_layers * framed.shape[2], -1))
