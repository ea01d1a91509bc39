"""A document, and how the text of a file is read: decompressed, decoded and checked, block by block."""

import codecs
import hashlib
import io
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpt.errors import UserError

log = logging.getLogger(__name__)

_BLOCK_BYTES = 2**20
DEFAULT_SPLIT = "train"
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}


@dataclass(frozen=True)
class ReadOptions:
    """What the user chose about reading.

    Args:
        text_column: of JSON, CSV, Parquet and datasets: which one holds the text.
        split: of a dataset.
        encoding_errors: ``"strict"`` refuses bytes that are not UTF-8, ``"replace"`` makes U+FFFD of them.
        newlines: ``"keep"`` line ends as they are, or make each ``"lf"``.

    Raises:
        ValueError: there is no such choice.
    """

    text_column: str = "text"
    split: str = DEFAULT_SPLIT
    encoding_errors: str = "strict"
    newlines: str = "keep"

    def __post_init__(self) -> None:
        for name, choices in (("encoding_errors", ("strict", "replace")), ("newlines", ("keep", "lf"))):
            if getattr(self, name) not in choices:
                raise UserError(f"--{name.replace('_', '-')} is {getattr(self, name)!r}; it is {' or '.join(choices)}")


@dataclass(frozen=True)
class Document:
    """One text: a file of plain text, a row of anything else, or a topic of the embedded corpus.

    Args:
        name: where it comes from, for messages.
        read: gives its text, in chunks cut anywhere; each call reads it anew.
    """

    name: str
    read: Callable[[], Iterator[str]]

    def measure(self) -> tuple[bytes, int]:
        """SHA-256 of the text in UTF-8, and its length in bytes."""
        digest, size = hashlib.sha256(), 0
        for chunk in self.read():
            utf8 = chunk.encode()
            digest.update(utf8)
            size += len(utf8)
        return digest.digest(), size


def document_of_row(name: str, text: str, options: ReadOptions) -> Document:
    """A document whose text is at hand.

    Raises:
        ValueError: the text is none: JSON can escape half a character.
    """
    if options.newlines == "lf":
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        if options.encoding_errors == "strict":
            raise UserError(
                f"{name} holds half a surrogate pair ({text[error.start]!r}), which is no character; "
                "mend it, or use --encoding-errors replace"
            ) from None
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return Document(name, lambda: iter((text,)))


def base_suffix(path: Path) -> str:
    """The suffix in lower case, of ``a.jsonl.gz`` that of ``a.jsonl``."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in _COMPRESSIONS else suffix


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, through gzip or zstd where its name says so.

    Raises:
        ValueError: it is not what its name says, or truncated.
    """
    compression = _COMPRESSIONS.get(path.suffix.lower())
    if compression is None:
        with path.open("rb") as file:
            yield file
        return
    import pyarrow  # takes 0.1 s, and most text is not compressed

    if path.stat().st_size == 0:
        raise UserError(f"{path} is empty, which is no {compression}; make it anew")
    try:
        with path.open("rb") as content, pyarrow.CompressedInputStream(content, compression) as file:
            yield file
    except (OSError, pyarrow.ArrowException) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise UserError(f"{path} is not {compression}, or cut short: {error}; make it anew") from None


def decode_file(path: Path, options: ReadOptions) -> Iterator[str]:
    """Read the text of a file, in chunks.

    A byte-order mark is dropped.

    Raises:
        ValueError: a byte is not UTF-8 (naming its offset), or the file is not what its name says.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(options.encoding_errors)
    line_ends = io.IncrementalNewlineDecoder(None, translate=True)
    offset, first, nul, block = 0, True, False, b"-"
    with open_decompressed(path) as file:
        while block:
            block = file.read(_BLOCK_BYTES)
            undecoded = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                raise not_utf8(str(path), error, offset - undecoded) from None
            offset += len(block)
            if not nul and "\0" in text:
                nul = True
                log.warning("%s has NUL characters in it; is it text?", path)
            if first and text:
                first, text = False, text.removeprefix("\ufeff")
            if options.newlines == "lf":
                text = line_ends.decode(text, final=not block)
            if text:
                yield text


def not_utf8(name: str, error: UnicodeDecodeError, offset: int) -> UserError:
    """The error of bytes that are not UTF-8: where they are, counted from ``offset`` on, and what to do."""
    if offset + error.start == 0 and error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return UserError(f"{name} is UTF-16, not UTF-8; convert it, for example with iconv -f UTF-16 -t UTF-8")
    byte = error.object[error.start]
    return UserError(
        f"{name} is not UTF-8: byte {byte:#04x} at offset {offset + error.start}; convert it to UTF-8, or use "
        "--encoding-errors replace"
    )


def utf8_length(text: str) -> int:
    """Bytes of a text in UTF-8; at no cost where it is ASCII."""
    return len(text) if text.isascii() else len(text.encode())
