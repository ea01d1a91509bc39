import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gpt.data.manifest import Manifest, import_token_files, verify
from gpt.errors import UserError
from gpt.tokenizer import Tokenizer
from tests.prepared import ids_of, texts_of, write_shard

TEXTS = {"train": ["one document", "another, longer document é"], "val": ["a third"]}


def _ids(split: str) -> np.ndarray:
    tokenizer = Tokenizer("gpt2")
    return np.array([token for text in TEXTS[split] for token in [50256, *tokenizer.encode(text)]], dtype="<u2")


def _llm_c(folder: Path) -> None:
    for split in TEXTS:
        write_shard(folder / f"fineweb_{split}_000000.bin", _ids(split))


def _nanogpt(folder: Path) -> None:
    for split in TEXTS:
        _ids(split).tofile(folder / f"{split}.bin")


def _build_nanogpt(folder: Path) -> None:
    for split in TEXTS:
        np.save(folder / f"edufineweb_{split}_000000.npy", _ids(split))


@pytest.mark.parametrize("write", [_llm_c, _nanogpt, _build_nanogpt])
def test_imported_token_files_get_a_manifest_and_do_not_change(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    manifest, new = import_token_files(tmp_path, Tokenizer("gpt2"))
    assert new
    for split, texts in TEXTS.items():
        assert ids_of(tmp_path, split).tolist() == _ids(split).tolist()
        assert texts_of(tmp_path, split) == texts
        assert manifest.splits[split].documents == len(texts)
        assert manifest.splits[split].utf8_bytes == sum(len(text.encode()) for text in texts)
    assert import_token_files(tmp_path, Tokenizer("gpt2")) == (manifest, False)
    assert verify(tmp_path) == manifest
    (tmp_path / "manifest.json").unlink()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_token_files_of_a_large_vocabulary_are_uint32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tiktoken

    ranks = {bytes([value]): value for value in range(256)}
    large = tiktoken.Encoding("big", pat_str="(?s:.)", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 99_999})
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["big"])
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: large)
    for split in TEXTS:
        write_shard(tmp_path / f"{split}.bin", np.array([99_999, 97, 98], dtype="<u4"))
    manifest, _ = import_token_files(tmp_path, Tokenizer("big"))
    assert (manifest.dtype, manifest.splits["val"].utf8_bytes) == ("uint32", 2)
    assert ids_of(tmp_path, "val").tolist() == [99_999, 97, 98]


def _truncate(name: str, size: int) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


DAMAGE: list[tuple[Callable[[Path], None], Callable[[Path], object], str]] = [
    (
        _llm_c,
        _truncate("fineweb_val_000000.bin", 1025),
        r"val_000000\.bin is not a valid token file: it has 1025 bytes; expected",
    ),
    (_llm_c, _truncate("fineweb_val_000000.bin", 0), r"val_000000\.bin is not a valid token file: it is empty"),
    (_llm_c, lambda folder: (folder / "fineweb_val_000000.bin").unlink(), "no file of split val"),
    (
        _llm_c,
        lambda folder: (folder / "more.bin").touch(),
        r"name of .*more\.bin is ambiguous; expected either train or val",
    ),
    (_llm_c, lambda folder: np.save(folder / "train.npy", _ids("train")), r"several formats \(llm\.c, npy\)"),
    (_nanogpt, _truncate("val.bin", 3), r"val\.bin is not a valid token file: .*not a multiple"),
    (
        _nanogpt,
        lambda folder: (folder / "meta.pkl").write_bytes(pickle.dumps({})),
        r"character vocabulary \(meta\.pkl\)",
    ),
    (
        _nanogpt,
        lambda folder: np.array([60000], "<u2").tofile(folder / "val.bin"),
        r"val\.bin has id 60000; expected ids below 50257",
    ),
    (_nanogpt, lambda folder: np.arange(9, dtype="<u4").tofile(folder / "val.bin"), "seems to have ids of uint32"),
    (
        _nanogpt,
        lambda folder: np.full(9, 50256, "<u2").tofile(folder / "val.bin"),
        "contains no text, only end-of-texts",
    ),
    (_build_nanogpt, lambda folder: _savez(folder / "edufineweb_val_000000.npy"), "it holds several arrays"),
    (_build_nanogpt, _truncate("edufineweb_val_000000.npy", 100), r"NumPy cannot read it"),
    (_build_nanogpt, lambda f: np.save(f / "edufineweb_val_000000.npy", np.zeros(3)), "float64 array"),
    (_build_nanogpt, lambda f: np.save(f / "edufineweb_val_000000.npy", np.array([{}])), "NumPy cannot read it"),
    (_build_nanogpt, lambda f: np.save(f / "edufineweb_val_000000.npy", np.zeros(3, "<u4")), "has ids of uint32"),
    (
        _nanogpt,
        lambda folder: import_token_files(folder, Tokenizer("gpt2")) and _nanogpt_changed(folder),
        "describes other data",
    ),
]


def _savez(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, tokens=np.zeros(3, "<u2"))


def _nanogpt_changed(folder: Path) -> None:
    np.array([50256, 1, 2], "<u2").tofile(folder / "val.bin")


@pytest.mark.parametrize("write,damage,words", DAMAGE, ids=range(len(DAMAGE)))
def test_damaged_and_unknown_files_are_refused(
    write: Callable[[Path], None], damage: Callable[[Path], object], words: str, tmp_path: Path
) -> None:
    write(tmp_path)
    damage(tmp_path)
    manifest = (tmp_path / "manifest.json").read_bytes() if (tmp_path / "manifest.json").exists() else None
    with pytest.raises(UserError, match=words):
        import_token_files(tmp_path, Tokenizer("gpt2"))
    assert manifest == ((tmp_path / "manifest.json").read_bytes() if manifest else None)
    assert (tmp_path / "manifest.json").exists() == (manifest is not None)


def test_damage_after_the_import_is_found_on_opening_or_verifying(tmp_path: Path) -> None:
    for write, name in ((_nanogpt, "val.bin"), (_build_nanogpt, "edufineweb_val_000000.npy")):
        folder = tmp_path / name
        folder.mkdir()
        write(folder)
        import_token_files(folder, Tokenizer("gpt2"))
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[:-2])
        with pytest.raises(UserError, match=name):
            ids_of(folder, "val")
        (folder / name).write_bytes(content[:-1] + b"\x01")
        with pytest.raises(UserError, match="has changed"):
            verify(folder)
        assert Manifest.load(folder).layout in ("nanogpt", "npy")
