"""Documents from sources: text files, rows of JSON, CSV and Parquet files, datasets, and the embedded corpus."""

import csv
import glob
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from gpt.data.documents import Document, PrepareOptions, base_suffix, decode_file, not_utf8_error, open_decompressed
from gpt.data.manifest import MANIFEST_NAME
from gpt.errors import UserError

log = logging.getLogger(__name__)

PYDOCS = "pydocs"
HUB = "hf:"

_BATCH_ROWS = 1000


def read_documents(sources: list[str], options: PrepareOptions) -> Iterator[Document]:
    """Read all documents of the sources in the order given, the files of a folder in the order of their paths.

    A source is a file, a folder (searched recursively), a glob, ``hf:NAME[:CONFIG]``, a folder that ``datasets`` saved,
    or ``pydocs``: the Python language reference included in every interpreter. A document is a row of ``.jsonl .ndjson
    .json .csv .tsv .parquet`` or of a dataset, or any other file (in folders only ``.txt`` and ``.md``); each file may
    be compressed (``.gz``, ``.zst``). Documents may be empty.
    """
    for source in sources:
        if source == PYDOCS:
            for name, text in sorted(import_module("pydoc_data.topics").topics.items()):
                yield Document.from_text(f"{PYDOCS}:{name}", text, options)
        elif source.startswith(HUB) or _is_saved_dataset(Path(source)):
            yield from _dataset_documents(source.removeprefix(HUB), options)
        else:
            for path in _find_files(source):
                if read_rows := _ROW_READERS.get(base_suffix(path)):
                    yield from read_rows(path, options)
                else:
                    yield Document(str(path), partial(decode_file, path, options))


def _find_files(source: str) -> list[Path]:
    path = Path(source)
    # glob, because Path.glob does not take absolute patterns.
    matches = [path] if path.exists() else [Path(match) for match in glob.glob(source, recursive=True)]  # noqa: PTH207
    if not matches:
        raise UserError(f"there is no file or folder {source}; expected a path, a glob, {HUB}NAME or {PYDOCS}")
    in_folders = (file for match in matches if match.is_dir() for file in _find_files_in_folder(match))
    if files := sorted({*in_folders, *(match for match in matches if match.is_file())}):
        return files
    if any(path.glob("*.bin")) or any(path.glob("*.npy")):
        raise UserError(f"{source} has token files, not text; run prepare_data.py {source} --tokenizer NAME")
    raise UserError(f"{source} has no file ending in {' '.join(_SUFFIXES)} (or one of these and .gz, .zst)")


def _find_files_in_folder(folder: Path) -> list[Path]:
    """Files of known suffixes at any depth, without hidden and prepared ones; warns of the other files."""
    files, skipped, visited = [], Counter[str](), set[str]()

    def fail(error: OSError) -> None:
        raise error

    for parent, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        if (real := os.path.realpath(parent)) in visited or MANIFEST_NAME in names:  # a link in a loop; or our output
            folders.clear()
            continue
        visited.add(real)
        if _is_saved_dataset(Path(parent)):
            raise UserError(f"{parent} is a saved dataset; give it as a source of its own, or move it")
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(parent, name) for name in names if not name.startswith(".")):
            if base_suffix(path) in _SUFFIXES and path.is_file():
                files.append(path)
            else:
                skipped["".join(path.suffixes[-2:]) or path.name] += 1
    if files and skipped:
        kinds = ", ".join(f"{count} {kind}" for kind, count in skipped.most_common(8))
        log.warning("%s: skipped %d files of other types (%s)", folder, skipped.total(), kinds)
    return files


def _json_documents(path: Path, options: PrepareOptions) -> Iterator[Document]:
    """Read JSON Lines, an array of objects, or, from a ``.json`` file, a single object."""
    first = next((line for line in _read_lines(path, options) if not line.isspace()), "")
    is_one_value = first.lstrip().startswith("[")
    if first and not is_one_value and base_suffix(path) == ".json":
        try:
            json.loads(first)
        except (ValueError, RecursionError):  # an object on several lines
            is_one_value = True
    if is_one_value:
        content = _parse_json(str(path), "".join(_read_lines(path, options)))
        for number, row in enumerate(content if isinstance(content, list) else [content], start=1):
            yield _document_from_object(f"{path}, row {number}", row, options)
    else:
        for number, line in enumerate(_read_lines(path, options), start=1):
            if line.strip():
                name = f"{path}, line {number}"
                yield _document_from_object(name, _parse_json(name, line), options)


