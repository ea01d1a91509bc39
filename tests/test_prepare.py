import hashlib
from pathlib import Path

import numpy as np
import pytest

from gpt.data.prepare import prepare
from gpt.data.shards import Manifest, SplitTokens
from gpt.tokenizer import Tokenizer


def _write_documents(folder: Path, count: int = 40) -> list[str]:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number:03}.txt").write_text(f"Document {number}: " + "word " * (number + 1))
    return [str(path) for path in sorted(folder.iterdir())]


def _texts(folder: Path, split: str) -> list[str]:
    """The documents of a split, decoded from its shards."""
    manifest = Manifest.load(folder)
    tokenizer = Tokenizer(manifest.tokenizer)
    tokens = SplitTokens(folder, manifest, split)
    ids = tokens.read(0, len(tokens))
    assert ids[0] == manifest.eot_id  # end-of-text begins each document
    starts = np.flatnonzero(ids == manifest.eot_id)
    return [tokenizer.decode(part[1:].tolist()) for part in np.split(ids, starts[1:])]


@pytest.mark.parametrize("tokenizer", ["bytes", "gpt2"])
def test_every_document_is_in_exactly_one_split_as_it_was(tokenizer: str, tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    manifest, written = prepare(sources, tmp_path / "data", tokenizer, val_fraction=0.2, shard_tokens=500)
    assert written
    train, val = _texts(tmp_path / "data", "train"), _texts(tmp_path / "data", "val")
    assert sorted(train + val) == sorted(Path(source).read_text() for source in sources)
    assert not set(train) & set(val)
    for name, texts in (("train", train), ("val", val)):
        assert manifest.splits[name].documents == len(texts)
        assert manifest.splits[name].utf8_bytes == sum(len(text.encode()) for text in texts)


def test_validation_takes_documents_in_hash_order_until_the_fraction_is_reached(tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    prepare(sources, tmp_path / "data", "bytes", val_fraction=0.2)
    texts = sorted((Path(source).read_text() for source in sources), key=lambda t: hashlib.sha256(t.encode()).digest())
    total = sum(map(len, texts))
    expected: list[str] = []
    while sum(map(len, expected)) < 0.2 * total:
        expected.append(texts[len(expected)])
    assert sorted(_texts(tmp_path / "data", "val")) == sorted(expected)


def test_the_split_depends_on_no_order(tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    prepare(sources, tmp_path / "a", "bytes")
    prepare(sources[::-1], tmp_path / "b", "bytes")
    assert sorted(_texts(tmp_path / "a", "val")) == sorted(_texts(tmp_path / "b", "val"))


def test_equal_documents_share_a_split(tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text", count=10) * 3
    prepare(sources, tmp_path / "data", "bytes", val_fraction=0.3)
    assert not set(_texts(tmp_path / "data", "train")) & set(_texts(tmp_path / "data", "val"))


def test_a_lone_document_gives_its_end_from_a_line_start(tmp_path: Path) -> None:
    text = "".join(f"line {number} é\n" for number in range(1000))
    (tmp_path / "a.txt").write_text(text)
    manifest, _ = prepare([str(tmp_path / "a.txt")], tmp_path / "data", "bytes", val_fraction=0.1)
    (train,), (val,) = _texts(tmp_path / "data", "train"), _texts(tmp_path / "data", "val")
    assert train + val == text
    assert val.startswith("line ")
    assert manifest.splits["val"].utf8_bytes == pytest.approx(0.1 * len(text.encode()), abs=20)


def test_a_lone_line_is_cut_between_characters(tmp_path: Path) -> None:
    text = "\U0001f600" * 100
    (tmp_path / "a.txt").write_text(text)
    prepare([str(tmp_path / "a.txt")], tmp_path / "data", "bytes", val_fraction=0.33)
    (train,), (val,) = _texts(tmp_path / "data", "train"), _texts(tmp_path / "data", "val")
    assert (train + val, len(val)) == (text, 33)


def test_the_same_again_changes_nothing_and_something_else_is_refused(tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    prepare(sources, tmp_path / "data", "bytes")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "data").iterdir()}
    _, written = prepare(sources, tmp_path / "data", "bytes")
    assert not written
    Path(sources[3]).write_text("changed")
    for changed in ({"tokenizer_name": "bytes"}, {"tokenizer_name": "gpt2"}):
        with pytest.raises(ValueError, match="other sources or options"):
            prepare(sources, tmp_path / "data", **changed)
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "data").iterdir()}
    assert after == before


def test_an_interrupted_run_is_finished_to_the_same_bytes(tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    prepare(sources, tmp_path / "whole", "bytes", shard_tokens=300)
    prepare(sources, tmp_path / "cut", "bytes", shard_tokens=300)
    (tmp_path / "cut" / "manifest.json").unlink()
    (tmp_path / "cut" / "train_000002.bin").unlink()
    (tmp_path / "cut" / "train_000002.bin.tmp").write_bytes(b"half")
    prepare(sources, tmp_path / "cut", "bytes", shard_tokens=300)
    whole, cut = ({p.name: p.read_bytes() for p in (tmp_path / name).iterdir()} for name in ("whole", "cut"))
    assert whole == cut


@pytest.mark.parametrize(
    "text,options,words",
    [
        ("x", {}, "too short"),
        ("text " * 100, {"val_fraction": 0.0}, "--val-fraction"),
        ("text " * 100, {"val_fraction": 1.0}, "--val-fraction"),
        ("text " * 100, {"val_fraction": float("nan")}, "--val-fraction"),
        ("text " * 100, {"shard_tokens": 0}, "--shard-tokens"),
        ("text " * 100, {"tokenizer_name": "gtp2"}, "gtp2"),
        ("", {}, "holds no text"),
    ],
)
def test_what_cannot_be_prepared_writes_nothing(text: str, options: dict, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(ValueError, match=words):
        prepare([str(tmp_path / "a.txt")], tmp_path / "data", **{"tokenizer_name": "bytes", **options})
    assert not (tmp_path / "data").exists()


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text\n" * 20)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "thesis.doc").write_text("precious")
    with pytest.raises(ValueError, match=r"thesis\.doc"):
        prepare([str(tmp_path / "a.txt")], tmp_path / "data", "bytes")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["thesis.doc"]
