"""What lies in an event file for the Attention tab, as bytes: shared by the writer, the tab's server and the tests.

A series (a TensorBoard tag) is one probe in one run. What holds for all of its steps, the tokens, is the content of
the tag's metadata, as JSON. A step is a list of blobs, each compressed with gzip so that a browser unpacks it by
itself: first the scores of the heads as JSON, then, where maps are kept, one blob per layer. A map keeps its lower
triangle only, row by row, each weight as a byte: 255 times its square root, which is within 0.004 of the weight.

Numpy and the standard library only. Shape letters: L layers, H heads, T length.
"""

import gzip
import hashlib
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

PLUGIN_NAME = "attention"
FORMAT_VERSION = 1

Maps = NDArray[np.float32]
Scores = Mapping[str, NDArray[np.float32]]


def series_tag(probe_name: str, token_ids: Sequence[int], generated_from: int | None = None) -> str:
    """The tag of a probe's series: other token ids, or another place where the model began, are another series."""
    facts = [*token_ids] if generated_from is None else [[*token_ids], generated_from]
    digest = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return f"attention/{probe_name}-{digest[:8]}"


def pack_series(
    probe_name: str, labels: Sequence[str], characters: Sequence[str], repeats: bool, generated_from: int | None
) -> bytes:
    """The content of a tag's metadata; the arguments are those of ``Probe``."""
    content = {
        "format_version": FORMAT_VERSION,
        "probe": probe_name,
        "labels": list(labels),
        "characters": list(characters),
        "repeats": repeats,
        "generated_from": generated_from,
    }
    return json.dumps(content, ensure_ascii=False).encode()


def unpack_series(content: bytes) -> dict[str, Any]:
    """What ``pack_series`` packed.

    Raises:
        ValueError: it is something else, or of another version.
    """
    series = json.loads(content)
    if not isinstance(series, dict) or series.get("format_version") != FORMAT_VERSION:
        raise ValueError("not a series of attention maps, or one of another version")
    return series


def pack_scores(scores: Scores) -> bytes:
    """Name to (L, H), to four decimals; what is not a finite number becomes null."""
    content = {
        name: [[round(value, 4) if math.isfinite(value) else None for value in layer] for layer in values.tolist()]
        for name, values in scores.items()
    }
    return gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)


def unpack_scores(blob: bytes) -> dict[str, list[list[float | None]]]:
    """What ``pack_scores`` packed: name to L lists of H numbers.

    Raises:
        ValueError: it is something else.
    """
    try:
        scores = json.loads(gzip.decompress(blob))
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"not gzip: {error}") from None
    if not isinstance(scores, dict):
        raise ValueError("not the scores of heads")
    return scores


def pack_layer(maps: Maps) -> bytes:
    """The maps of one layer: (H, T, T), rows sum to 1; a weight that is not a number is packed as 0."""
    rows, columns = np.tril_indices(maps.shape[-1])
    weights = np.nan_to_num(maps[:, rows, columns], nan=0.0)  # (H, T(T+1)/2)
    return gzip.compress((np.sqrt(weights) * 255).round().astype(np.uint8).tobytes(), mtime=0)


def unpack_layer(blob: bytes, num_heads: int) -> Maps:
    """What ``pack_layer`` packed: (H, T, T), each weight within 0.004."""
    packed = np.frombuffer(gzip.decompress(blob), dtype=np.uint8).reshape(num_heads, -1)
    T = (math.isqrt(8 * packed.shape[1] + 1) - 1) // 2
    maps = np.zeros((num_heads, T, T), dtype=np.float32)
    rows, columns = np.tril_indices(T)
    maps[:, rows, columns] = (packed.astype(np.float32) / 255) ** 2
    return maps
