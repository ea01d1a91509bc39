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
    # Twenty documents of 100 bytes: 30% are the six with the lowest hashes.
    texts = [f"{number:03}" + "x" * 97 for number in range(20)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    prepare([str(tmp_path / f"{n}.txt") for n in range(20)], tmp_path / "data", "bytes", val_fraction=0.3)
    lowest = sorted(texts, key=lambda text: hashlib.sha256(text.encode()).hexdigest())[:6]
    assert sorted(_texts(tmp_path / "data", "val")) == sorted(lowest)


@pytest.mark.parametrize("seed", range(8))
def test_a_document_that_outweighs_the_rest_is_cut(seed: int, tmp_path: Path) -> None:
    novel = "".join(f"line {number} of a long novel\n" for number in range(2000))
    notes = [f"note {seed} {number} " * 5 for number in range(3)]
    for number, text in enumerate([novel, *notes]):
        (tmp_path / f"{number}.txt").write_text(text)
    manifest, _ = prepare([str(tmp_path / f"{n}.txt") for n in range(4)], tmp_path / "data", "bytes")
    train, val = _texts(tmp_path / "data", "train"), _texts(tmp_path / "data", "val")
    total = manifest.splits["train"].utf8_bytes + manifest.splits["val"].utf8_bytes
    assert total == len(novel) + sum(map(len, notes))
    assert manifest.splits["val"].utf8_bytes == pytest.approx(0.1 * total, rel=0.05)
    assert max(train, key=len) + max(val, key=len) == novel


@pytest.mark.parametrize("val_fraction", [0.01, 0.5, 0.9, 0.99])
def test_no_split_is_ever_empty(val_fraction: float, tmp_path: Path) -> None:
    for count in (1, 2, 3):
        (tmp_path / f"text{count}").mkdir()
        sources = [str(tmp_path / f"text{count}" / f"{number}.txt") for number in range(count)]
        for source in sources:
            Path(source).write_text(f"{source} " * 20)
        manifest, _ = prepare(sources, tmp_path / f"data{count}", "bytes", val_fraction)
        assert min(split.tokens for split in manifest.splits.values()) > 1


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
    (tmp_path / "cut" / ".unfinished").touch()
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


@pytest.mark.parametrize("name", ["thesis.doc", "train_000000.bin", "train_precious.bin.gz"])
def test_a_folder_with_other_things_is_left_alone(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text\n" * 20)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text("precious")
    with pytest.raises(ValueError, match=f"not empty.*{name}"):
        prepare([str(tmp_path / "a.txt")], tmp_path / "data", "bytes")
    assert (tmp_path / "data" / name).read_text() == "precious"


def test_a_missing_shard_is_written_again(tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    prepare(sources, tmp_path / "data", "bytes")
    shard = tmp_path / "data" / "train_000000.bin"
    content = shard.read_bytes()
    shard.unlink()
    _, written = prepare(sources, tmp_path / "data", "bytes")
    assert written
    assert shard.read_bytes() == content


def test_a_damaged_manifest_says_what_to_do(tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    prepare(sources, tmp_path / "data", "bytes")
    (tmp_path / "data" / "manifest.json").write_text("{")
    with pytest.raises(ValueError, match="delete it and run this again"):
        prepare(sources, tmp_path / "data", "bytes")
