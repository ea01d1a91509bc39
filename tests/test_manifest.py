import dataclasses
import hashlib
import json
import os
import pickle
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpt.data.manifest import Manifest, SplitTokens, verify
from gpt.data.prepare import PrepareOptions, prepare
from gpt.data.token_files import open_shard
from gpt.errors import UserError
from gpt.tokenizer import Tokenizer
from tests.prepared import write_shard


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Prepared data: 3 documents, shards of 100 tokens."""
    for number, size in enumerate((300, 150, 60)):
        (tmp_path / f"{number}.txt").write_text(f"{number}" * size)
    prepare(
        [str(tmp_path / f"{n}.txt") for n in range(3)], tmp_path / "data", "bytes", PrepareOptions(shard_tokens=100)
    )
    return tmp_path / "data"


@pytest.mark.parametrize(
    "damage,words",
    [
        (lambda content: content[:-1], "not a valid token file.*expected 1224"),
        (lambda content: content + b"\0", "not a valid token file.*expected 1224"),
        (lambda content: content[:500], "does not start with llm.c's header"),
        (lambda content: b"\0" * len(content), "does not start with llm.c's header"),
        (lambda content: b"", "does not start with llm.c's header"),
    ],
)
def test_a_damaged_shard_is_refused(damage: Callable[[bytes], bytes], words: str, folder: Path) -> None:
    shard = folder / "train_000001.bin"
    shard.write_bytes(damage(shard.read_bytes()))
    with pytest.raises(UserError, match=words):
        SplitTokens(folder, Manifest.load(folder), "train")


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "train_000001.bin").unlink()
    with pytest.raises(UserError, match=r"train_000001\.bin is missing"):
        SplitTokens(folder, Manifest.load(folder), "train")


def test_a_split_reads_across_shards(folder: Path) -> None:
    manifest = Manifest.load(folder)
    tokens = SplitTokens(folder, manifest, "train")
    whole = np.concatenate([open_shard(folder / shard.name) for shard in manifest.splits["train"].shards])
    assert len(manifest.splits["train"].shards) > 2
    assert len(tokens) == len(whole)
    for start in range(0, len(whole), 37):
        for stop in range(start + 1, len(whole) + 1, 41):
            assert np.array_equal(tokens.read(start, stop), whole[start:stop])


def test_a_split_has_more_shards_than_a_process_may_open(folder: Path) -> None:
    manifest = Manifest.load(folder)
    shards = manifest.splits["train"].shards[:2] * 150
    split = dataclasses.replace(manifest.splits["train"], shards=shards, tokens=150 * 200)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with (folder / "manifest.json").open() as file:
        resource.setrlimit(resource.RLIMIT_NOFILE, (file.fileno() + 120, limits[1]))
    try:
        tokens = SplitTokens(folder, dataclasses.replace(manifest, splits={"train": split}), "train")
        pair = [*tokens.read(0, 200)]
        for start in (0, 29_000, 3):
            assert tokens.read(start, 30_000).tolist() == (pair * 150)[start:]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_a_shard_that_shrinks_while_it_is_read_raises(folder: Path) -> None:
    tokens = SplitTokens(folder, Manifest.load(folder), "train")
    os.truncate(folder / "train_000001.bin", 1101)
    assert len(tokens.read(0, 100)) == 100
    with pytest.raises(UserError, match=r"train_000001\.bin was truncated"):
        tokens.read(90, 200)


def test_pickled_tokens_hold_paths_and_not_the_corpus(folder: Path) -> None:
    tokens = SplitTokens(folder, Manifest.load(folder), "train")
    pickled = pickle.dumps(tokens)
    assert b"0" * 50 not in pickled
    assert np.array_equal(pickle.loads(pickled).read(90, 110), tokens.read(90, 110))


def test_reading_an_id_outside_the_vocabulary_raises(folder: Path) -> None:
    path = folder / "train_000001.bin"
    tokens = np.array(open_shard(path))
    tokens[7] = 257
    write_shard(path, tokens)
    split = SplitTokens(folder, Manifest.load(folder), "train")
    assert len(split.read(0, 107)) == 107
    with pytest.raises(UserError, match=r"257.*train_000001\.bin"):
        split.read(0, 108)


def test_verify_detects_a_changed_byte(folder: Path) -> None:
    assert verify(folder) == Manifest.load(folder)
    path = folder / "train_000001.bin"
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"train_000001\.bin has changed"):
        verify(folder)


def test_an_unknown_split_raises_with_the_known_ones(folder: Path) -> None:
    with pytest.raises(UserError, match=r"'test'.*train, val"):
        SplitTokens(folder, Manifest.load(folder), "test")


def test_another_tokenizer_is_refused(folder: Path) -> None:
    manifest = Manifest.load(folder)
    manifest.check_tokenizer(Tokenizer("bytes"))
    with pytest.raises(UserError, match=r"'bytes' \(257 ids\).*'gpt2' \(50257 ids\)"):
        manifest.check_tokenizer(Tokenizer("gpt2"))
    with pytest.raises(UserError, match="prepare"):
        dataclasses.replace(manifest, tokenizer_sha256="0" * 64).check_tokenizer(Tokenizer("bytes"))


def test_the_hash_is_of_the_tokenizer_and_the_shards(folder: Path) -> None:
    manifest = Manifest.load(folder)
    train = manifest.splits["train"]
    renamed = [dataclasses.replace(shard, name=f"x{shard.name}") for shard in train.shards]
    splits = {**manifest.splits, "train": dataclasses.replace(train, shards=tuple(renamed))}
    same = dataclasses.replace(manifest, sources=("./0.txt",), options={"seed": 9}, corpus_sha256="0", splits=splits)
    assert same.sha256 == manifest.sha256
    assert manifest.is_data_of(same.sha256)
    splits = {**manifest.splits, "train": dataclasses.replace(train, shards=train.shards[::-1])}
    for change in ({"splits": splits}, {"tokenizer_sha256": "0"}, {"vocab_size": 258}, {"layout": "nanogpt"}):
        assert dataclasses.replace(manifest, **change).sha256 != manifest.sha256
        assert not manifest.is_data_of(dataclasses.replace(manifest, **change).sha256)
    # The hash in earlier checkpoints.
    content = json.dumps(json.loads((folder / "manifest.json").read_text()), sort_keys=True)
    assert manifest.is_data_of(hashlib.sha256(content.encode()).hexdigest())


def _set(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update({key: value})


@pytest.mark.parametrize(
    "damage",
    [
        _set("format_version", 99),
        _set("dtype", "object"),
        _set("splits", []),
        _set("splits", {}),
        _set("unknown", 1),
        *(_set(key, value) for key in ("tokenizer", "vocab_size", "eot_id", "options") for value in (None, [1], 1.5)),
        lambda content: content["splits"].pop("val"),
        lambda content: content["splits"]["train"].update(documents="3"),
        lambda content: content["splits"]["train"]["shards"][0].update(sha256=None),
        lambda content: content["splits"]["train"]["shards"][0].update(name=7),
        lambda content: content.pop("eot_id"),
        lambda content: content["splits"]["train"]["shards"][0].update(name="../train_000000.bin"),
        lambda content: content["splits"]["train"]["shards"][0].update(tokens=10**30),
        lambda content: content["splits"]["train"]["shards"][0].update(tokens=-1),
        lambda content: content["splits"]["train"].update(tokens=1),
        lambda content: content["splits"]["val"].update(utf8_bytes=0),
        lambda content: content["splits"]["train"].update(shards=[], tokens=0),
    ],
)
def test_an_inconsistent_manifest_is_refused(damage: Callable[[dict[str, Any]], Any], folder: Path) -> None:
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    damage(content)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"manifest\.json is not a manifest"):
        Manifest.load(folder)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"splits":' * 2000])
def test_a_file_that_is_not_a_manifest_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(UserError, match=r"manifest\.json is not a manifest"):
        Manifest.load(tmp_path)


def test_a_missing_manifest_names_the_command_to_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"prepare_data\.py"):
        Manifest.load(tmp_path)
