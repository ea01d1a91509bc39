"""Documents from where the user says they are: files, folders, globs, datasets, or the embedded corpus."""

import glob
import logging
import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

from gpt.data.documents import Document, ReadOptions, base_suffix, decode_file
from gpt.data.manifest import MANIFEST_NAME
from gpt.data.rows import (
    csv_documents,
    dataset_documents,
    is_saved_dataset,
    json_documents,
    parquet_documents,
)
from gpt.errors import UserError

log = logging.getLogger(__name__)

PYDOCS = "pydocs"
HUB = "hf:"
_TEXT = (".txt", ".md")
_ROWS = {
    ".jsonl": json_documents,
    ".ndjson": json_documents,
    ".json": json_documents,
    ".csv": csv_documents,
    ".tsv": csv_documents,
    ".parquet": parquet_documents,
}


def read_documents(sources: list[str], options: ReadOptions) -> Iterator[Document]:
    """Read every document of the sources, in the order given; files of a folder in the order of their paths.

    Args:
        sources: each a file (a row of ``.jsonl .json .csv .parquet`` is a document, any other file is one document;
            each also as ``.gz`` or ``.zst``), a folder (searched at any depth for those, ``.txt`` and ``.md``), a
            glob, a folder that ``datasets`` saved, ``"hf:NAME[:CONFIG]"``, or ``"pydocs"``: the Python language
            reference that ships inside every interpreter.
        options: how to read them.

    Yields:
        Documents, some of them perhaps empty.

    Raises:
        ValueError: a source does not exist or cannot be read; the message names file and line, row or byte.
    """
    for source in sources:
        if source == PYDOCS:
            yield from _pydocs()
        elif source.startswith(HUB):
            yield from dataset_documents(source.removeprefix(HUB), options)
        elif is_saved_dataset(Path(source)):
            yield from dataset_documents(source, options)
        else:
            for path in _files(source):
                if rows := _ROWS.get(base_suffix(path)):
                    yield from rows(path, options)
                else:
                    yield Document(str(path), partial(decode_file, path, options))


def _pydocs() -> Iterator[Document]:
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        yield Document(f"{PYDOCS}:{name}", partial(iter, (topics[name],)))


def _files(source: str) -> list[Path]:
    path = Path(source)
    if path.is_file():
        return [path]
    if path.is_dir():
        files = _files_of_folder(path)
    else:
        # glob and not Path.glob, which takes no absolute pattern.
        matches = [Path(match) for match in glob.glob(source, recursive=True)]  # noqa: PTH207
        if not matches:
            raise UserError(
                f"there is no file or folder {source}; give a path, a glob, {HUB}NAME, or {PYDOCS} for the embedded "
                "corpus"
            )
        in_folders = [file for match in matches if match.is_dir() for file in _files_of_folder(match)]
        files = [*in_folders, *(match for match in matches if match.is_file())]
    if not files and (any(path.glob("*.bin")) or any(path.glob("*.npy"))):
        raise UserError(f"{source} holds token files; they get a manifest with --tokenizer NAME and without --output")
    if not files:
        raise UserError(f"{source} has no file ending in {' '.join([*_TEXT, *_ROWS])} (or one of these and .gz, .zst)")
    return sorted(set(files))


def _files_of_folder(folder: Path) -> list[Path]:
    """Files with an ending that we read, at any depth; what is left out is counted aloud."""
    files, left_out, visited = [], Counter[str](), set[str]()

    def fail(error: OSError) -> None:
        raise error

    for where, folders, names in os.walk(folder, followlinks=True, onerror=fail):
        if (real := os.path.realpath(where)) in visited or MANIFEST_NAME in names:  # a loop; or our own output
            folders.clear()
            continue
        visited.add(real)
        if is_saved_dataset(Path(where)):
            raise UserError(f"{where} is a saved dataset; name it as a source of its own, or move it")
        folders[:] = [name for name in folders if not name.startswith(".")]
        for path in (Path(where, name) for name in names if not name.startswith(".")):
            if base_suffix(path) in (*_TEXT, *_ROWS) and path.is_file():
                files.append(path)
            else:
                left_out["".join(path.suffixes[-2:]) or path.name] += 1
    if files and left_out:
        kinds = ", ".join(f"{count} {kind}" for kind, count in left_out.most_common(8))
        log.warning("%s: left out %d files that have another ending (%s)", folder, left_out.total(), kinds)
    return files