def _csv_documents(path: Path, options: PrepareOptions) -> Iterator[Document]:
    """Read a table with a header; its delimiter is the first of comma, semicolon and tab that makes a text column."""
    csv.field_size_limit(sys.maxsize)
    first = next(_read_lines(path, options), "")
    delimiters = [d for d in ",;\t" if options.text_column in next(csv.reader([first], delimiter=d), [])]
    reader = csv.reader(_read_lines(path, options), delimiter=(delimiters or [","])[0], strict=True)
    try:
        header = next(reader, [])
        column = _find_column(str(path), header, options) if header else 0
        for row in filter(None, reader):
            name = f"{path}, line {reader.line_num}"
            if len(row) != len(header):
                raise UserError(f"{name} has {len(row)} columns; expected {len(header)}, as in the header")
            yield Document.from_text(name, row[column], options)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num} is not CSV: {error}; correct the line") from None


def _parquet_documents(path: Path, options: PrepareOptions) -> Iterator[Document]:
    import pyarrow
    from pyarrow import parquet

    with open_decompressed(path) as file:
        try:
            content = parquet.ParquetFile(file if file.seekable() else pyarrow.BufferReader(file.read()))
            _find_column(str(path), content.schema_arrow.names, options)
            batches = content.iter_batches(batch_size=_BATCH_ROWS, columns=[options.text_column])
            yield from _column_documents(str(path), (batch.column(0) for batch in batches), options)
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f"{path} is not valid Parquet, or truncated: {error}; re-create the file") from None


def _dataset_documents(name: str, options: PrepareOptions) -> Iterator[Document]:
    """Stream NAME[:CONFIG] of the Hub, a folder that ``datasets`` reads, or one that it saved; no copy in the cache."""
    import datasets

    folder, _, config = name.partition(":")
    if not folder or (folder[0] in "/.~" and not Path(folder).is_dir()):
        raise UserError(f"there is no folder {folder!r}; expected hf: and a name on the Hub or the folder of a dataset")
    try:
        if _is_saved_dataset(Path(name)):
            rows = datasets.load_from_disk(name)
            if isinstance(rows, datasets.DatasetDict):
                if options.split not in rows:
                    raise UserError(f"{name} has no split {options.split!r}; it has {', '.join(rows)}")
                rows = rows[options.split]
            elif options.split not in (PrepareOptions.split, str(rows.split)):
                raise UserError(f"{name} is a single split; leave out split {options.split!r}")
        else:
            rows = datasets.load_dataset(folder, config or None, split=options.split, streaming=True)
        tables = rows.with_format("arrow").iter(batch_size=_BATCH_ROWS)
        columns = (table.column(_find_column(f"hf:{name}", table.column_names, options)) for table in tables)
        yield from _column_documents(f"hf:{name}", columns, options)
    except UserError:
        raise
    except Exception as error:  # of datasets, of the network, and of a dozen file formats
        cause = error.__cause__ or error
        reason = " ".join(str(cause).split()) or type(cause).__name__
        raise UserError(f"hf:{name} cannot be read: {reason[:300]}; check its name, split and the network") from None


def _is_saved_dataset(folder: Path) -> bool:
    """Whether ``save_to_disk`` of ``datasets`` wrote this folder."""
    return any((folder / marker).exists() for marker in ("dataset_info.json", "dataset_dict.json"))


def _column_documents(name: str, columns: Iterable[Any], options: PrepareOptions) -> Iterator[Document]:
    """Documents of the text column of each Arrow batch."""
    import pyarrow

    number = 0
    for column in columns:
        kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
        if str(kind) not in ("string", "large_string", "string_view"):
            raise UserError(f"column {options.text_column!r} of {name} has type {kind}; expected a column of strings")
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
        raise UserError(f"{options.text_column!r} in {name} is {json.dumps(text)[:40]}; expected a string")
    return Document.from_text(name, text or "", options)


def _find_column(name: str, columns: Sequence[str], options: PrepareOptions) -> int:
    column = options.text_column
    if columns.count(column) != 1:
        known = ", ".join(map(repr, columns[:20])) or "none"
        raise UserError(f"{name} has columns {known}; expected one {column!r}. Set text_column, or rename one")
    return columns.index(column)


def _parse_json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # also for a number of more digits than Python converts
        raise UserError(f"{name} is not JSON: {error}; correct it (JSON Lines has one object on each line)") from None
    except RecursionError:
        raise UserError(f"{name} is nested too deeply; expected an object with a string") from None


def _read_lines(path: Path, options: PrepareOptions) -> Iterator[str]:
    r"""Lines with their line ends; only ``\n`` ends one, unlike in ``str.splitlines``."""
    pending: list[str] = []
    for block in decode_file(path, replace(options, newlines="keep")):
        first, *lines = block.split("\n")
        pending.append(first)
        for line in lines:
            yield "".join(pending) + "\n"
            pending = [line]
    if rest := "".join(pending):
        yield rest


_ROW_READERS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), _json_documents),
    **dict.fromkeys((".csv", ".tsv"), _csv_documents),
    ".parquet": _parquet_documents,
}
_SUFFIXES = (".txt", ".md", *_ROW_READERS)  # read from folders
