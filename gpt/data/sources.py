"""Documents from sources: text files, rows of JSON, CSV and Parquet files, datasets, and the embedded corpus."""

import csv
import glob
import io
import json
import logging
import os
import re
import reprlib
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from gpt.data.bigrams import bigram_texts
from gpt.data.documents import Document, PrepareOptions, base_suffix, counted, decode_file, decompress, not_utf8_error
from gpt.data.manifest import MANIFEST_NAME
from gpt.errors import UserError

log = logging.getLogger(__name__)

PYDOCS = "pydocs"
BIGRAMS = "bigrams"
HUB = "hf:"

_BATCH_ROWS = 1000
_JSON, _NOT_SPACE = json.JSONDecoder(), re.compile(r"\S")
# Files of datasets and other programs that describe a folder, and hold no documents.
_MARKERS = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json", "config.json", MANIFEST_NAME)


def find_sources(sources: list[str]) -> list[str | Path]:
    """Find the files of the sources, in the order given, the files of a folder in the order of their paths.

    A source is a file, a folder (searched recursively), a glob, a folder that ``datasets`` wrote, or, returned as it
    is, ``hf:NAME[:CONFIG]``, ``pydocs``: the Python language reference included in every interpreter, or ``bigrams``:
    see ``gpt.data.bigrams``.
    """
    found: list[str | Path] = []
    for source in sources:
        found += [source] if source in (PYDOCS, BIGRAMS) or source.startswith(HUB) else _find_files(source)
    return found


def read_documents(sources: Iterable[str | Path], options: PrepareOptions) -> Iterator[Document]:
    """Read all documents of what ``find_sources`` found.

    A document is a row of ``.jsonl .ndjson .json .csv .tsv .parquet`` or of a dataset, or any other file (in folders
    only ``.txt`` and ``.md``); each file may be compressed (``.gz``, ``.zst``). Documents may be empty.
    """
    for source in sources:
        if source == PYDOCS:
            for name, text in sorted(import_module("pydoc_data.topics").topics.items()):
                yield Document.from_text(f"{PYDOCS}:{name}", text, options)
        elif source == BIGRAMS:
            for number, text in enumerate(bigram_texts()):
                yield Document.from_text(f"{BIGRAMS}:{number}", text, options)
        elif isinstance(source, str) or source.is_dir():
            yield from _dataset_documents(str(source).removeprefix(HUB), options)
        elif read_rows := _ROW_READERS.get(base_suffix(source)):
            yield from read_rows(source, options)
        else:
            yield Document(str(source), partial(decode_file, source, options))


def _find_files(source: str) -> list[Path]:
    path = Path(source)
    # glob, because Path.glob does not take absolute patterns.
    matches = [path] if path.exists() else [Path(match) for match in glob.glob(source, recursive=True)]  # noqa: PTH207
    if not matches:
        raise UserError(f"there is no file or folder {source}; expected a path, a glob, {HUB}NAME, pydocs or bigrams")
    in_folders = (file for match in matches if match.is_dir() for file in _find_files_in_folder(match))
    if files := sorted({*in_folders, *(match for match in matches if match.is_file())}):
        return files
    if any(path.glob("*.bin")) or any(path.glob("*.npy")):
        raise UserError(f"{source} has token files, not text; run prepare_data.py {source} --tokenizer NAME")
    raise UserError(f"{source} has no file ending in {' '.join(_SUFFIXES)} (or one of these and .gz, .zst)")


def _find_files_in_folder(folder: Path) -> list[Path]:
    """Files of known suffixes and folders of datasets at any depth, without hidden ones; warns of the other files."""
    files, skipped, visited = [], Counter[str](), set[str]()

    def fail(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        if (real := os.path.realpath(parent)) in visited:  # a link in a loop
            folders.clear()
            continue
        visited.add(real)
        if is_dataset := _is_dataset(Path(parent)):
            files.append(Path(parent))
            folders.clear()
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(parent, name) for name in names if not name.startswith(".")):
            if not is_dataset and path.name not in _MARKERS and base_suffix(path) in _SUFFIXES and path.is_file():
                files.append(path)
            elif not (is_dataset and path.suffix in (".arrow", ".json", ".parquet")):
                skipped["".join(path.suffixes[-2:]) or path.name] += 1
    if files and skipped:
        kinds = ", ".join(f"{count} {kind}" for kind, count in skipped.most_common(8))
        log.warning("%s: skipped %s of other types (%s)", folder, counted(skipped.total(), "file"), kinds)
    return files


