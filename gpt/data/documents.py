"""Documents, the options of their preparation, and the text of a file: decompressed, decoded, and checked."""

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
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}


@dataclass(frozen=True)
class PrepareOptions:
    """How sources are read, split and encoded; the manifest stores these options."""

    val_fraction: float = 0.1  # of the UTF-8 bytes
    shard_tokens: int = 100_000_000  # maximum per file
    special_tokens: str = "text"  # a literal <|endoftext|> is ordinary "text", the "token", or an "error"
    seed: int = 0  # of the choice of validation documents
    streaming: bool = False  # read the documents only once
    text_column: str = "text"  # of JSON, CSV, Parquet and datasets
    split: str = "train"  # of a dataset
    encoding_errors: str = "strict"  # refuse bytes that are not UTF-8, or "replace" them by U+FFFD
    newlines: str = "keep"  # or normalise them to "lf"

    def __post_init__(self) -> None:
        for name, is_valid, expected in (
            ("val_fraction", 0.0 < self.val_fraction < 1.0, "a value between 0 and 1"),
            ("shard_tokens", self.shard_tokens >= 1, "at least 1"),
            ("seed", 0 <= self.seed < 2**63, "a value from 0 to 2**63 - 1"),
            ("special_tokens", self.special_tokens in ("text", "token", "error"), "text, token or error"),
            ("encoding_errors", self.encoding_errors in ("strict", "replace"), "strict or replace"),
            ("newlines", self.newlines in ("keep", "lf"), "keep or lf"),
        ):
            if not is_valid:
                raise UserError(f"{name} is {getattr(self, name)!r}; expected {expected}")


@dataclass(frozen=True)
class Document:
    """One text: a plain text file, a row of any other file or dataset, or a topic of the embedded corpus."""

    name: str  # for messages
    read: Callable[[], Iterator[str]]  # the text from its beginning, in blocks cut anywhere

    @staticmethod
    def from_text(name: str, text: str, options: PrepareOptions) -> "Document":
        """Make a document of a text in memory."""
        if options.newlines == "lf":
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        try:
            text.encode()
        except UnicodeEncodeError as error:  # JSON can escape half a surrogate pair
            if options.encoding_errors == "strict":
                raise UserError(
                    f"{name} contains half a surrogate pair ({text[error.start]!r}), which is not a character; "
                    "correct it, or set encoding_errors to replace"
                ) from None
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return Document(name, lambda: iter((text,)))

    def measure(self) -> tuple[bytes, int]:
        """SHA-256 digest of the text in UTF-8, and its length in bytes."""
        digest, size = hashlib.sha256(), 0
        for block in self.read():
            utf8 = block.encode()
            digest.update(utf8)
            size += len(utf8)
        return digest.digest(), size


def base_suffix(path: Path) -> str:
    """Suffix in lower case, without that of a compression: ``.jsonl`` for ``a.jsonl.gz``."""
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in _COMPRESSIONS else suffix


@contextmanager
def open_decompressed(path: Path) -> Iterator[IO[bytes]]:
    """Open a binary file for reading; ``.gz`` and ``.zst`` are decompressed."""
    compression = _COMPRESSIONS.get(path.suffix.lower())
    with path.open("rb") as file:
        if compression is None:
            yield file
            return
        import pyarrow  # takes 0.1 s, and most text is not compressed

        try:
            if not file.peek(1):  # pyarrow would read it as an empty text
                raise pyarrow.ArrowInvalid("it is empty")
            with pyarrow.CompressedInputStream(file, compression) as content:
                yield content
        except (OSError, pyarrow.ArrowException) as error:
            raise UserError(f"{path} is not valid {compression}, or truncated: {error}; re-create the file") from None


def decode_file(path: Path, options: PrepareOptions) -> Iterator[str]:
    """Read the text of a file in blocks, without a byte-order mark."""
    utf8 = codecs.getincrementaldecoder("utf-8")(options.encoding_errors)
    decoder = io.IncrementalNewlineDecoder(utf8, translate=options.newlines == "lf")
    offset, is_first, block = 0, True, b"-"
    with open_decompressed(path) as file:
        while block:
            block = file.read(_BLOCK_BYTES)
            undecoded = len(utf8.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                raise not_utf8_error(str(path), error, offset - undecoded) from None
            offset += len(block)
            if is_first and text:
                is_first, text = False, text.removeprefix("\ufeff")
                if "\0" in text:
                    log.warning("%s contains NUL characters; is it text?", path)
            if text:
                yield text


def not_utf8_error(name: str, error: UnicodeDecodeError, offset: int = 0) -> UserError:
    """Describe a decoding error, whose first byte is at ``offset`` in the file."""
    position = offset + error.start
    if position == 0 and error.object[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return UserError(f"{name} is UTF-16, not UTF-8; convert it, for example with iconv -f UTF-16 -t UTF-8")
    place = f"byte {error.object[error.start]:#04x} at offset {position}"
    return UserError(f"{name} is not UTF-8: {place}; convert it, or set encoding_errors to replace")


def utf8_length(text: str) -> int:
    """Number of UTF-8 bytes of a text, in constant time if it is ASCII."""
    return len(text) if text.isascii() else len(text.encode())
