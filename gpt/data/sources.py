"""Documents from sources: files, folders, globs, datasets, and the embedded corpus."""

import glob
import logging
import os
from collections import Counter
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

from gpt.data.documents import Document, base_suffix, decode_file
from gpt.data.manifest import MANIFEST_NAME
from gpt.data.options import PrepareOptions
from gpt.data.rows import csv_documents, dataset_documents, is_saved_dataset, json_documents, parquet_documents
from gpt.errors import UserError

log = logging.getLogger(__name__)

PYDOCS = "pydocs"
HUB = "hf:"

_ROW_READERS = {
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), json_documents),
    **dict.fromkeys((".csv", ".tsv"), csv_documents),
    ".parquet": parquet_documents,
}
_SUFFIXES = (".txt", ".md", *_ROW_READERS)  # read from folders


def read_documents(sources: list[str], options: PrepareOptions) -> Iterator[Document]:
    """Read all documents of the sources in the order given, the files of a folder in the order of their paths.

    A source is a file, a folder (searched recursively), a glob, ``hf:NAME[:CONFIG]``, a folder that ``datasets`` saved,
    or ``pydocs``: the Python language reference included in every interpreter. A document is a row of ``.jsonl .ndjson
    .json .csv .tsv .parquet`` or of a dataset, or any other file (in folders only ``.txt`` and ``.md``); each file may
    be compressed (``.gz``, ``.zst``). Documents may be empty.
    """
    for source in sources:
        if source == PYDOCS:
            topics: dict[str, str] = import_module("pydoc_data.topics").topics
            yield from (Document(f"{PYDOCS}:{name}", partial(iter, (topics[name],))) for name in sorted(topics))
        elif source.startswith(HUB) or is_saved_dataset(Path(source)):
            yield from dataset_documents(source.removeprefix(HUB), options)
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
        if is_saved_dataset(Path(parent)):
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