def _is_dataset(folder: Path) -> bool:
    """Whether ``datasets`` wrote the folder, by ``save_to_disk`` or ``download_and_prepare``."""
    if (folder / "dataset_dict.json").exists():
        return any(folder.glob("*/*.arrow"))
    is_marked = (folder / "dataset_info.json").exists()
    return is_marked and any(path.suffix in (".arrow", ".parquet") for path in folder.iterdir())


def _json_documents(path: Path, options: PrepareOptions) -> Iterator[Document]:
    """Read JSON Lines, or objects and arrays of objects on any lines."""
    lines = _read_lines(path, options)
    for number, line in enumerate(lines, start=1):
        name, start = f"{path}, line {number}", line.strip()
        try:
            rows = _parse_json(name, line)
        except UserError:
            if not (base_suffix(path) == ".json" or start == "{" or start.startswith("[")):
                raise
            rows = _parse_json(f"{path} from line {number} on", line + "".join(lines))
        for index, row in enumerate(rows, start=1):
            yield _document_from_object(name if len(rows) == 1 else f"{name}, row {index}", row, options)


def _csv_documents(path: Path, options: PrepareOptions) -> Iterator[Document]:
    """Read a table with a header, with tabs and no quotes in ``.tsv``.

    Else the delimiter is the first of comma, semicolon and tab that makes a text column.
    """
    csv.field_size_limit(sys.maxsize)

    def parse(delimiter: str, **rules: Any) -> Any:
        return csv.reader(_read_lines(path, options), delimiter=delimiter, strict=True, **rules)

    def makes_column(delimiter: str) -> bool:
        with suppress(csv.Error):
            return options.text_column in next(filter(None, parse(delimiter)), [])
        return False

    is_tsv = base_suffix(path) == ".tsv"
    delimiter = "\t" if is_tsv else next(filter(makes_column, ",;\t"), ",")
    reader = parse(delimiter, quoting=csv.QUOTE_NONE) if is_tsv else parse(delimiter)
    try:
        rows = filter(None, reader)
        header: list[str] = next(rows, [])
        column = _find_column(str(path), header, options) if header else 0
        for row in rows:
            name = f"{path}, line {reader.line_num}"
            if len(row) != len(header):
                hint = " (if its fields are quoted, let its name end in .csv)" if is_tsv else ""
                raise UserError(f"{name} has {len(row)} columns; expected {len(header)}, as in the header{hint}")
            yield Document.from_text(name, row[column], options)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num} is not CSV: {error}; correct the line") from None


def _parquet_documents(path: Path, options: PrepareOptions) -> Iterator[Document]:
    import pyarrow
    from pyarrow import parquet

    with (
        path.open("rb") as file,
        decompress(file, str(path)) as content,
        _one_line_errors(f"{path} is not valid Parquet, or truncated", "re-create the file"),
    ):
        whole = content if content is file else pyarrow.BufferReader(content.read())
        table = parquet.ParquetFile(whole, page_checksum_verification=True)
        _find_column(str(path), table.schema_arrow.names, options)
        batches = table.iter_batches(batch_size=_BATCH_ROWS, columns=[options.text_column])
        yield from _column_documents(str(path), (batch.column(0) for batch in batches), options)


