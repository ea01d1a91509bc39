"""Documents from where the user says they are: files, folders, globs, datasets, or the embedded corpus."""

import glob
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from pathlib import Path

from gpt.data.documents import Document, ReadOptions, base_suffix, decode_file
from gpt.data.rows import SAVED_DATASET, csv_documents, dataset_documents, json_documents, parquet_documents

PYDOCS = "pydocs"
HUB = "hf:"
_TEXT = (".txt", ".md")
_ROWS = {
    ".jsonl": json_documents,
    ".json": json_documents,
    ".csv": csv_documents,
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
            yield from _pydocs(options)
        elif source.startswith(HUB):
            yield from dataset_documents(source.removeprefix(HUB), options)
        elif any((Path(source) / marker).exists() for marker in SAVED_DATASET):
            yield from dataset_documents(source, options)
        else:
            for path in _files(source):
                if rows := _ROWS.get(base_suffix(path)):
                    yield from rows(path, options)
                else:
                    yield Document(str(path), partial(decode_file, path, options))


def _pydocs(options: ReadOptions) -> Iterator[Document]:
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        yield Document(f"{PYDOCS}:{name}", partial(iter, (topics[name],)))


def _files(source: str) -> list[Path]:
    path = Path(source)
    if path.is_file():
        return [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if _is_corpus_file(file))
        if not files:
            raise ValueError(
                f"folder {source} has no file ending in {' '.join([*_TEXT, *_ROWS])} (or that and .gz, .zst)"
            )
        return files
    # glob and not Path.glob, which takes no absolute pattern.
    files = sorted(file for file in map(Path, glob.glob(source, recursive=True)) if file.is_file())  # noqa: PTH207
    if not files:
        raise ValueError(
            f"there is no file or folder {source}; give a path, a glob, {HUB}NAME, or {PYDOCS} for the embedded corpus"
        )
    return files


def _is_corpus_file(path: Path) -> bool:
    return base_suffix(path) in (*_TEXT, *_ROWS) and path.is_file()
