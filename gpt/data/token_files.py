"""Files of token ids: llm.c's, which is what is written here, and those without its header, which are read.

A shard is llm.c's: a header of 256 int32 (magic, version, token count, zeros), then the token ids, uint16 where
the vocabulary allows it and uint32 otherwise. Files of llm.c and modded-nanogpt are therefore shards as they are;
nanoGPT's and build-nanogpt's, which have no such header, are read where the manifest says that they are that.
"""

import struct
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.errors import UserError
from gpt.files import atomic_write, sha256_of_file

LLM_C, NANOGPT, NPY = "llm.c", "nanogpt", "npy"

_HEADER_INTS = 256
_HEADER_BYTES = 4 * _HEADER_INTS
# dtype -> (magic, version): llm.c's GPT-2 files and its Llama 3 files.
_FORMATS: dict[np.dtype[Any], tuple[int, int]] = {np.dtype("<u2"): (20240520, 1), np.dtype("<u4"): (20240801, 7)}


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The smallest of the two dtypes that holds every id: uint16 up to 65,536 ids, else uint32."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


@dataclass(frozen=True)
class Shard:
    """One file of a split: its name inside the folder, its token count, the SHA-256 of all its bytes."""

    name: str
    tokens: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """A split's totals and files; ``utf8_bytes`` is the size of its text, against which bits per byte are counted."""

    tokens: int
    documents: int
    utf8_bytes: int
    shards: tuple[Shard, ...]


class ShardWriter:
    """Writes a shard as its tokens come: under a temporary name until ``finish``, so a shard is whole or not there.

    Whoever may fail before ``finish`` calls ``leave``, and nothing is left of the shard.

    Args:
        dtype: uint16 or uint32.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self.path, self.dtype, self.tokens = path, dtype, 0
        self._stack = ExitStack()
        self._file = self._stack.enter_context(atomic_write(path))
        self._file.write(bytes(_HEADER_BYTES))

    def write(self, tokens: NDArray[Any]) -> None:
        """Append (n,) ids."""
        self._file.write(tokens.astype(self.dtype, copy=False).data)
        self.tokens += len(tokens)

    def finish(self) -> Shard:
        """Complete the file and describe it."""
        header = np.zeros(_HEADER_INTS, dtype="<i4")
        header[:3] = *_FORMATS[self.dtype], self.tokens
        self._file.seek(0)
        self._file.write(header.tobytes())
        self._stack.close()
        return Shard(self.path.name, self.tokens, sha256_of_file(self.path))

    def leave(self) -> None:
        """Leave nothing of an unfinished shard."""
        with suppress(_Unfinished), self._stack:
            raise _Unfinished


class _Unfinished(Exception):  # noqa: N818 (what tells atomic_write to leave nothing)
    pass


def write_shard(path: Path, tokens: NDArray[Any]) -> Shard:
    """Write (n,) uint16 or uint32 token ids as a shard, atomically."""
    writer = ShardWriter(path, tokens.dtype)
    writer.write(tokens)
    return writer.finish()


class SplitWriter:
    """Writes a split's tokens, and begins another shard whenever one is full."""

    def __init__(self, folder: Path, split: str, dtype: np.dtype[Any], shard_tokens: int, eot_id: int) -> None:
        self._folder, self._split, self._dtype, self._shard_tokens = folder, split, dtype, shard_tokens
        self._eot_id = eot_id
        self._documents = self._utf8_bytes = self.tokens = 0
        self._ends_with_eot = False
        self._shards: list[Shard] = []
        self._writer: ShardWriter | None = None

    def add(self, tokens: NDArray[np.uint32], utf8_bytes: int) -> None:
        """Add (n,) ids; of two ends of text in a row, one."""
        if self._ends_with_eot and tokens[0] == self._eot_id:
            tokens = tokens[1:]
        if len(tokens):
            self._ends_with_eot = bool(tokens[-1] == self._eot_id)
        self._documents += int((tokens == self._eot_id).sum())
        self._utf8_bytes += utf8_bytes
        self.tokens += len(tokens)
        while len(tokens):
            if self._writer is None:
                path = self._folder / f"{self._split}_{len(self._shards):06d}.bin"
                self._writer = ShardWriter(path, self._dtype)
            room = self._shard_tokens - self._writer.tokens
            self._writer.write(tokens[:room])
            tokens = tokens[room:]
            if self._writer.tokens == self._shard_tokens:
                self._finish_shard()

    def finish(self) -> Split:
        """Complete the last shard and sum up."""
        if self._writer is not None:
            self._finish_shard()
        return Split(self.tokens, self._documents, self._utf8_bytes, tuple(self._shards))

    def leave(self) -> None:
        """Leave no shard half-written; complete ones stay."""
        if self._writer is not None:
            self._writer.leave()

    def _finish_shard(self) -> None:
        assert self._writer is not None
        self._shards.append(self._writer.finish())
        self._writer = None


