"""Byte format of the Attention tab's event files, shared by the writer and the tab's server.

A series (a TensorBoard tag) is one probe in one run; the tag's metadata holds its tokens as JSON. A step of a series
is a list of gzip blobs, which a browser decompresses itself: the head scores as JSON, then, if the maps are kept, one
blob per layer. A layer's blob holds the lower triangle of each head, row by row, one byte per weight: 255 times its
square root, which is within 0.004 of the weight.

An event file may be damaged, or come from elsewhere: unpacking raises ValueError for what a browser could not draw.

It does not import torch, because every TensorBoard imports it. Shape letters: L layers, H heads, T length.
"""

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gpt.attention_maps.capture import Predictions
    from gpt.attention_maps.head_roles import Role
    from gpt.attention_maps.probes import Probe

PLUGIN_NAME = "attention"
LOSS_TAG = f"{PLUGIN_NAME}/loss_by_position"
FORMAT_VERSION = 1

_PREDICTIONS, _ROLES = "predictions", "roles"  # beside the names of scores
_MAX_TOKENS = 1024
_MAX_HEADS = 2**14  # over all layers; GPT-3 175B has 9,216, whose scores take 0.6 MB
_MAX_JSON_BYTES = 2**22


@contextmanager
def _damage_as_value_error() -> Iterator[None]:
    try:
        yield
    except Exception as error:  # parsers of bytes that may be anything raise anything, such as RecursionError
        raise ValueError(f"damaged, or of another version: {error}") from None


def series_tag(probe: "Probe") -> str:
    """Return the tag of a probe's series; other token ids or another ``generated_from`` are another series."""
    ids = list(probe.token_ids)
    identity = ids if probe.generated_from is None else [ids, probe.generated_from]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    return f"attention/{probe.name}-{digest[:8]}"


def pack_series(probe: "Probe") -> bytes:
    """Pack a probe as the content of its tag's metadata."""
    content = {
        "format_version": FORMAT_VERSION,
        "probe": probe.name,
        "labels": probe.labels,
        "characters": probe.characters,
        "repeats": probe.is_repeated_random,
        "generated_from": probe.generated_from,
    }
    return json.dumps(content, ensure_ascii=False).encode()


@_damage_as_value_error()
def unpack_series(content: bytes) -> dict[str, Any]:
    """Unpack ``pack_series``."""
    if len(content) > _MAX_JSON_BYTES:
        raise ValueError(f"metadata of {len(content)} bytes")
    match series := json.loads(content):
        case {
            "format_version": version,
            "probe": str(),
            "labels": [_, _, *_] as labels,
            "characters": [*characters],
            "repeats": bool(),
            "generated_from": int() | None,
            **others,
        } if version == FORMAT_VERSION and len(labels) == len(characters) <= _MAX_TOKENS and not others:
            if all(isinstance(text, str) for text in labels + characters):
                return dict(series)
    raise ValueError(
        f"metadata of something other than a probe of 2 to {_MAX_TOKENS} tokens in format version {FORMAT_VERSION}"
    )


def pack_scores(
    scores: Mapping[str, NDArray[np.float32]],
    predictions: "Predictions | None" = None,
    roles: "list[list[Role]] | None" = None,
) -> bytes:
    """Pack scores, name to (L, H), predictions and roles, rounded to four decimals; NaN and infinity become null."""
    content: dict[str, Any] = {name: _rounded(values) for name, values in scores.items()}
    if predictions is not None:
        content[_PREDICTIONS] = {
            "losses": _rounded(predictions.losses.numpy()),
            "likeliest": predictions.likeliest,
            "probabilities": _rounded(predictions.probabilities.numpy()),
        }
    if roles is not None:
        content[_ROLES] = [[role and [role[0], round(role[1], 4)] for role in layer] for layer in roles]
    return gzip.compress(json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode(), mtime=0)


