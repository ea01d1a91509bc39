import bz2
import gzip
import io
import json
import lzma
import pickle
import random
import re
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from gpt.data.documents import PrepareOptions
from gpt.data.sources import find_sources, read_documents
from gpt.errors import UserError

ROWS = [
    "first row",
    "zweite Zeile, mit Komma",
    'the "third"\nhas two lines',
    "2024-01-01",
    "007",
    "NA",
    "漢字 \U0001f600",
]


def _texts(*sources: Path | str, **options: str) -> list[str]:
    documents = read_documents(find_sources([str(source) for source in sources]), PrepareOptions(**options))
    return ["".join(document.read()) for document in documents]


def _zstd(content: bytes) -> bytes:
    return pyarrow.Codec("zstd").compress(content, asbytes=True)


def _jsonl(column: str = "text") -> bytes:
    return "".join(json.dumps({"id": n, column: row}) + "\n" for n, row in enumerate(ROWS)).encode()


def _csv() -> bytes:
    quoted = (row.replace('"', '""') for row in ROWS)
    return ("id,text\r\n" + "".join(f'{n},"{row}"\r\n' for n, row in enumerate(quoted))).encode()


def _parquet() -> bytes:
    sink = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table({"id": range(len(ROWS)), "text": ROWS}), sink, row_group_size=3)
    return sink.getvalue().to_pybytes()


FORMATS: dict[str, Callable[[], bytes]] = {
    ".jsonl": _jsonl,
    ".json": lambda: json.dumps([{"text": row, "n": 1} for row in ROWS], indent=1).encode(),
    ".csv": _csv,
    ".ndjson": _jsonl,
    "-tabs.csv": lambda: _csv().replace(b"id,text", b"id\ttext").replace(b',"', b'\t"'),
    "-semicolons.csv": lambda: _csv().replace(b"id,text", b"id;text").replace(b',"', b';"'),
    ".parquet": _parquet,
}


@pytest.mark.parametrize("compression", ["", ".gz", ".zst"])
@pytest.mark.parametrize("suffix", FORMATS)
def test_rows_of_every_format_are_read_unchanged(suffix: str, compression: str, tmp_path: Path) -> None:
    pack = {"": bytes, ".gz": gzip.compress, ".zst": _zstd}[compression]
    path = tmp_path / f"rows{suffix}{compression}"
    path.write_bytes(pack(FORMATS[suffix]()))
    assert _texts(path) == ROWS
    assert _texts(tmp_path) == ROWS


PRETTY = b'{\n  "text": "%s"\n}\n'
# File name, content, and the texts that a reader of its format expects.
READ: list[tuple[str, bytes, list[str]]] = [
    ("cr.csv", b"id,text\r1,a\r2,b\r", ["a", "b"]),
    ("mixed.csv", b"id,text\r\n1,a\n2,b\r3,c", ["a", "b", "c"]),
    ("quoted.csv", b'text\r"a\rb\r\nc"\r', ["a\rb\r\nc"]),
    ("header.csv", b'"id\nnumber";"text"\n1;a\n', ["a"]),
    ("header-cr.csv", b'"id\rnumber"\t"text"\r1\ta\r', ["a"]),
    ("comma-in-header.csv", b'"text";"a,text"\nb;1\n', ["b"]),
    ("blank-lines.csv", b"\xef\xbb\xbf\r\n\r\nid,text\r\n1,a\r\n", ["a"]),
    ("long.csv", b"text\n" + b"x" * 300_000, ["x" * 300_000]),
    ("commas.tsv", b"text,id\ttext\na, b\tc, d\n", ["c, d"]),
    ("quotes.tsv", b'id\ttext\n1\t"a\n2\tb "c"\n3\td"\n', ['"a', 'b "c"', 'd"']),
    ("cr.TSV", b"id\ttext\r1\ta\r", ["a"]),
    ("b.tsv.gz", gzip.compress(b'id\ttext\n1\t"a\n', mtime=0), ['"a']),
    ("cr.jsonl", b'{"text": "a"}\r{"text": "b"}\r', ["a", "b"]),
    ("line-separator.jsonl", '{"text": "a\u2028\x85b"}\n'.encode(), ["a\u2028\x85b"]),
    ("blank.json", b" \n\r\n" + PRETTY % b"a", ["a"]),
    ("jq.json", PRETTY % b"a" + b"\n" + PRETTY % b"b", ["a", "b"]),
    ("lines-then-pretty.json", b'{"text": "a"}\n\n' + PRETTY % b"b", ["a", "b"]),
    ("pretty.jsonl", b"\n" + PRETTY % b"a" + PRETTY % b"b", ["a", "b"]),
    ("one-line.json", b'{"text": "a"}{"text": "b"}', ["a", "b"]),
    ("array.jsonl", b'\n[{"text": "a"},\n{"text": "b"}]', ["a", "b"]),
    ("gzip.txt", gzip.compress(b"a", mtime=0), ["a"]),
    ("gzip.jsonl", gzip.compress(b'{"text": "a"}', mtime=0), ["a"]),
    ("gzip.parquet", gzip.compress(_parquet(), mtime=0), ROWS),
    ("zstd", _zstd(b"a"), ["a"]),
    ("padded.txt.gz", gzip.compress(b"a", mtime=0) + bytes(999), ["a"]),
    ("padded-twice.txt.gz", gzip.compress(b"a", mtime=0) + bytes(99) + gzip.compress(b"b", mtime=0) + bytes(9), ["ab"]),
    ("padded.parquet.gz", gzip.compress(_parquet(), mtime=0) + bytes(99), ROWS),
    ("PK.txt", b"PK, PAR1, BZh9, Rar! and %PDF are words", ["PK, PAR1, BZh9, Rar! and %PDF are words"]),
]


