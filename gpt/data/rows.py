"""Documents from files of rows, JSON, CSV and Parquet, and from datasets: one row, one document."""

import csv
import itertools
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.data.documents import (
    DEFAULT_SPLIT,
    Document,
    ReadOptions,
    base_suffix,
    decode_file,
    document_of_row,
    not_utf8,
    open_decompressed,
)
from gpt.errors import UserError

if TYPE_CHECKING:
    import pyarrow

_BATCH_ROWS = 1000


def json_documents(path: Path, options: ReadOptions) -> Iterator[Document]:
    """One document per object: an object on each line, or one array of objects.

    Raises:
        ValueError: naming the line: not JSON, no object, or no text in it.
    """
    chunks = decode_file(path, replace(options, newlines="keep"))
    beginning = next(chunks, "")
    chunks = itertools.chain([beginning], chunks)
    if beginning.lstrip().startswith("["):
        for number, row in enumerate(_parse("".join(chunks), str(path)), start=1):
            yield _of_object(f"{path}, row {number}", row, options)
        return
    lines = _lines(chunks)
    if base_suffix(path) == ".json":  # an object over several lines
        first = next(lines, "")
        if first.strip() and not _is_json(first):
            yield _of_object(str(path), _parse("".join([first, *lines]), str(path)), options)
            return
        lines = itertools.chain([first], lines)
    for number, line in enumerate(lines, start=1):
        if line.strip():
            name = f"{path}, line {number}"
            yield _of_object(name, _parse(line, name), options)


def csv_documents(path: Path, options: ReadOptions) -> Iterator[Document]:
    """One document per row, after a first row with the names of the columns.

    Columns are separated by whichever of comma, semicolon and tab makes a column of that name.

    Raises:
        ValueError: naming the line: no such column, a row of another length, or a quote that never ends.
    """
    csv.field_size_limit(sys.maxsize)
    lines = _lines(decode_file(path, replace(options, newlines="keep")))
    first = next(lines, "")
    separators = [s for s in ",;\t" if options.text_column in next(csv.reader([first], delimiter=s), [])]
    reader = csv.reader(itertools.chain([first], lines), delimiter=(separators or [","])[0], strict=True)
    try:
        header = next(reader, [])
        if not header:
            return
        if header.count(options.text_column) != 1:
            raise _no_column(str(path), options, header)
        column = header.index(options.text_column)
        for row in reader:
            if row and len(row) != len(header):
                raise UserError(
                    f"{path}, line {reader.line_num} has {len(row)} columns and its header {len(header)}; mend the line"
                )
            if row:
                yield document_of_row(f"{path}, line {reader.line_num}", row[column], options)
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num} is not CSV: {error}; mend the line") from None


def parquet_documents(path: Path, options: ReadOptions) -> Iterator[Document]:
    """One document per row.

    Raises:
        ValueError: not Parquet, or no column of strings under that name.
    """
    import pyarrow
    from pyarrow import parquet

    with open_decompressed(path) as file:
        try:
            content = parquet.ParquetFile(file if file.seekable() else pyarrow.BufferReader(file.read()))
        except pyarrow.ArrowException as error:
            raise UserError(f"{path} is not Parquet, or cut short: {error}; make it anew") from None
        if content.schema_arrow.names.count(options.text_column) != 1:
            raise _no_column(str(path), options, content.schema_arrow.names)
        try:
            batches = content.iter_batches(batch_size=_BATCH_ROWS, columns=[options.text_column])
            yield from _of_tables(str(path), batches, options)
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(f"{path} is damaged: {error}; make it anew") from None


