import gzip
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpt.attention_maps import event_format
from gpt.attention_maps.capture import Predictions
from gpt.attention_maps.probes import Probe
from tests.attention_events import unpack_layer

VALID = gzip.compress(b'{"sink": [[0.5]]}', mtime=0)
DAMAGED = bytearray(gzip.compress(b'{"sink": [[0.5]]}' * 9, mtime=0))
DAMAGED[12] ^= 0xFF
BLOBS = [
    bytes(DAMAGED),
    b"",
    b"not gzip",
    VALID[:-1],
    VALID + b"x",
    VALID + VALID,
    gzip.compress(bytes(2**23), mtime=0),
]
SCORES = [
    *("", "[1]", "{", "{}", "[" * 2000, '{"sink": ' + "[" * 2000 + "]" * 2000 + "}", "\udcff"),
    *('{"entropy": [[1]]}', '{"sink": [[1], [1, 2]]}', '{"sink": [[1]], "entropy": [[1, 2]]}', '{"sink": [[]]}'),
    *('{"sink": 1}', '{"sink": [1]}', '{"sink": [[[1]]]}', '{"sink": [["a"]]}', '{"sink": [[{}]]}', '{"sink": null}'),
    *('{"sink": [[1' + "0" * 400 + "]]}", json.dumps({"sink": [[0] * 20_000]})),
]
SERIES = {"format_version": 1, "probe": "text", "labels": ["a", "b"], "characters": ["", ""], "repeats": False}


def _maps(H: int, T: int, seed: int = 0) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=(H, T, T)) * 4
    weights = np.tril(np.exp(logits))
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


@given(st.integers(1, 5), st.integers(1, 40), st.integers(0, 100))
def test_unpacking_a_layer_restores_it_within_a_byte_s_precision(H: int, T: int, seed: int) -> None:
    maps = _maps(H, T, seed)
    unpacked = unpack_layer(event_format.pack_layer(maps), H)
    assert unpacked.shape == maps.shape
    assert unpacked.dtype == np.float32
    assert np.abs(unpacked - maps).max() < 0.004
    assert not np.triu(unpacked, 1).any()


def test_packed_bytes_follow_the_documented_format() -> None:
    maps = np.array([[[1, 0], [0.25, 0.75]], [[1, 0], [0, 1]]], dtype=np.float32)
    packed = gzip.decompress(event_format.pack_layer(maps))
    assert list(packed) == [255, 128, 221, 255, 0, 255]  # 255 * sqrt(w): one head after the other, row by row


def test_nan_weights_pack_as_zero_and_nan_scores_as_null() -> None:
    maps = np.full((1, 3, 3), np.nan, dtype=np.float32)
    assert not unpack_layer(event_format.pack_layer(maps), 1).any()
    scores = event_format.pack_scores({"sink": np.array([[np.nan, np.inf, 0.123456]], dtype=np.float32)})
    assert event_format.unpack_scores(scores) == {"scores": {"sink": [[None, None, 0.1235]]}}


def test_packing_is_deterministic() -> None:
    maps = _maps(2, 9)
    assert event_format.pack_layer(maps) == event_format.pack_layer(maps)


def test_nan_written_as_such_unpacks_as_none() -> None:
    scores = event_format.unpack_scores(gzip.compress(b'{"sink": [[NaN, -Infinity, 1e999, 0.25]]}', mtime=0))
    assert scores == {"scores": {"sink": [[None, None, None, 0.25]]}}


def test_damaged_scores_are_refused() -> None:
    assert event_format.unpack_scores(VALID) == {"scores": {"sink": [[0.5]]}}
    for blob in BLOBS + [gzip.compress(text.encode(errors="surrogateescape"), mtime=0) for text in SCORES]:
        with pytest.raises(ValueError, match="damaged"):
            event_format.unpack_scores(blob)


PREDICTIONS = {"losses": [1.5], "likeliest": [["a", "b"], ["c", "d"]], "probabilities": [[0.5, 0.25], [0.75, 0.125]]}


def test_predictions_are_unpacked_beside_the_scores() -> None:
    labels, probabilities = [["a", "日"], ["‹FF›", ""]], torch.tensor([[0.5, torch.nan]] * 2)
    predictions = Predictions(torch.tensor([1.23456]), labels, probabilities)
    blob = event_format.pack_scores({"sink": np.array([[0.5]], dtype=np.float32)}, predictions)
    unpacked = event_format.unpack_scores(blob)
    assert unpacked["predictions"] == {
        "losses": [1.2346],
        "likeliest": labels,
        "probabilities": [[0.5, None], [0.5, None]],
    }


