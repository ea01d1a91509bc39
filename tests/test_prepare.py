import errno
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpt.data.documents import PrepareOptions
from gpt.data.manifest import Manifest
from gpt.data.prepare import prepare
from gpt.errors import UserError
from gpt.files import exclusive
from gpt.tokenizer import Tokenizer
from tests.prepared import contents, ids_of, texts_of


def _write_documents(folder: Path, count: int = 40) -> list[str]:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        (folder / f"{number:03}.txt").write_text(f"Document {number}: " + "word " * (number + 1))
    return [str(path) for path in sorted(folder.iterdir())]


@pytest.mark.parametrize("tokenizer", ["bytes", "gpt2"])
def test_every_document_is_unchanged_in_exactly_one_split(tokenizer: str, tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    manifest, written = prepare(sources, tmp_path / "data", tokenizer, PrepareOptions(0.2, 500))
    assert written
    train, val = texts_of(tmp_path / "data", "train"), texts_of(tmp_path / "data", "val")
    assert sorted(train + val) == sorted(Path(source).read_text() for source in sources)
    assert not set(train) & set(val)
    for name, texts in (("train", train), ("val", val)):
        assert manifest.splits[name].documents == len(texts)
        assert manifest.splits[name].utf8_bytes == sum(len(text.encode()) for text in texts)


def test_equal_data_is_kept_and_other_data_is_refused(tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    prepare(sources, tmp_path / "data", "bytes")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "data").iterdir()}
    _, written = prepare(sources, tmp_path / "data", "bytes")
    assert not written
    Path(sources[3]).write_text("changed")
    for changed in ({"tokenizer": "bytes"}, {"tokenizer": "gpt2"}):
        with pytest.raises(UserError, match="other sources or options"):
            prepare(sources, tmp_path / "data", **changed)
    after = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (tmp_path / "data").iterdir()}
    assert after == before