def _dataset_documents(name: str, options: PrepareOptions) -> Iterator[Document]:
    """Stream NAME[:CONFIG] of the Hub, a folder that ``datasets`` reads, or one that it wrote; no copy in the cache."""
    import datasets
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES as FORMATS

    datasets.utils.logging.set_verbosity(logging.CRITICAL)  # its errors are exceptions too
    folder, _, config = (name, "", "") if Path(name).is_dir() else name.partition(":")
    is_local = Path(folder).is_dir()
    if not folder or (folder[0] in "/.~" and not is_local):
        raise UserError(f"there is no folder {folder!r}; expected hf: and a name on the Hub or the folder of a dataset")
    if folder in FORMATS and not is_local:  # datasets would read the files of the current directory
        raise UserError(f"hf:{folder} is a file format; expected hf: and a name on the Hub, or files without hf:")
    with _one_line_errors(f"hf:{name} cannot be read", "check its name, split and the network"):
        if any(Path(folder, marker).exists() for marker in ("state.json", "dataset_dict.json")):
            rows = datasets.load_from_disk(folder)
            if isinstance(rows, datasets.DatasetDict):
                if options.split not in rows:
                    raise UserError(f"{name} has no split {options.split!r}; it has {', '.join(rows)}")
                rows = rows[options.split]
            elif options.split not in (PrepareOptions.split, str(rows.split)):
                raise UserError(f"{name} is a single split; leave out split {options.split!r}")
        else:
            source = str(Path(folder).resolve()) if is_local else folder  # a relative path may be the name of a format
            rows = datasets.load_dataset(source, config or None, split=options.split, streaming=True)
        tables = rows.with_format("arrow").iter(batch_size=_BATCH_ROWS)
        columns = (table.column(_find_column(f"hf:{name}", table.column_names, options)) for table in tables)
        yield from _column_documents(f"hf:{name}", columns, options)


@contextmanager
def _one_line_errors(problem: str, remedy: str) -> Iterator[None]:
    """Turn any exception into a UserError, where libraries read a dozen file formats and the network."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split()) or type(cause).__name__
        raise UserError(f"{problem}: {reason[:300]}; {remedy}") from None


def _column_documents(name: str, columns: Iterable[Any], options: PrepareOptions) -> Iterator[Document]:
    """Documents of the text column of each Arrow batch."""
    import pyarrow

    number = 0
    for column in columns:
        kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
        if str(kind) not in ("string", "large_string", "string_view", "null"):
            problem = f"column {options.text_column!r} of {name} has type {str(kind)[:100]}"
            raise UserError(f"{problem}; expected a column of strings")
        # As bytes: the writer may not have checked that they are UTF-8.
        for content in column.cast(kind).cast(pyarrow.large_binary()).to_pylist():
            number += 1
            row = f"{name}, row {number}"
            try:
                text = (content or b"").decode("utf-8", options.encoding_errors)
            except UnicodeDecodeError as error:
                raise not_utf8_error(row, error) from None
            yield Document.from_text(row, text, options)


def _document_from_object(name: str, row: Any, options: PrepareOptions) -> Document:
    if not isinstance(row, dict):
        raise UserError(f"{name} is not a JSON object; expected one with a {options.text_column!r}")
    _find_column(name, list(row), options)
    text = row[options.text_column]
    if text is not None and not isinstance(text, str):
        raise UserError(f"{options.text_column!r} in {name} is {reprlib.repr(text)}; expected a string")
    return Document.from_text(name, text or "", options)


def _find_column(name: str, columns: Sequence[str], options: PrepareOptions) -> int:
    column = options.text_column
    if columns.count(column) != 1:
        known = ", ".join(map(repr, columns[:20]))[:300] or "none"
        raise UserError(f"{name} has columns {known}; expected one {column!r}. Set text_column, or rename one")
    return columns.index(column)


def _parse_json(name: str, text: str) -> list[Any]:
    """JSON values of a text, one after the other, or the elements of those that are arrays."""
    rows: list[Any] = []
    position = 0
    try:
        while start := _NOT_SPACE.search(text, position):
            value, position = _JSON.raw_decode(text, start.start())
            rows += value if isinstance(value, list) else [value]
    except ValueError as error:  # also for a number of more digits than Python converts
        raise UserError(f"{name} is not JSON: {error}; correct it (JSON Lines has one object on each line)") from None
    except RecursionError:
        raise UserError(f"{name} is nested too deeply; expected an object with a string") from None
    return rows


def _read_lines(path: Path, options: PrepareOptions) -> Iterator[str]:
    r"""Lines with their line ends ``\n``, ``\r\n`` or ``\r``; unlike ``str.splitlines``, at no other character."""
    pending: list[str] = []
    for block in decode_file(path, replace(options, newlines="keep")):  # which does not cut between \r and \n
        for line in io.StringIO(block, newline=""):
            pending.append(line)
            if line[-1] in "\r\n":
                yield "".join(pending)
                pending = []
    if pending:
        yield "".join(pending)


_ROW_READERS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), _json_documents),
    **dict.fromkeys((".csv", ".tsv"), _csv_documents),
    ".parquet": _parquet_documents,
}
_SUFFIXES = (".txt", ".md", *_ROW_READERS)  # read from folders