@pytest.mark.parametrize(
    "changes",
    [
        *({"losses": [1, 2]}, {"losses": [[1]]}, {"losses": ["a"]}, {"losses": None}, {"likeliest": [["a"], ["b"]]}),
        *(
            {"likeliest": [["a", "b"], ["c"]]},
            {"likeliest": "ab"},
            {"likeliest": [[1, 2], [3, 4]]},
            {"probabilities": 1},
        ),
    ],
)
def test_damaged_predictions_are_refused(changes: dict) -> None:
    def pack(predictions: dict) -> bytes:
        return gzip.compress(json.dumps({"sink": [[0.5]], "predictions": predictions}).encode())

    assert event_format.unpack_scores(pack(PREDICTIONS))["predictions"] == PREDICTIONS
    with pytest.raises(ValueError, match="damaged"):
        event_format.unpack_scores(pack(PREDICTIONS | changes))


def test_a_layer_of_another_shape_is_refused() -> None:
    layer = event_format.pack_layer(_maps(2, 4))
    event_format.check_layer(layer, 2, 4)
    for blob, heads, tokens in [(layer, 1, 4), (layer, 3, 4), (layer, 2, 3), *((blob, 2, 4) for blob in BLOBS)]:
        with pytest.raises(ValueError, match="damaged"):
            event_format.check_layer(blob, heads, tokens)


@pytest.mark.parametrize(
    "changes",
    [
        *({"format_version": 2}, {"probe": 1}, {"labels": "ab"}, {"labels": ["a", 1]}, {"labels": ["a", ["b"]]}),
        *({"labels": ["a", "b", "c"]}, {"labels": ["a"], "characters": [""]}, {"characters": None}, {"repeats": 0}),
        *({"labels": ["a"] * 2000, "characters": [""] * 2000}, {"labels": ["a" * 2**23, "b"]}),
        *({"generated_from": "1"}, {"generated_from": float("nan")}, {"other": float("nan")}),
    ],
)
def test_metadata_with_other_values_is_refused(changes: dict) -> None:
    series = {**SERIES, "generated_from": None}
    assert event_format.unpack_series(json.dumps(series).encode()) == series
    with pytest.raises(ValueError, match="damaged"):
        event_format.unpack_series(json.dumps(series | changes).encode())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 2000,
        json.dumps(SERIES).encode(),
        b'{"x":' * 2000 + b"1" + b"}" * 2000,
    ],
    ids=str,
)
def test_unknown_metadata_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        event_format.unpack_series(content)


def test_unpacking_a_series_restores_the_probe() -> None:
    content = event_format.pack_series(Probe("text", (0, 1), ("<start>", "‹F0›"), ("", "🙂"), generated_from=1))
    assert event_format.unpack_series(content) == {
        "format_version": 1,
        "probe": "text",
        "labels": ["<start>", "‹F0›"],
        "characters": ["", "🙂"],
        "repeats": False,
        "generated_from": 1,
    }
    assert json.loads(content)


def _tag(*token_ids: int, generated_from: int | None = None) -> str:
    return event_format.series_tag(Probe("text", token_ids, (), (), generated_from=generated_from))


def test_each_text_is_a_series_of_its_own() -> None:
    tags = {_tag(1, 2), _tag(2, 1), _tag(1, 2, 3), _tag(12)}
    assert len(tags) == 4
    assert len({_tag(1, 2, 3, generated_from=start) for start in (None, 1, 2)}) == 3
    assert all(tag.startswith("attention/text-") for tag in tags)


def test_tags_and_metadata_are_those_of_earlier_versions() -> None:
    probe = Probe("generated", (256, 104, 105), ("<start>", "h", "i"), ("", "", ""), generated_from=2)
    assert _tag(256, 104, 105) == "attention/text-e8523bfa"
    assert event_format.series_tag(probe) == "attention/generated-8c6bbdc6"
    assert event_format.pack_series(probe) == (
        b'{"format_version": 1, "probe": "generated", "labels": ["<start>", "h", "i"], '
        b'"characters": ["", "", ""], "repeats": false, "generated_from": 2}'
    )


def test_200_captures_of_gpt2_small_take_less_than_60_megabytes() -> None:
    # Rows that are neither uniform nor one-hot compress worst.
    layer = event_format.pack_layer(_maps(12, 64))
    assert 200 * 12 * len(layer) < 60e6
