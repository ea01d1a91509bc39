"""Documents from where the user says they are: text files, folders of them, or the embedded corpus."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path

PYDOCS = "pydocs"
TEXT_SUFFIXES = (".txt", ".md")


@dataclass(frozen=True)
class Document:
    """One text: a file, or a topic of the embedded corpus.

    Args:
        name: where it comes from, for messages.
        text: its characters, line ends as they were.
    """

    name: str
    text: str

    @cached_property
    def utf8(self) -> bytes:
        """The text as UTF-8: its length is what bits per byte are counted against."""
        return self.text.encode("utf-8")

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that depend on the text alone, so that equal documents fall into the same split."""
        return hashlib.sha256(self.utf8).digest()


def read_documents(sources: list[str]) -> Iterator[Document]:
    """Read every document of the sources, in the order given; folders in the order of their paths.

    Args:
        sources: paths of text files or of folders (searched for ``.txt`` and ``.md``, at any depth), or
            ``"pydocs"``: the Python language reference that ships inside every interpreter.

    Yields:
        Documents that are not empty.

    Raises:
        ValueError: a source does not exist, holds no text, or is not UTF-8 (naming file and byte).
    """
    for source in sources:
        found = False
        for document in _pydocs() if source == PYDOCS else map(_read_text, _text_files(source)):
            if document.text:
                found = True
                yield document
        if not found:
            raise ValueError(f"{source} holds no text; give a file with text in it")


def _pydocs() -> Iterator[Document]:
    topics: dict[str, str] = import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        yield Document(f"{PYDOCS}:{name}", topics[name])


def _text_files(source: str) -> list[Path]:
    path = Path(source)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise ValueError(f"there is no file or folder {source}; give a path, or {PYDOCS} for the embedded corpus")
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in TEXT_SUFFIXES and file.is_file())
    if not files:
        raise ValueError(f"folder {source} has no file ending in {' or '.join(TEXT_SUFFIXES)}")
    return files


def _read_text(path: Path) -> Document:
    content = path.read_bytes()
    try:
        # utf-8-sig drops a byte-order mark; unlike open() in text mode, it leaves line ends alone.
        return Document(str(path), content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8: byte {content[error.start]:#04x} at offset {error.start}; convert it to UTF-8"
        ) from None
