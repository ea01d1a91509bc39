"""Documents, the options of their preparation, and the text of a file: decompressed, decoded, and checked."""

import codecs
import gzip
import hashlib
import io
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from gpt.errors import UserError

_BLOCK_BYTES = 2**20
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}
_EXPECTED = "expected text in UTF-8. Extract its text, or convert it"
_SIGNATURES = {  # patterns of the first bytes of what is taken for text
    "a ZIP archive (.zip, .docx, .xlsx, .epub and others)": rb"PK(\x03\x04|\x05\x06|\x07\x08)",
    "a tar archive": rb".{257}ustar",
    "a 7z or RAR archive": rb"7z\xbc\xaf\x27\x1c|Rar!\x1a\x07",
    "compressed twice": rb"\x1f\x8b|\x28\xb5\x2f\xfd",
    "compressed with xz or bzip2 (gzip and zstd are read)": rb"\xfd7zXZ\0|BZh[1-9](1AY&SY|\x17rE8P)",
    "Parquet (files ending in .parquet are read)": rb"PAR1\x15",
    "a PDF, PostScript or RTF document": rb"%PDF-\d|%!PS-|\{\\rtf\d",
    "a NumPy array or a token file (a folder of token ids is imported)": rb"\x93NUMPY|\x88\xd8\x34\x01",
    "binary (image, pickle or SQLite)": rb"\x80[\2-\5]|\x89PNG\r|GIF8[79]a|\xff\xd8\xff|SQLite format 3\0",
    "a Git LFS pointer (git lfs pull fetches the file)": rb"version https://git-lfs",
    "UTF-32 (iconv -f UTF-32 -t UTF-8 converts it)": rb"\xff\xfe\0\0|\0\0\xfe\xff",
    "UTF-16 (iconv -f UTF-16 -t UTF-8 converts it)": rb"\xff\xfe|\xfe\xff",
}


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
    train_tokenizer: int = 0  # number of ids of a vocabulary that is trained on the training split; 0: none is

    def __post_init__(self) -> None:
        for name, is_valid, expected in (
            ("val_fraction", 0.0 < self.val_fraction < 1.0, "a value between 0 and 1"),
            ("shard_tokens", self.shard_tokens >= 1, "at least 1"),
            ("seed", 0 <= self.seed < 2**63, "a value from 0 to 2**63 - 1"),
            ("special_tokens", self.special_tokens in ("text", "token", "error"), "text, token or error"),
            ("encoding_errors", self.encoding_errors in ("strict", "replace"), "strict or replace"),
            ("newlines", self.newlines in ("keep", "lf"), "keep or lf"),
            (
                "train_tokenizer",
                self.train_tokenizer == 0 or 257 < self.train_tokenizer <= 2**20,
                "from 258 to 1048576",
            ),
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
def decompress(file: "io.BufferedReader[Any]", name: str) -> Iterator[IO[bytes]]:
    """Decompress gzip and zstd, recognised by the first bytes or by the name; any other file is returned unchanged."""
    head = file.peek(4)
    compression = "gzip" if head.startswith(b"\x1f\x8b") else "zstd" if head.startswith(b"\x28\xb5\x2f\xfd") else None
    if (compression := compression or _COMPRESSIONS.get(Path(name).suffix.lower())) is None:
        yield file
        return
    import pyarrow  # takes 0.1 s, and most text is not compressed

    try:
        if not head:  # both libraries would read it as an empty text
            raise EOFError("it is empty")
        if compression == "gzip":  # pyarrow refuses the zeros that may follow the content
            yield cast("IO[bytes]", gzip.GzipFile(fileobj=file))
        else:
            yield pyarrow.CompressedInputStream(file, compression)
    except (OSError, EOFError, zlib.error, pyarrow.ArrowException) as error:
        if "too much memory" in str(error):  # a window of more than 128 MiB
            raise UserError(f"{name} was compressed with zstd --long; decompress it with zstd -d --long=31") from None
        raise UserError(f"{name} is not valid {compression}, or truncated: {error}; re-create the file") from None


def decode_file(path: Path, options: PrepareOptions) -> Iterator[str]:
    """Read the text of a file in blocks, without a byte-order mark."""
    with path.open("rb") as file:
        yield from decode_text(file, str(path), options)


def decode_text(file: "io.BufferedReader[Any]", name: str, options: PrepareOptions | None = None) -> Iterator[str]:
    """Read the text of an open file in blocks, without a byte-order mark; without options, exactly as it is."""
    utf8 = codecs.getincrementaldecoder("utf-8")(options.encoding_errors if options else "strict")
    decoder = io.IncrementalNewlineDecoder(utf8, translate=options is not None and options.newlines == "lf")
    offset, is_first, block = 0, True, b"-"
    with decompress(file, name) as content:
        while block:
            block = content.read(_BLOCK_BYTES)
            if offset == 0:
                _check_is_text(name, block)
            undecoded = len(utf8.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                raise not_utf8_error(name, error, offset - undecoded, can_replace=options is not None) from None
            offset += len(block)
            if is_first and text:
                is_first, text = False, text.removeprefix("\ufeff")
            if text:
                yield text


def _check_is_text(name: str, head: bytes) -> None:
    """Refuse a file whose first bytes are those of a format other than UTF-8 text."""
    kinds = [kind for kind, signature in _SIGNATURES.items() if re.match(signature, head, re.DOTALL)]
    if kinds or head.count(0) > len(head) / 4:
        raise UserError(f"{name} is {[*kinds, 'binary or UTF-16'][0]}; {_EXPECTED}")


def not_utf8_error(name: str, error: UnicodeDecodeError, offset: int = 0, can_replace: bool = True) -> UserError:
    """Describe a decoding error, whose first byte is at ``offset`` in the file."""
    place = f"byte {error.object[error.start]:#04x} at offset {offset + error.start}"
    if re.search(rb"[\0-\x08]", error.object):  # text in an old encoding has none of these
        return UserError(f"{name} is binary: {place}, and control characters; {_EXPECTED}")
    remedy = "convert it" + ", or set encoding_errors to replace" * can_replace
    return UserError(f"{name} is not UTF-8: {place}; {remedy}")


def counted(number: int, noun: str) -> str:
    """Number and noun: ``1 document``, ``2,000 documents``."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def utf8_length(text: str) -> int:
    """Number of UTF-8 bytes of a text, in constant time if it is ASCII."""
    return len(text) if text.isascii() else len(text.encode())