@_damage_as_value_error()
def unpack_scores(blob: bytes) -> dict[str, Any]:
    """Unpack ``pack_scores``: ``scores``, name to L lists of H numbers; if written, ``predictions`` and ``roles``."""
    content = json.loads(_decompress(blob, _MAX_JSON_BYTES))
    predictions, roles = content.pop(_PREDICTIONS, None), content.pop(_ROLES, None)
    scores = {name: np.array(values, dtype=np.float64) for name, values in content.items()}
    sink = scores["sink"]
    if len({values.shape for values in scores.values()}) != 1 or sink.ndim != 2 or not 0 < sink.size <= _MAX_HEADS:
        raise ValueError("scores of different or too many heads")
    unpacked: dict[str, Any] = {"scores": {name: _rounded(values) for name, values in scores.items()}}
    if predictions is not None:
        unpacked[_PREDICTIONS] = _checked_predictions(predictions)
    if roles is not None:
        given = [
            role is None or (isinstance(role[0], str) and isinstance(role[1], float)) for row in roles for role in row
        ]
        if not all(given) or tuple(map(len, roles)) != (sink.shape[1],) * len(sink):
            raise ValueError("roles of another shape or type")
        unpacked[_ROLES] = roles
    return unpacked


def _checked_predictions(predictions: Mapping[str, Any]) -> dict[str, Any]:
    numbers = {name: np.array(predictions[name], dtype=np.float64) for name in ("losses", "probabilities")}
    labels = np.array(predictions["likeliest"])
    if labels.dtype.kind != "U" or labels.shape != numbers["probabilities"].shape or labels.ndim != 2:
        raise ValueError("predictions of different shapes")
    if numbers["losses"].shape != (len(labels) - 1,):
        raise ValueError("losses of another number of tokens")
    return {"likeliest": predictions["likeliest"], **{name: _rounded(values) for name, values in numbers.items()}}


def pack_losses(positions: list[int], losses: list[float]) -> bytes:
    """Pack validation losses, of ranges of positions that begin at ``positions``."""
    content = {"positions": positions, "losses": [round(loss, 4) if math.isfinite(loss) else None for loss in losses]}
    return gzip.compress(json.dumps(content).encode(), mtime=0)


@_damage_as_value_error()
def unpack_losses(blob: bytes) -> dict[str, list[Any]]:
    """Unpack ``pack_losses``."""
    content = json.loads(_decompress(blob, _MAX_JSON_BYTES))
    positions, losses = np.array(content["positions"]), np.array(content["losses"], dtype=np.float64)
    if positions.dtype.kind != "i" or positions.ndim != 1 or positions.shape != losses.shape:
        raise ValueError("positions or losses of another shape")
    return {"positions": positions.tolist(), "losses": _rounded(losses)}


def pack_layer(maps: NDArray[np.float32]) -> bytes:
    """Pack the maps of one layer, (H, T, T), rows sum to 1; a NaN weight becomes 0."""
    rows, columns = np.tril_indices(maps.shape[-1])
    weights = np.nan_to_num(maps[:, rows, columns], nan=0.0)  # (H, T(T+1)/2)
    return gzip.compress((np.sqrt(weights) * 255).round().astype(np.uint8).tobytes(), mtime=0)


@_damage_as_value_error()
def check_layer(blob: bytes, num_heads: int, num_tokens: int) -> None:
    """Raise ValueError unless the blob is a ``pack_layer`` of maps of this shape."""
    expected = num_heads * num_tokens * (num_tokens + 1) // 2
    if (size := len(_decompress(blob, expected))) != expected:
        raise ValueError(f"{size} attention weights; expected {expected}")


def _rounded(values: NDArray[Any]) -> list[Any]:
    if values.ndim > 1:
        return [_rounded(row) for row in values]
    return [round(value, 4) if math.isfinite(value) else None for value in values.tolist()]


def _decompress(blob: bytes, max_bytes: int) -> bytes:
    stream = zlib.decompressobj(wbits=31)  # gzip
    content = stream.decompress(blob, max_bytes + 1)
    if len(content) > max_bytes or not stream.eof or stream.unused_data:
        raise ValueError(f"a blob that is truncated, has trailing bytes or unpacks to more than {max_bytes} bytes")
    return content