def test_an_interrupted_run_is_completed_to_the_same_bytes(tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    prepare(sources, tmp_path / "whole", "bytes", PrepareOptions(shard_tokens=300))
    prepare(sources, tmp_path / "cut", "bytes", PrepareOptions(shard_tokens=300))
    (tmp_path / "cut" / "manifest.json").unlink()
    (tmp_path / "cut" / ".unfinished").touch()
    (tmp_path / "cut" / "train_000002.bin").unlink()
    (tmp_path / "cut" / "train_000002.bin.tmp").write_bytes(b"half")
    prepare(sources, tmp_path / "cut", "bytes", PrepareOptions(shard_tokens=300))
    assert contents(tmp_path / "whole") == contents(tmp_path / "cut")


@pytest.mark.parametrize(
    "text,options,words",
    [
        ("x", {}, "1 bytes, too few"),
        ("text " * 100, {"val_fraction": 0.0}, "val_fraction is"),
        ("text " * 100, {"val_fraction": 1.0}, "val_fraction is"),
        ("text " * 100, {"val_fraction": float("nan")}, "val_fraction is"),
        ("text " * 100, {"shard_tokens": 0}, "shard_tokens is"),
        ("text " * 100, {"tokenizer": "gtp2"}, "gtp2"),
        ("", {}, "contain no text"),
    ],
)
def test_a_user_error_writes_nothing(text: str, options: dict, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(UserError, match=words):
        tokenizer = options.pop("tokenizer", "bytes")
        prepare([str(tmp_path / "a.txt")], tmp_path / "data", tokenizer, PrepareOptions(**options))
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("name", ["thesis.doc", "train_000000.bin", "train_precious.bin.gz"])
def test_a_folder_with_other_files_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text\n" * 20)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / name).write_text("precious")
    with pytest.raises(UserError, match=f"not empty.*{name}"):
        prepare([str(tmp_path / "a.txt")], tmp_path / "data", "bytes")
    assert (tmp_path / "data" / name).read_text() == "precious"


@pytest.mark.parametrize("damaged", [False, True])
def test_a_missing_or_damaged_shard_is_written_again(damaged: bool, tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    prepare(sources, tmp_path / "data", "bytes")
    shard = tmp_path / "data" / "train_000000.bin"
    content = shard.read_bytes()
    if damaged:
        shard.write_bytes(content[:-2] + b"\1\0")
    else:
        shard.unlink()
    _, written = prepare(sources, tmp_path / "data", "bytes")
    assert written
    assert shard.read_bytes() == content


def test_a_damaged_manifest_raises_with_a_remedy(tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    prepare(sources, tmp_path / "data", "bytes")
    (tmp_path / "data" / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="delete it and run the command again"):
        prepare(sources, tmp_path / "data", "bytes")


def _write_novel(path: Path, megabytes: float, seed: int = 0) -> None:
    """Write random words, numbers, unusual characters and line ends, some of them in long runs."""
    generator = random.Random(seed)
    words = ["the", "quick", "naïve", "\U0001f600", "漢字", "don't", "1234", "x" * 50, "...", "\u00a0", "\x1c", "\r\n"]
    with path.open("w", encoding="utf-8", newline="") as file:
        while file.tell() < megabytes * 1e6:
            file.write(
                "".join(generator.choice(words) + generator.choice([" ", "  ", "\n", "\t"]) for _ in range(9999))
            )


@pytest.mark.parametrize("tokenizer", ["gpt2", "bytes"])
def test_a_document_encoded_in_chunks_has_the_ids_of_the_whole(tokenizer: str, tmp_path: Path) -> None:
    _write_novel(tmp_path / "novel.txt", 3)
    text = (tmp_path / "novel.txt").read_bytes().decode()
    prepare([str(tmp_path / "novel.txt")], tmp_path / "data", tokenizer, workers=2)
    train, val = (ids_of(tmp_path / "data", split)[1:].tolist() for split in ("train", "val"))
    whole = Tokenizer(tokenizer)._encoding.encode_ordinary(text[: len(text) - len(Tokenizer(tokenizer).decode(val))])
    assert train == whole
    assert Tokenizer(tokenizer).decode(train + val) == text


@pytest.mark.parametrize("run", ["a", "^", " ", "\n", "\r\n", "\t", "\u00a0", "漢"])
def test_a_run_of_a_million_equal_characters_is_encoded(run: str, tmp_path: Path) -> None:
    text = "before" + run * 1_000_000 + "after"
    (tmp_path / "a.txt").write_bytes(text.encode())
    (tmp_path / "b.txt").write_text("short " * 10)
    prepare([str(tmp_path / "a.txt"), str(tmp_path / "b.txt")], tmp_path / "data", "gpt2", PrepareOptions(1e-5))
    (beginning,) = [part for part in texts_of(tmp_path / "data", "train") if part.startswith("before")]
    (end,) = texts_of(tmp_path / "data", "val")  # the long document is divided near its end
    assert beginning + end == text


def test_the_bytes_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    _write_novel(tmp_path / "novel.txt", 1)
    sources = [*_write_documents(tmp_path / "text"), str(tmp_path / "novel.txt")]
    for workers in (1, 2, 5):
        prepare(sources, tmp_path / f"data{workers}", "gpt2", PrepareOptions(shard_tokens=5000), workers=workers)
    assert contents(tmp_path / "data1") == contents(tmp_path / "data2") == contents(tmp_path / "data5")


def test_a_literal_end_of_text_is_text_token_or_error(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("<|endoftext|>one<|endoftext|>two" + " words" * 200)
    for choice in ("text", "token"):
        options = PrepareOptions(special_tokens=choice)
        manifest, _ = prepare([str(tmp_path / "a.txt")], tmp_path / choice, "gpt2", options)
        train = ids_of(tmp_path / choice, "train").tolist()
        tokenizer = Tokenizer("gpt2")
        if choice == "text":
            assert train[:9] == [50256, *tokenizer.encode("<|endoftext|>one")][:9]
            assert train.count(50256) == manifest.splits["train"].documents == 1
        else:
            assert train[:4] == [50256, *tokenizer.encode("one"), 50256, *tokenizer.encode("two")]
            assert train.count(50256) == manifest.splits["train"].documents == 2
        # Bits per byte count bytes of text, and the token has none.
        lengths = [len(tokenizer.decode_bytes([token])) for token in train if token != 50256]
        assert manifest.splits["train"].utf8_bytes == sum(lengths)
    with pytest.raises(UserError, match=r"a\.txt has a literal .*set special_tokens"):
        prepare([str(tmp_path / "a.txt")], tmp_path / "error", "gpt2", PrepareOptions(special_tokens="error"))
    assert not (tmp_path / "error").exists()


@pytest.mark.parametrize("streaming", [False, True])
def test_each_hint_is_logged_once(streaming: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(f"{number} story\0\n<|endoftext|>\n" * 9)
        (tmp_path / f"{number}.rst").write_text("other")
    (tmp_path / "empty.txt").write_text("")
    for choice in ("text", "token"):
        caplog.clear()
        options = PrepareOptions(0.3, special_tokens=choice, streaming=streaming)
        prepare([str(tmp_path)], tmp_path / f"data-{choice}", "bytes", options)
        assert caplog.messages.count(f"{tmp_path}: skipped 9 files of other types (9 .rst)") == 1
        assert sum("contains NUL characters" in message for message in caplog.messages) == 1
        assert sum("contains <|endoftext|>" in message for message in caplog.messages) == (choice == "text")
        assert sum("skipped 1 empty document," in message for message in caplog.messages) == 1
        shutil.rmtree(tmp_path / f"data-{choice}")


def test_the_seed_changes_the_split_and_other_options_are_refused(tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    prepare(sources, tmp_path / "a", "bytes")
    prepare(sources, tmp_path / "b", "bytes", PrepareOptions(seed=1))
    assert texts_of(tmp_path / "a", "val") != texts_of(tmp_path / "b", "val")
    for options in (PrepareOptions(seed=1), PrepareOptions(streaming=True), PrepareOptions(special_tokens="token")):
        with pytest.raises(UserError, match="other sources or options"):
            prepare(sources, tmp_path / "a", "bytes", options)
    with pytest.raises(UserError, match="other sources or options"):
        prepare(sources, tmp_path / "a", "bytes", PrepareOptions(newlines="lf"))


def test_streaming_into_an_empty_split_raises_with_token_counts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one document")
    with pytest.raises(UserError, match=r"split \w+ has 0 of 13 tokens; expected at least 2"):
        prepare([str(tmp_path / "a.txt")], tmp_path / "data", "bytes", PrepareOptions(streaming=True))
    assert not (tmp_path / "data").exists()


def test_sources_that_change_between_the_passes_are_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpt.data import prepare as module

    sources = _write_documents(tmp_path / "text")
    original = module.plan_split

    def change_then_plan(*arguments: object) -> object:
        Path(sources[7]).write_text(Path(sources[7]).read_text().upper())  # of the same size
        return original(*arguments)

    monkeypatch.setattr(module, "plan_split", change_then_plan)
    with pytest.raises(UserError, match=r"007\.txt changed while it was read"):
        prepare(sources, tmp_path / "data", "bytes")
    assert not (tmp_path / "data").exists()


def test_end_of_texts_in_a_row_become_one(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(f"{number} words" * 20 + "<|endoftext|><|endoftext|>")
    options = PrepareOptions(0.3, special_tokens="token")
    manifest, _ = prepare([str(tmp_path / "*.txt")], tmp_path / "data", "bytes", options)
    for split in ("train", "val"):
        ids = ids_of(tmp_path / "data", split)
        assert not ((ids[:-1] == 256) & (ids[1:] == 256)).any()
        assert manifest.splits[split].documents == (ids == 256).sum()


def test_two_processes_cannot_write_to_one_folder(tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    (tmp_path / "data").mkdir()
    with exclusive(tmp_path / "data", "-"), pytest.raises(UserError, match="another process is writing"):
        prepare(sources, tmp_path / "data", "bytes")
    prepare(sources, tmp_path / "data", "bytes")


def test_data_of_a_concurrent_process_is_not_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpt.data import prepare as module

    sources, original = _write_documents(tmp_path / "text"), module.plan_split

    def another_finishes(*arguments: object) -> object:
        monkeypatch.setattr(module, "plan_split", original)
        prepare(sources, tmp_path / "data", "bytes", PrepareOptions(seed=7))
        return original(*arguments)

    monkeypatch.setattr(module, "plan_split", another_finishes)
    with pytest.raises(UserError, match="another process has written"):
        prepare(sources, tmp_path / "data", "bytes")
    assert Manifest.load(tmp_path / "data").options["seed"] == 7
    assert texts_of(tmp_path / "data", "train")


def test_a_failed_run_deletes_the_shards_of_an_interrupted_one(tmp_path: Path) -> None:
    sources = _write_documents(tmp_path / "text")
    prepare(sources, tmp_path / "whole", "bytes")
    prepare(sources, tmp_path / "data", "bytes", PrepareOptions(shard_tokens=100))
    (tmp_path / "data" / "manifest.json").rename(tmp_path / "data" / "manifest.json.tmp")
    (tmp_path / "data" / ".unfinished").touch()
    (tmp_path / "data" / "notes_2.bin").write_text("precious")
    (tmp_path / "literal.txt").write_text("<|endoftext|> " * 20)
    with pytest.raises(UserError, match="has a literal"):
        prepare([str(tmp_path / "literal.txt")], tmp_path / "data", "bytes", PrepareOptions(special_tokens="error"))
    assert contents(tmp_path / "data") == {"notes_2.bin": b"precious"}
    (tmp_path / "data" / "notes_2.bin").unlink()
    prepare(sources, tmp_path / "data", "bytes")
    assert contents(tmp_path / "data") == contents(tmp_path / "whole")


COMMAND = [sys.executable, "scripts/prepare_data.py"]


@pytest.mark.parametrize("seed", range(4))
def test_rerunning_after_a_kill_writes_the_same_bytes(seed: int, tmp_path: Path) -> None:
    _write_novel(tmp_path / "novel.txt", 3)
    arguments = [str(tmp_path / "novel.txt"), "--shard-tokens", "20000", "--workers", "1", "--output"]
    started = time.monotonic()
    subprocess.run([*COMMAND, *arguments, str(tmp_path / "whole")], check=True, capture_output=True)
    seconds = time.monotonic() - started
    process = subprocess.Popen([*COMMAND, *arguments, str(tmp_path / "killed")], stderr=subprocess.PIPE)
    time.sleep(random.Random(seed).uniform(0.4, 0.95) * seconds)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    if (tmp_path / "killed" / "manifest.json").exists():  # killed after completion
        assert not list((tmp_path / "killed").glob("*.tmp"))
    for shard in (tmp_path / "killed").glob("*.bin"):  # a shard with its final name is complete
        assert shard.read_bytes() == (tmp_path / "whole" / shard.name).read_bytes()
    subprocess.run([*COMMAND, *arguments, str(tmp_path / "killed")], check=True, capture_output=True)
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_a_full_disk_is_a_one_line_error_and_complete_data_stays(tmp_path: Path) -> None:
    _write_novel(tmp_path / "novel.txt", 1)
    arguments = [str(tmp_path / "novel.txt"), "--output", str(tmp_path / "data")]

    def limit() -> None:
        # Like a full disk, without root: no file may grow beyond this size.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))

    small = [*COMMAND, *arguments, "--shard-tokens", "50000"]
    prepared = subprocess.run(small, preexec_fn=limit, capture_output=True, text=True)
    assert prepared.returncode == 0, prepared.stderr
    before = contents(tmp_path / "data")
    large = [*COMMAND, *arguments[:-1], str(tmp_path / "other"), "--shard-tokens", "150000"]
    failed = subprocess.run(large, preexec_fn=limit, capture_output=True, text=True)
    assert failed.returncode == 2
    shard = tmp_path / "other" / "train_000000.bin"
    assert failed.stderr.splitlines() == [f"error: {shard}: {os.strerror(errno.EFBIG)}"]
    assert not list((tmp_path / "other").glob("*.tmp"))
    assert contents(tmp_path / "data") == before
    subprocess.run(large, check=True, capture_output=True)
    assert len(Manifest.load(tmp_path / "other").splits["train"].shards) > 1


def _peak_megabytes(source: Path, output: Path) -> float:
    code = "import sys, resource; from scripts import prepare_data; status = prepare_data.main(sys.argv[1:]); "
    code += "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024); sys.exit(status)"
    arguments = [str(source), "--output", str(output), "--workers", "1"]
    finished = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    return float(finished.stdout)


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    peaks = []
    for megabytes in (3, 20):
        _write_novel(tmp_path / "novel.txt", megabytes)
        peaks.append(_peak_megabytes(tmp_path / "novel.txt", tmp_path / f"data{megabytes}"))
    assert peaks[1] < peaks[0] + 15  # for 17 MB more of text, which are 12 MB of tokens


@pytest.mark.slow
def test_two_gigabytes_of_text_need_less_than_one_of_memory(tmp_path: Path) -> None:
    _write_novel(tmp_path / "part.txt", 20)
    part = (tmp_path / "part.txt").read_bytes()
    with (tmp_path / "novel.txt").open("wb") as file:
        for _ in range(100):
            file.write(part)
    assert _peak_megabytes(tmp_path / "novel.txt", tmp_path / "data") < 1024
    assert sum(split.utf8_bytes for split in Manifest.load(tmp_path / "data").splits.values()) == 100 * len(part)