def dataset_documents(name: str, options: ReadOptions) -> Iterator[Document]:
    """One document per row of a dataset, read row by row as it comes, so that no cache gets a copy of it.

    Args:
        name: ``NAME[:CONFIG]`` of the Hugging Face Hub, or a folder: of files that ``datasets`` reads, or one that
            its ``save_to_disk`` has written.
        options: its ``split`` is read.

    Raises:
        ValueError: whatever ``datasets`` finds wrong, or no column of strings under that name.
    """
    import datasets

    folder, _, config = name.partition(":")
    saved = is_saved_dataset(Path(name))
    if not folder or (folder[0] in "/.~" and not Path(folder).is_dir()):
        raise UserError(f"there is no folder {folder!r}; give hf: and a name on the Hub or a dataset's folder")
    try:
        if saved:
            rows = datasets.load_from_disk(name)
            if isinstance(rows, datasets.DatasetDict):
                if options.split not in rows:
                    raise UserError(f"{name} has no split {options.split!r}; it has {', '.join(rows)}")
                rows = rows[options.split]
            elif options.split not in (DEFAULT_SPLIT, str(rows.split)):
                raise UserError(f"{name} is one split; leave out --split {options.split}")
        else:
            rows = datasets.load_dataset(folder, config or None, split=options.split, streaming=True)
        tables = iter(rows.with_format("arrow").iter(batch_size=_BATCH_ROWS))
        yield from _of_tables(f"hf:{name}", _with_columns(f"hf:{name}", tables, options), options)
    except UserError:
        raise
    except Exception as error:  # the library's own, the network's and those of a dozen file formats
        raise _dataset_error(name, error) from None


def is_saved_dataset(folder: Path) -> bool:
    """Whether ``save_to_disk`` of ``datasets`` has written a folder."""
    return any((folder / marker).exists() for marker in ("dataset_info.json", "dataset_dict.json"))


def _dataset_error(name: str, error: Exception) -> UserError:
    cause = error.__cause__ or error
    reason = " ".join(str(cause).split()) or type(cause).__name__
    return UserError(f"hf:{name} cannot be read: {reason[:300]}; check its name, --split and the network")


def _with_columns(name: str, tables: Iterator[Any], options: ReadOptions) -> Iterator[Any]:
    for table in tables:
        if options.text_column not in table.column_names:
            raise _no_column(name, options, table.column_names)
        yield table.select([options.text_column])


def _of_tables(name: str, tables: "Iterable[pyarrow.RecordBatch]", options: ReadOptions) -> Iterator[Document]:
    """Documents of Arrow tables with one column."""
    import pyarrow

    number = 0
    for table in tables:
        column = table.column(0)
        kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
        types = pyarrow.types
        if not any(test(kind) for test in (types.is_string, types.is_large_string, types.is_string_view)):
            raise UserError(
                f"column {options.text_column!r} of {name} holds {kind}, not text; choose another with --text-column"
            )
        # As bytes: what wrote the file may not have checked that they are UTF-8.
        for content in column.cast(kind).cast(pyarrow.large_binary()).to_pylist():
            number += 1
            row = f"{name}, row {number}"
            try:
                text = (content or b"").decode("utf-8", options.encoding_errors)
            except UnicodeDecodeError as error:
                raise not_utf8(row, error, 0) from None
            yield document_of_row(row, text, options)


def _of_object(name: str, row: Any, options: ReadOptions) -> Document:
    if not isinstance(row, dict):
        raise UserError(f"{name} is not an object with a {options.text_column!r} in it; mend it")
    if options.text_column not in row:
        raise _no_column(name, options, list(row))
    text = row[options.text_column]
    if text is not None and not isinstance(text, str):
        raise UserError(f"{options.text_column!r} in {name} is {json.dumps(text)[:40]}, not text; mend it")
    return document_of_row(name, text or "", options)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _parse(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # also a number of more digits than Python reads
        raise UserError(f"{name} is not JSON: {error}; mend it (JSON Lines has one object on each line)") from None
    except RecursionError:
        raise UserError(f"{name} is nested too deeply to be a row of text") from None


def _no_column(name: str, options: ReadOptions, columns: Sequence[str]) -> UserError:
    there = ", ".join(map(repr, columns[:20])) or "none"
    if columns.count(options.text_column) > 1:
        return UserError(f"{name} has {columns.count(options.text_column)} columns {options.text_column!r}; rename one")
    return UserError(f"{name} has no column {options.text_column!r}; it has {there}: choose one with --text-column")


def _lines(chunks: Iterable[str]) -> Iterator[str]:
    """Lines with their line ends; only ``\\n`` ends one (``str.splitlines`` knows many others)."""
    pending: list[str] = []
    for chunk in chunks:
        first, *lines = chunk.split("\n")
        pending.append(first)
        for line in lines:
            yield "".join(pending) + "\n"
            pending = [line]
    if rest := "".join(pending):
        yield rest
