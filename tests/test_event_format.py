import gzip
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.attention_maps import event_format

DAMAGED = bytearray(gzip.compress(b'{"sink": [[0.5]]}' * 9))
DAMAGED[12] ^= 0xFF
BLOBS = [bytes(DAMAGED), b"", b"not gzip", gzip.compress(b"[1]"), gzip.compress(b"{"), gzip.compress(b"\xff")]


def _maps(H: int, T: int, seed: int = 0) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(H, T, T)) * 4
    weights = np.tril(np.exp(logits))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 100))
def test_a_layer_comes_back_within_what_a_byte_can_hold(H: int, T: int, seed: int) -> None:
    maps = _maps(H, T, seed)
    back = event_format.unpack_layer(event_format.pack_layer(maps), H)
    assert back.shape == maps.shape
    assert back.dtype == np.float32
    assert np.abs(back - maps).max() < 0.004
    assert not np.triu(back, 1).any()


def test_the_packed_bytes_are_the_documented_ones() -> None:
    maps = np.array([[[1, 0], [0.25, 0.75]], [[1, 0], [0, 1]]], dtype=np.float32)
    packed = gzip.decompress(event_format.pack_layer(maps))
    assert list(packed) == [255, 128, 221, 255, 0, 255]  # 255 * sqrt(w): one head after the other, row by row


def test_what_is_not_a_number_packs_as_nothing() -> None:
    maps = np.full((1, 3, 3), np.nan, dtype=np.float32)
    assert not event_format.unpack_layer(event_format.pack_layer(maps), 1).any()
    scores = event_format.pack_scores({"sink": np.array([[np.nan, np.inf, 0.123456]], dtype=np.float32)})
    assert event_format.unpack_scores(scores) == {"sink": [[None, None, 0.1235]]}


def test_the_same_packs_to_the_same_bytes() -> None:
    maps = _maps(2, 9)
    assert event_format.pack_layer(maps) == event_format.pack_layer(maps)


@pytest.mark.parametrize("blob", BLOBS, ids=["damaged", "empty", "plain", "list", "half", "bytes"])
def test_damaged_scores_are_refused(blob: bytes) -> None:
    with pytest.raises(ValueError):
        event_format.unpack_scores(blob)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"format_version": 2}', b"\xff"])
def test_another_series_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        event_format.unpack_series(content)


def test_a_series_comes_back() -> None:
    content = event_format.pack_series("text", ["<start>", "‹F0›"], ["", "🙂"], False, 1)
    assert event_format.unpack_series(content) == {
        "format_version": 1,
        "probe": "text",
        "labels": ["<start>", "‹F0›"],
        "characters": ["", "🙂"],
        "repeats": False,
        "generated_from": 1,
    }
    assert json.loads(content)


def test_another_text_is_another_series() -> None:
    tags = {event_format.series_tag("text", ids) for ids in ([1, 2], [2, 1], [1, 2, 3], [12])}
    assert len(tags) == 4
    assert len({event_format.series_tag("generated", [1, 2, 3], start) for start in (None, 1, 2)}) == 3
    assert event_format.series_tag("text", [1, 2]) == event_format.series_tag("text", (1, 2))
    assert all(tag.startswith("attention/text-") for tag in tags)


def test_two_hundred_captures_of_gpt2_small_stay_under_60_megabytes() -> None:
    # Rows that are neither even nor one-hot, which compress worst.
    layer = event_format.pack_layer(_maps(12, 64))
    assert 200 * 12 * len(layer) < 60e6