def layout_of(path: Path) -> str:
    """What a token file is, by its name and its first bytes: with llm.c's header, without one, or NumPy's.

    Raises:
        ValueError: the file is empty.
    """
    with path.open("rb") as file:
        start = file.read(8)
    if not start:
        raise UserError(f"shard {path} is damaged: it is empty; prepare the data again")
    if path.suffix == ".npy":
        return NPY
    return LLM_C if start in [struct.pack("<2i", *numbers) for numbers in _FORMATS.values()] else NANOGPT


def open_shard(path: Path, layout: str = LLM_C) -> NDArray[Any]:
    """Memory-map the tokens of a shard, after checking its header and size.

    Args:
        layout: ``LLM_C``; ``NANOGPT``, uint16 and nothing else; or ``NPY``, NumPy's own format.

    Returns:
        (n,) uint16 or uint32, read-only.

    Raises:
        ValueError: the file is missing, of another format, or truncated.
    """
    if not path.is_file():
        raise UserError(f"shard {path} is missing; prepare the data again")
    if path.stat().st_size == 0:
        raise UserError(f"shard {path} is damaged: it is empty; prepare the data again")
    return {LLM_C: _open_llm_c, NANOGPT: _open_nanogpt, NPY: _open_npy}[layout](path)


def _open_llm_c(path: Path) -> NDArray[Any]:
    with path.open("rb") as file:
        header = np.frombuffer(file.read(_HEADER_BYTES), dtype=np.uint8)
    if len(header) < _HEADER_BYTES:
        raise UserError(f"{path} is not a token shard (it is shorter than llm.c's header); prepare the data again")
    magic, version, count = header.view("<i4")[:3].tolist()
    dtypes = [dtype for dtype, start in _FORMATS.items() if start == (magic, version)]
    if not dtypes:
        raise UserError(f"{path} is not a token shard (its header is not llm.c's); prepare the data again")
    size, expected = path.stat().st_size, _HEADER_BYTES + count * dtypes[0].itemsize
    if count < 1 or size != expected:
        raise UserError(f"shard {path} is damaged: {size} bytes where its header promises {expected}; prepare it again")
    return np.memmap(path, dtype=dtypes[0], mode="r", offset=_HEADER_BYTES, shape=(count,))


def _open_nanogpt(path: Path) -> NDArray[Any]:
    if path.stat().st_size % 2:
        raise UserError(f"shard {path} is damaged: an odd number of bytes is no row of uint16; prepare it again")
    return np.memmap(path, dtype="<u2", mode="r")


def _open_npy(path: Path) -> NDArray[Any]:
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # of a damaged header, whatever Python's parser says of it
        raise UserError(f"{path} is not an array that NumPy reads: {error}; prepare it again") from None
    if not isinstance(tokens, np.ndarray):
        raise UserError(f"{path} holds several arrays (it is an .npz); tokens are one")
    if tokens.ndim != 1 or tokens.dtype not in _FORMATS or len(tokens) == 0:
        raise UserError(
            f"{path} is a {tokens.dtype} array of shape {tokens.shape}; tokens are a row of uint16 or uint32"
        )
    return tokens