@pytest.mark.parametrize("name,content,texts", READ, ids=[row[0] for row in READ])
def test_files_are_read_by_the_rules_of_their_format(
    name: str, content: bytes, texts: list[str], tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    assert _texts(tmp_path / name) == texts


def _tar(format: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    return file.getvalue()


def _zip(*names: str) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, "text")
    return file.getvalue()


def _npy() -> bytes:
    file = io.BytesIO()
    np.save(file, np.zeros(9, np.uint16))
    return file.getvalue()


NOT_TEXT: list[tuple[bytes, str]] = [
    (_tar(tarfile.USTAR_FORMAT), "a tar archive"),
    (_tar(tarfile.GNU_FORMAT), "a tar archive"),
    (_tar(tarfile.USTAR_FORMAT).replace(b"ustar", b"\0\0\0\0\0"), "binary or UTF-16"),  # the format before POSIX
    (_zip("word/document.xml"), "a ZIP archive"),
    (_zip(), "a ZIP archive"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z or RAR archive"),
    (b"Rar!\x1a\x07\x01\0", "a 7z or RAR archive"),
    (lzma.compress(b"text"), "compressed with xz or bzip2"),
    (bz2.compress(b"text"), "compressed with xz or bzip2"),
    (bz2.compress(b""), "compressed with xz or bzip2"),
    (gzip.compress(gzip.compress(b"text", mtime=0), mtime=0), "compressed twice"),
    (_parquet(), "Parquet"),
    (b"%PDF-1.7\n", "a PDF, PostScript or RTF document"),
    (b"{\\rtf1\\ansi", "a PDF, PostScript or RTF document"),
    (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    (b"SQLite format 3\0", "binary (image, pickle or SQLite)"),
    (_npy(), "a NumPy array"),
    (np.array([20240520, 1, 9], "<i4").tobytes(), "a NumPy array or a token file"),
    (pickle.dumps(["text"]), "binary (image, pickle or SQLite)"),
    (b"\x89PNG\r\n\x1a\n", "binary (image, pickle or SQLite)"),
    (b"GIF89a", "binary (image, pickle or SQLite)"),
    ("text".encode("utf-32"), "UTF-32"),
    ("text".encode("utf-16"), "UTF-16"),
    ("text".encode("utf-16-be"), "binary or UTF-16"),
    (b"MZ\x90\0\3", "binary"),
    (bytes(100), "binary or UTF-16"),
]


@pytest.mark.parametrize("encoding_errors", ["strict", "replace"])
@pytest.mark.parametrize("content,kind", NOT_TEXT, ids=range(len(NOT_TEXT)))
def test_what_is_not_text_is_refused_by_name(content: bytes, kind: str, encoding_errors: str, tmp_path: Path) -> None:
    if kind == "binary" and encoding_errors == "replace":
        pytest.skip("bytes of no known format are replaced on request")
    for name in ("a.txt", "a", "a.csv", "a.jsonl", "a.txt.gz"):
        (tmp_path / name).write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
        with pytest.raises(UserError, match=rf"{name} is {re.escape(kind)}.*expected text in UTF-8\. \w+") as raised:
            _texts(tmp_path / name, encoding_errors=encoding_errors)
        assert "encoding_errors" not in str(raised.value)


@pytest.mark.parametrize("suffix", [*FORMATS, ".txt.gz", ".jsonl.gz", ".parquet.gz", ".txt.zst"])
def test_damaged_files_are_read_or_refused(suffix: str, tmp_path: Path) -> None:
    generator = random.Random(suffix)
    base, _, compression = suffix.partition(".")[2].partition(".")
    content = FORMATS.get(suffix, FORMATS.get(f".{base}", lambda: b"text " * 99))()
    content = {"gz": gzip.compress, "zst": _zstd}.get(compression, bytes)(content)
    for _ in range(60):
        damaged = bytearray(content)
        damaged[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
        for end in (len(content), generator.randrange(len(content))):
            (tmp_path / f"a{suffix}").write_bytes(damaged[:end])
            with suppress(UserError):
                _texts(tmp_path / f"a{suffix}")


def test_a_plain_text_file_is_one_document(tmp_path: Path) -> None:
    text = "".join(f"line {n} é\r\n" for n in range(200_000))  # several blocks, so that characters straddle them
    for name, content in [
        ("a.txt", text.encode()),
        (
            "b.md.gz",
            gzip.compress(text[:1000].encode(), mtime=0) + gzip.compress(text[1000:].encode(), mtime=0),
        ),  # two members
        ("c.zst", _zstd(text.encode())),
        ("d", text.encode()),
        ("e.txt", b"\xef\xbb\xbf" + text.encode()),
    ]:
        (tmp_path / name).write_bytes(content)
        assert _texts(tmp_path / name) == [text]
        assert _texts(tmp_path / name, newlines="lf") == [text.replace("\r\n", "\n")]


def test_json_files_may_hold_one_object_and_csv_files_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{\n "text": "one"\n}')
    (tmp_path / "b.json").write_text('{"text": "one"}\n{"text": "two"}')
    (tmp_path / "c.csv").write_text("")
    assert [_texts(tmp_path / name) for name in ("a.json", "b.json", "c.csv")] == [["one"], ["one", "two"], []]


def test_line_ends_of_rows_are_normalised_on_request(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "one\\r\\ntwo\\rthree\\n"}\r\n')
    assert _texts(tmp_path / "a.jsonl") == ["one\r\ntwo\rthree\n"]
    assert _texts(tmp_path / "a.jsonl", newlines="lf") == ["one\ntwo\nthree\n"]


def test_text_column_selects_the_column(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(_jsonl("content"))
    assert _texts(tmp_path / "a.jsonl", text_column="content") == ROWS


def test_empty_and_null_texts_are_empty_documents(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n\n{"text": null}\n{"text": ""}\n')
    assert _texts(tmp_path / "a.jsonl") == ["a", "", ""]


def test_pydocs_is_the_interpreters_language_reference() -> None:
    from pydoc_data.topics import topics

    texts = _texts("pydocs")
    assert set(texts) == set(topics.values())
    assert any('"import"' in text for text in texts)


def test_bigrams_are_3000_texts_of_16_out_of_64_characters_and_always_the_same() -> None:
    texts = _texts("bigrams")
    assert texts == _texts("bigrams")
    assert len(set(texts)) == 3_000
    assert {len(text) for text in texts} == {512}
    assert max(len(set(text)) for text in texts) == 16
    assert len(set("".join(texts))) == 64


def test_a_bigram_holds_in_one_text_alone_and_repeats_at_random_distances() -> None:
    texts = _texts("bigrams")
    for text in texts[:100]:
        assert sum(count for _, count in Counter(pairwise(text)).most_common(16)) > 0.75 * 511
    pairs = sum((Counter(pairwise(text)) for text in texts), Counter[tuple[str, str]]())
    p = np.array(list(pairs.values())) / pairs.total()
    assert -(p * np.log(p)).sum() > 0.99 * np.log(64**2)  # over all texts, a character hardly predicts the next
    distances = Counter(i - text.rfind(text[i], 0, i) for text in texts[:500] for i in range(256, 512))
    assert max(distances.values()) < 0.1 * distances.total()


def test_folders_and_globs_are_read_in_the_order_of_paths(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.md", "sub/c.TXT", "image.png"):
        (tmp_path / name).write_text(name)
    assert _texts(tmp_path) == ["a.md", "b.txt", "sub/c.TXT"]
    assert _texts(tmp_path / "*.txt", tmp_path / "**" / "c.*") == ["b.txt", "sub/c.TXT"]


def test_skipped_files_are_counted_and_links_are_followed_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "linked.txt").write_text("linked")
    corpus = tmp_path / "corpus"
    for folder in ("sub", ".git", "prepared"):
        (corpus / folder).mkdir(parents=True)
    for name in ("a.txt", "b.rst", "c.rst", "d.jsonl.bz2", ".hidden.txt", ".git/e.txt", "sub/f.txt"):
        (corpus / name).write_text(name)
    for name in ("manifest.json", "train_000000.bin"):
        (corpus / "prepared" / name).write_text("{}")
    (corpus / "link").symlink_to(tmp_path / "elsewhere")
    (corpus / "sub" / "loop").symlink_to(corpus)
    assert _texts(corpus) == ["a.txt", "linked", "sub/f.txt"]
    assert "skipped 5 files of other types (2 .rst, 1 .jsonl.bz2, 1 .json, 1 .bin)" in caplog.text
    assert sorted(_texts(corpus / "[abls]*")) == ["a.txt", "a.txt", "b.rst", "linked", "linked", "sub/f.txt"]


@pytest.mark.parametrize(
    "names",
    [
        ("dataset_info.json",),
        ("dataset_dict.json",),
        ("state.json", "dataset_info.json"),
        ("dataset_infos.json", "config.json", ".gitattributes"),
        ("manifest.json",),
    ],
    ids=" ".join,
)
def test_files_beside_a_marker_of_another_program_are_read(names: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in names:
        (tmp_path / "folder" / name).write_text("{}")
    (tmp_path / "folder" / "rows.jsonl").write_bytes(_jsonl())
    assert _texts(tmp_path) == _texts(tmp_path / "folder") == ROWS


@pytest.mark.parametrize("names", ["ab", "ba"])
def test_a_column_without_values_has_empty_documents(names: str, tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": ROWS}), tmp_path / f"{names[0]}.parquet")
    parquet.write_table(pyarrow.table({"text": pyarrow.nulls(2)}), tmp_path / f"{names[1]}.parquet")
    assert sorted(_texts(tmp_path)) == sorted(["", "", *ROWS])


def test_sources_are_read_in_the_order_given(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("A")
    (tmp_path / "b.txt").write_text("B")
    assert _texts(tmp_path / "b.txt", tmp_path / "a.txt") == ["B", "A"]


def test_datasets_of_every_kind_are_read_without_a_copy_in_the_cache(tmp_path: Path) -> None:
    # In a separate process: `datasets` reads the path of its cache on import.
    script = """
import json, os, sys
from pathlib import Path
import datasets
from gpt.data.documents import PrepareOptions
from gpt.data.sources import find_sources, read_documents
folder, rows = Path(sys.argv[1]), json.loads(sys.argv[2])
whole = datasets.Dataset.from_dict({"text": rows})
whole.save_to_disk(folder / "saved")
datasets.DatasetDict({"train": whole, "other": whole.select(range(2))}).save_to_disk(folder / "dict")
for name in ("files", "work", "work/text"):
    (folder / name).mkdir()
whole.to_json(folder / "files" / "train.jsonl")
whole.select(range(3)).to_json(folder / "files" / "test.jsonl")
builder = datasets.load_dataset_builder(str(folder / "files"), cache_dir=str(folder / "elsewhere"))
for format in ("arrow", "parquet"):
    builder.download_and_prepare(folder / "prepared" / format, file_format=format)
(folder / "saved" / "extra.jsonl").write_text("{}")
(folder / "work" / "text" / "a.txt").write_text("one line")
os.chdir(folder / "work")
def texts(source, **options):
    return ["".join(document.read()) for document in read_documents(find_sources([source]), PrepareOptions(**options))]
for source in ("saved", "hf:saved", "dict", "hf:files", "prepared/arrow", "prepared/parquet", "hf:prepared/arrow"):
    prefix = "hf:" if source.startswith("hf:") else ""
    assert texts(prefix + str(folder / source.removeprefix("hf:"))) == rows, source
assert texts(str(folder / "dict"), split="other") == rows[:2]
assert texts(str(folder / "prepared"), split="test") == 2 * rows[:3]  # found from the parent
assert texts("hf:text") == ["one line"]
for source, options, words in [
    (f"hf:{folder / 'files'}", {"split": "nope"}, "nope"),
    (f"{folder / 'dict'}", {"split": "nope"}, "has no split 'nope'; it has train, other"),
    (f"{folder / 'saved'}", {"split": "nope"}, "is a single split; leave out split 'nope'"),
    (f"hf:{folder / 'nowhere'}", {}, "there is no folder"),
    ("hf:", {}, "there is no folder"),
    ("hf:json", {}, "hf:json is a file format"),
    (f"hf:{folder / 'files'}", {"text_column": "body"}, "has columns 'text'; expected one 'body'. Set text_column"),
    ("hf:nobody/no-such-dataset", {}, "hf:nobody/no-such-dataset cannot be read"),
]:
    try:
        texts(source, **options)
    except ValueError as error:
        assert words in str(error), error
    else:
        raise AssertionError(source)
"""
    import os

    rows = [*ROWS, *(f"row {n}" for n in range(2500))]
    finished = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path), json.dumps(rows)],
        env={**os.environ, "HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr
    # to_json and save_to_disk write nothing there either.
    assert not [path for path in (tmp_path / "cache").rglob("*.arrow") if path.stat().st_size > 0]


# File name, content, options, and the expected message.
ODD_INPUT: list[tuple[str, bytes, dict[str, str], str]] = [
    ("a.txt", b"fine\n\xff\xfe", {}, r"a\.txt is not UTF-8: byte 0xff at offset 5; .*set encoding_errors to replace"),
    ("a.txt", "text".encode("utf-16"), {}, r"a\.txt is UTF-16 .*iconv"),
    ("a.txt", b"x" * 2**20 + b"\xe2\x82", {}, r"byte 0xe2 at offset 1048576"),  # a character that ends too early
    ("a.txt", b"x" * (2**20 - 1) + b"\xe2\x28\xa1", {}, r"byte 0xe2 at offset 1048575"),  # across two blocks
    ("a.txt.gz", gzip.compress(b"text \xff", mtime=0), {}, r"a\.txt\.gz is not UTF-8: byte 0xff at offset 5"),
    ("a.txt.gz", gzip.compress(b"text" * 9999, mtime=0)[:-20], {}, r"a\.txt\.gz is not valid gzip, or truncated"),
    ("a.jsonl.gz", b"", {}, r"a\.jsonl\.gz is not valid gzip, or truncated: it is empty"),
    ("a.jsonl", b'{"text": "a", "n": ' + b"1" * 5000 + b"}", {}, r"line 1 is not JSON"),
    ("a.txt.gz", b"plain text", {}, r"a\.txt\.gz is not valid gzip, or truncated"),
    ("a.txt.zst", bytes.fromhex("28b52ffd00a8010000"), {}, r"compressed with zstd --long; decompress it with zstd -d"),
    ("a.txt.zst", _zstd(b"text" * 9999)[:-5], {}, r"a\.txt\.zst is not valid zstd, or truncated"),
    ("a.jsonl", b'{"text": "a"}\n{"text": "b"', {}, r"a\.jsonl, line 2 is not JSON"),
    ("a.jsonl", b'{"text": "a"}\n["b"]\n', {}, r"a\.jsonl, line 2 is not a JSON object"),
    (
        "a.jsonl",
        b'{"text": "a"}\n{"body": "b"}\n',
        {},
        r"line 2 has columns 'body'; expected one 'text'. Set text_column",
    ),
    ("a.jsonl", b'{"text": "a"}\n{"text": 7}\n', {}, r"'text' in .*a\.jsonl, line 2 is 7; expected a string"),
    ("a.jsonl", b'{"text": "a"}\n{"text": "\\ud83d"}\n', {}, r"line 2 contains half a surrogate pair"),
    ("a.jsonl", b'{"text": "a"}\n{"text": "\xff"}\n', {}, r"a\.jsonl is not UTF-8: byte 0xff at offset 24"),
    ("a.jsonl", b'{"text": ' + b"[" * 100_000, {}, r"line 1 is (nested too deeply|not JSON)"),
    ("a.json", b'{"text": ' + b"[" * 1000 + b"]" * 1000 + b"}", {}, r"a\.json from line 1 on is nested too deeply"),
    (
        "a.jsonl",
        b'{"text": ' + b"[" * 985 + b"]" * 985 + b"}",
        {},
        r"line 1 is (nested too deeply|\[.*expected a string)",
    ),
    ("a.json", b'{"text":\n "a"', {}, r"a\.json from line 1 on is not JSON.*one object on each line"),
    ("a.json", b'[{"text": "a"},', {}, r"a\.json from line 1 on is not JSON"),
    ("a.json", b'[{"text": "a"}, "b"]', {}, r"a\.json, line 1, row 2 is not a JSON object"),
    ("a.csv", b"id,body\n1,a\n", {}, r"a\.csv has columns 'id', 'body'; expected one 'text'"),
    ("a.csv", b"text,text\na,b\n", {}, r"a\.csv has columns 'text', 'text'; expected one 'text'.*rename one"),
    ("a.csv", b"id;body\n1;a\n", {}, r"has columns 'id;body'; expected"),
    ("a.csv", b"sep=;\n1;a\n", {}, r"has columns 'sep=;'; expected"),
    ("a.csv", b"id,text\n1,a,b\n", {}, r"a\.csv, line 2 has 3 columns; expected 2"),
    ("a.csv", b"id,text\n1\n", {}, r"a\.csv, line 2 has 1 columns"),
    ("a.csv", b'"text\nnever ends', {}, r"a\.csv, line 2 is not CSV"),
    ("a.csv", b"id,text\n1,a\rb\n", {}, r"a\.csv, line 3 has 1 columns"),
    ("a.tsv", b"id,text\n1,a\n", {}, r"a\.tsv has columns 'id,text'; expected one 'text'"),
    ("a.tsv", b'id\ttext\n1\t"a\nb"\n', {}, r"line 3 has 1 columns; expected 2.*let its name end in \.csv"),
    ("a.csv", b'id,text\n1,"never ends\n', {}, r"a\.csv, line 2 is not CSV"),
    ("a.parquet", b"PAR1 no", {}, r"a\.parquet is not valid Parquet, or truncated"),
    ("a.parquet", _parquet()[:-30], {}, r"a\.parquet is not valid Parquet, or truncated"),
    (
        "a.parquet",
        _parquet(),
        {"text_column": "id"},
        r"column 'id' of .* has type int64; expected a column of strings",
    ),
    ("a.parquet", _parquet(), {"text_column": "body"}, r"has columns 'id', 'text'; expected one 'body'"),
    ("a.txt", b"text", {"encoding_errors": "ignore"}, r"encoding_errors is 'ignore'; expected strict or replace"),
    ("a.txt", b"text", {"newlines": "crlf"}, r"newlines is 'crlf'; expected keep or lf"),
]


@pytest.mark.parametrize("name,content,options,words", ODD_INPUT, ids=range(len(ODD_INPUT)))
def test_unreadable_input_raises_with_its_position(
    name: str, content: bytes, options: dict[str, str], words: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=words):
        _texts(tmp_path / name, **options)


def test_missing_sources_raise_with_their_name(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "image.png").write_bytes(b"")
    for source, words in [
        ("missing.txt", r"no file or folder .*missing\.txt"),
        ("*.nothing", r"no file or folder .*\*\.nothing"),
        ("folder", r"folder.* has no file ending in \.txt \.md \.jsonl"),
    ]:
        with pytest.raises(UserError, match=words):
            _texts(tmp_path / source)


def test_invalid_unicode_is_replaced_on_request(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"x\xffy")
    (tmp_path / "b.jsonl").write_bytes(b'{"text": "x\\ud83dy"}')
    table = pyarrow.table({"text": pyarrow.array([b"x\xffy"]).view(pyarrow.string())})
    parquet.write_table(table, tmp_path / "c.parquet")
    for name in ("a.txt", "b.jsonl", "c.parquet"):
        assert _texts(tmp_path / name, encoding_errors="replace") == ["x\ufffdy"]
    with pytest.raises(UserError, match=r"c\.parquet, row 1 is not UTF-8: byte 0xff at offset 1"):
        _texts(tmp_path / "c.parquet")
