"""Attention maps and head scores into TensorBoard's event files."""

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import DATA_CLASS_BLOB_SEQUENCE, Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from torch.utils.tensorboard import SummaryWriter

from gpt.attention_maps import event_format
from gpt.attention_maps.capture import Attention
from gpt.attention_maps.event_format import Scores
from gpt.attention_maps.head_metrics import head_metrics
from gpt.attention_maps.images import grid_picture, scores_picture
from gpt.attention_maps.probes import Probe

# What is drawn as one line per run; every head's own scores are in the Attention tab.
_SUMMARIES = {
    "previous_token": ("mean", "max"),
    "sink": ("mean", "max"),
    "induction": ("mean", "max"),
    "duplicate_token": ("mean", "max"),
    "entropy": ("mean",),
    "normalised_entropy": ("mean", "min"),
    "distance": ("mean",),
    "max_logit": ("max",),
}


@dataclass(frozen=True)
class Capture:
    """A probe at one step.

    Args:
        probe: of T tokens.
        attention: in it.
        keep_maps: whether the maps are written beside the scores.
    """

    probe: Probe
    attention: Attention
    keep_maps: bool = True


def write_captures(board: SummaryWriter, step: int, captures: list[Capture], pictures: bool = False) -> None:
    """Write what the Attention tab shows of one step, and summaries over all heads as scalars.

    A score that several probes define is summarised for the last of them.

    Args:
        step: optimizer steps that the model has taken.
        captures: one for each probe.
        pictures: also write the last probe's maps, and the scores, as images, for a TensorBoard without the tab.
    """
    values: list[Summary.Value] = []
    scores: dict[str, NDArray[np.float32]] = {}
    for capture in captures:
        own = {name: metric.numpy() for name, metric in head_metrics(capture.attention, capture.probe).items()}
        values.append(_series_value(capture, own))
        scores |= own
    for name, kinds in _SUMMARIES.items():
        if name in scores:
            values += [
                Summary.Value(tag=f"heads/{name}_{kind}", simple_value=float(getattr(np, kind)(scores[name])))
                for kind in kinds
            ]
    if pictures:
        grid = grid_picture(captures[-1].attention.maps.numpy(), f"attention of all heads, step {step}")
        table = scores_picture(scores, f"scores of all heads, step {step}")
        values += [_image_value("attention/all_heads", grid), _image_value("attention/scores", table)]
    # One event for all: the writer's thread is woken once, and it is all there or not.
    board._get_file_writer().add_summary(Summary(value=values), step)  # type: ignore[no-untyped-call]


def _series_value(capture: Capture, scores: Scores) -> Summary.Value:
    probe, blobs = capture.probe, [event_format.pack_scores(scores)]
    if capture.keep_maps:
        blobs += [event_format.pack_layer(layer) for layer in capture.attention.maps.numpy()]
    content = event_format.pack_series(probe.name, probe.labels, probe.characters, probe.repeats, probe.generated_from)
    plugin = SummaryMetadata.PluginData(plugin_name=event_format.PLUGIN_NAME, content=content)
    return Summary.Value(
        tag=event_format.series_tag(probe.name, probe.token_ids, probe.generated_from),
        metadata=SummaryMetadata(plugin_data=plugin, data_class=DATA_CLASS_BLOB_SEQUENCE),
        tensor=TensorProto(
            dtype=DT_STRING,
            tensor_shape=TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(blobs))]),
            string_val=blobs,
        ),
    )


def _image_value(tag: str, picture: Image.Image) -> Summary.Value:
    png = io.BytesIO()
    picture.save(png, "png", compress_level=1)  # twice as fast as the usual level, a tenth larger
    image = Summary.Image(height=picture.height, width=picture.width, colorspace=3, encoded_image_string=png.getvalue())
    return Summary.Value(tag=tag, image=image)
