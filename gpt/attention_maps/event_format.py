"""Byte format of the Attention tab's event files, shared by the writer and the tab's server.

A series (a TensorBoard tag) is one probe in one run; the tag's metadata holds its tokens as JSON. A step of a series
is a list of gzip blobs, which a browser decompresses itself: the head scores as JSON, then, if the maps are kept, one
blob per layer. A layer's blob holds the lower triangle of each head, row by row, one byte per weight: 255 times its
square root, which is within 0.004 of the weight.

It does not import torch, because every TensorBoard imports it. Shape letters: L layers, H heads, T length.
"""

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gpt.attention_maps.probes import Probe

PLUGIN_NAME = "attention"
FORMAT_VERSION = 1


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


def unpack_series(content: bytes) -> dict[str, Any]:
    """Unpack ``pack_series``; raises ValueError if the content is damaged or has another format version."""
    series = json.loads(content)
    if not isinstance(series, dict) or series.get("format_version") != FORMAT_VERSION:
        raise ValueError(f"the metadata is not a series of attention maps of format version {FORMAT_VERSION}")
    return series


def pack_scores(scores: Mapping[str, NDArray[np.float32]]) -> bytes:
    """Pack scores, name to (L, H), rounded to four decimals; NaN and infinity become null."""
    content = {
        name: [[round(value, 4) if math.isfinite(value) else None for value in layer] for layer in values.tolist()]
        for name, values in scores.items()
    }
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)


def unpack_scores(blob: bytes) -> dict[str, list[list[float | None]]]:
    """Unpack ``pack_scores``, name to L lists of H numbers; raises ValueError if the blob is damaged."""
    try:
        scores = json.loads(gzip.decompress(blob))
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"the scores are not valid gzip: {error}") from None
    if not isinstance(scores, dict):
        raise ValueError("the scores are not a JSON object")
    return scores


def pack_layer(maps: NDArray[np.float32]) -> bytes:
    """Pack the maps of one layer, (H, T, T), rows sum to 1; a NaN weight becomes 0."""
    rows, columns = np.tril_indices(maps.shape[-1])
    weights = np.nan_to_num(maps[:, rows, columns], nan=0.0)  # (H, T(T+1)/2)
    return gzip.compress((np.sqrt(weights) * 255).round().astype(np.uint8).tobytes(), mtime=0)
