"""Token files: llm.c's format, which is written and read, and those of nanoGPT and NumPy, which are only read.

llm.c's has a header of 256 int32 (magic, version, token count, zeros), then the ids, as uint16 if the vocabulary allows
it and else uint32. nanoGPT writes raw uint16, build-nanogpt .npy; the manifest says which layout a folder has.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from gpt.errors import UserError
from gpt.files import atomic_write, sha256_of_file
from gpt.tokenizer import Tokenizer

LAYOUTS = LLM_C, NANOGPT, NPY = "llm.c", "nanogpt", "npy"

_HEADER_INTS = 256
_HEADER_BYTES = 4 * _HEADER_INTS
# dtype -> (magic, version) of llm.c's GPT-2 files and of its Llama 3 files.
_FORMATS: dict[np.dtype[Any], tuple[int, int]] = {np.dtype("<u2"): (20240520, 1), np.dtype("<u4"): (20240801, 7)}


@dataclass(frozen=True)
class Shard:
    """One file of a split: its name in the folder, its token count, and the SHA-256 of its bytes."""

    name: str
    tokens: int
    sha256: str


@dataclass(frozen=True)
class Split:
    """Totals and files of a split; ``utf8_bytes`` is the size of its text, for bits per byte."""

    tokens: int
    documents: int
    utf8_bytes: int
    shards: tuple[Shard, ...]


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """Dtype of the ids: uint16 up to 65,536 of them, else uint32."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


@contextmanager
def create_shard(path: Path, dtype: np.dtype[Any]) -> Iterator[IO[bytes]]:
    """Create a shard atomically, for its tokens to be written; after an exception no file is left."""
    with atomic_write(path) as file:
        file.write(bytes(_HEADER_BYTES))
        yield file
        header = np.zeros(_HEADER_INTS, dtype="<i4")
        header[:3] = *_FORMATS[dtype], (file.tell() - _HEADER_BYTES) // dtype.itemsize
        file.seek(0)
        file.write(header.tobytes())


class SplitWriter(ExitStack):
    """Context manager that writes a split's tokens to shards; an exception deletes the incomplete one."""

    def __init__(self, folder: Path, split: str, tokenizer: Tokenizer, shard_tokens: int) -> None:
        super().__init__()
        self._folder, self._split, self._shard_tokens = folder, split, shard_tokens
        self._dtype, self._eot_id, self._ends_with_eot = dtype_for(tokenizer.vocab_size), tokenizer.eot_id, False
        self._shards: list[Shard] = []
        self._file: IO[bytes] | None = None
        self._documents = self._utf8_bytes = self.tokens = 0

    def write(self, tokens: NDArray[np.uint32], utf8_bytes: int) -> None:
        """Append (n,) ids, n > 0; of several end-of-texts in a row, only one."""
        is_eot = tokens == self._eot_id
        is_repeated = is_eot & np.append(self._ends_with_eot, is_eot[:-1])
        tokens, self._ends_with_eot = tokens[~is_repeated], bool(is_eot[-1])
        self._documents += int((is_eot & ~is_repeated).sum())
        self._utf8_bytes += utf8_bytes
        while len(tokens):
            if self._file is None:
                self._path = self._folder / f"{self._split}_{len(self._shards):06d}.bin"
                self._file = self.enter_context(create_shard(self._path, self._dtype))
            part, tokens = np.split(tokens, [self._shard_tokens - self.tokens % self._shard_tokens])
            self._file.write(part.astype(self._dtype, copy=False).data)
            self.tokens += len(part)
            if self.tokens % self._shard_tokens == 0:
                self._finish_shard()

    def finish(self) -> Split:
        """Complete the last shard and describe the split."""
        if self._file is not None:
            self._finish_shard()
        return Split(self.tokens, self._documents, self._utf8_bytes, tuple(self._shards))

    def _finish_shard(self) -> None:
        self.close()
        self._file = None
        self._shards.append(Shard(self._path.name, len(open_shard(self._path)), sha256_of_file(self._path)))


def detect_layout(path: Path) -> str:
    """Layout of a token file, from its name and its first bytes."""
    if path.stat().st_size == 0:
        raise UserError(f"{path} is not a valid token file: it is empty; prepare the data again")
    if path.suffix == ".npy":
        return NPY
    return LLM_C if tuple(np.fromfile(path, dtype="<i4", count=2)) in _FORMATS.values() else NANOGPT


def open_shard(path: Path, layout: str = LLM_C) -> "np.memmap[Any, Any]":
    """Memory-map the tokens of a file, after checking its header and size: (n,) uint16 or uint32, read-only."""
    if not path.is_file():
        raise UserError(f"{path} is missing; prepare the data again")
    try:
        if layout == NANOGPT:
            return np.memmap(path, dtype="<u2", mode="r")
        return _open_npy(path) if layout == NPY else _open_llm_c(path)
    except ValueError as error:
        raise UserError(f"{path} is not a valid token file: {error}; prepare the data again") from None


def _open_llm_c(path: Path) -> "np.memmap[Any, Any]":
    header = np.fromfile(path, dtype="<i4", count=_HEADER_INTS).tolist()
    dtypes = [dtype for dtype, numbers in _FORMATS.items() if tuple(header[:2]) == numbers]
    if not dtypes or len(header) < _HEADER_INTS:
        raise ValueError("it does not start with llm.c's header")
    size, expected = path.stat().st_size, _HEADER_BYTES + header[2] * dtypes[0].itemsize
    if header[2] < 1 or size != expected:
        raise ValueError(f"it has {size} bytes; expected {expected} from its header")
    return np.memmap(path, dtype=dtypes[0], mode="r", offset=_HEADER_BYTES, shape=(header[2],))


def _open_npy(path: Path) -> "np.memmap[Any, Any]":
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # of Python's parser, if the header is damaged
        raise ValueError(f"NumPy cannot read it ({error})") from None
    if not isinstance(tokens, np.memmap):
        raise ValueError("it holds several arrays (.npz); expected one")
    if tokens.ndim != 1 or tokens.dtype not in _FORMATS or len(tokens) == 0:
        raise ValueError(f"it is a {tokens.dtype} array of shape {tokens.shape}; expected (n,) uint16 or uint32")
    return tokens
