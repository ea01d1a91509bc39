"""Token shards on disk, and the manifest that says what they are.

A shard is llm.c's: a header of 256 int32 (magic, version, token count, zeros), then the token ids, uint16 where
the vocabulary allows it and uint32 otherwise. Files of llm.c and modded-nanogpt are therefore shards as they are;
nanoGPT's and build-nanogpt's, which have no such header, are read where the manifest says that they are that.
"""

import json
import struct
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.files import atomic_write, sha256_of_file, sha256_of_text
from gpt.tokenizer import Tokenizer

MANIFEST_NAME = "manifest.json"
SPLITS = ("train", "val")
FORMAT_VERSION = 2

_HEADER_INTS = 256
_HEADER_BYTES = 4 * _HEADER_INTS
_COUNTED = 1_000_000  # tokens: enough to see which ids are common
# dtype -> (magic, version): llm.c's GPT-2 files and its Llama 3 files.
_FORMATS: dict[np.dtype[Any], tuple[int, int]] = {np.dtype("<u2"): (20240520, 1), np.dtype("<u4"): (20240801, 7)}


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The smallest of the two dtypes that holds every id: uint16 up to 65,536 ids, else uint32."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


class ShardWriter:
    """Writes a shard as its tokens come: under a temporary name until ``finish``, so a shard is whole or not there.

    Whoever may fail before ``finish`` tells ``leave`` of the exception, and nothing is left of the shard.

    Args:
        path: where to.
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

    def finish(self) -> "Shard":
        """Complete the file and describe it."""
        header = np.zeros(_HEADER_INTS, dtype="<i4")
        header[:3] = *_FORMATS[self.dtype], self.tokens
        self._file.seek(0)
        self._file.write(header.tobytes())
        self._stack.close()
        return Shard(self.path.name, self.tokens, sha256_of_file(self.path))

    def leave(self, *exception: Any) -> None:
        """An ExitStack's callback: see above."""
        self._stack.__exit__(*exception)


def write_shard(path: Path, tokens: NDArray[Any]) -> "Shard":
    """Write (n,) uint16 or uint32 token ids as a shard, atomically."""
    writer = ShardWriter(path, tokens.dtype)
    writer.write(tokens)
    return writer.finish()


LLM_C, NANOGPT, NPY = "llm.c", "nanogpt", "npy"


def layout_of(path: Path) -> str:
    """What a token file is, by its name and its first bytes: with llm.c's header, without one, or NumPy's.

    Raises:
        ValueError: the file is empty.
    """
    with path.open("rb") as file:
        start = file.read(8)
    if not start:
        raise ValueError(f"shard {path} is damaged: it is empty; prepare the data again")
    if path.suffix == ".npy":
        return NPY
    return LLM_C if start in [struct.pack("<2i", *numbers) for numbers in _FORMATS.values()] else NANOGPT


def open_shard(path: Path, layout: str = LLM_C) -> NDArray[Any]:
    """Memory-map the tokens of a shard, after checking its header and size.

    Args:
        path: the file.
        layout: ``LLM_C``; ``NANOGPT``, uint16 and nothing else; or ``NPY``, NumPy's own format.

    Returns:
        (n,) uint16 or uint32, read-only.

    Raises:
        ValueError: the file is missing, of another format, or truncated.
    """
    if not path.is_file():
        raise ValueError(f"shard {path} is missing; prepare the data again")
    if path.stat().st_size == 0:
        raise ValueError(f"shard {path} is damaged: it is empty; prepare the data again")
    return {LLM_C: _open_llm_c, NANOGPT: _open_nanogpt, NPY: _open_npy}[layout](path)


def _open_llm_c(path: Path) -> NDArray[Any]:
    with path.open("rb") as file:
        header = np.frombuffer(file.read(_HEADER_BYTES), dtype=np.uint8)
    if len(header) < _HEADER_BYTES:
        raise ValueError(f"{path} is not a token shard (it is shorter than llm.c's header); prepare the data again")
    magic, version, count = header.view("<i4")[:3].tolist()
    dtypes = [dtype for dtype, start in _FORMATS.items() if start == (magic, version)]
    if not dtypes:
        raise ValueError(f"{path} is not a token shard (its header is not llm.c's); prepare the data again")
    size, expected = path.stat().st_size, _HEADER_BYTES + count * dtypes[0].itemsize
    if count < 1 or size != expected:
        raise ValueError(
            f"shard {path} is damaged: {size} bytes where its header promises {expected}; prepare it again"
        )
    return np.memmap(path, dtype=dtypes[0], mode="r", offset=_HEADER_BYTES, shape=(count,))


def _open_nanogpt(path: Path) -> NDArray[Any]:
    if path.stat().st_size % 2:
        raise ValueError(f"shard {path} is damaged: an odd number of bytes is no row of uint16; prepare it again")
    return np.memmap(path, dtype="<u2", mode="r")


def _open_npy(path: Path) -> NDArray[Any]:
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # of a damaged header, whatever Python's parser says of it
        raise ValueError(f"{path} is not an array that NumPy reads: {error}; prepare it again") from None
    if not isinstance(tokens, np.ndarray):
        raise ValueError(f"{path} holds several arrays (it is an .npz); tokens are one")
    if tokens.ndim != 1 or tokens.dtype not in _FORMATS or len(tokens) == 0:
        raise ValueError(
            f"{path} is a {tokens.dtype} array of shape {tokens.shape}; tokens are a row of uint16 or uint32"
        )
    return tokens


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


@dataclass(frozen=True)
class Manifest:
    """What a folder of shards holds: enough to refuse the wrong data before a run starts.

    Args:
        tokenizer: name of the tokenizer.
        tokenizer_sha256: hash of its ranks.
        vocab_size: number of ids, end of text included.
        eot_id: id of the end of text, which begins each document.
        dtype: ``"uint16"`` or ``"uint32"``.
        splits: ``"train"`` and ``"val"``.
        corpus_sha256: hash over the documents, in their order, so that changed sources are noticed; after
            ``--streaming`` over the names of the sources, and of token files of others over those files.
        sources: what the user named.
        options: what the user chose.
        layout: of the shards: llm.c's, nanoGPT's or NumPy's.
        format_version: of this file.
    """

    tokenizer: str
    tokenizer_sha256: str
    vocab_size: int
    eot_id: int
    dtype: str
    splits: Mapping[str, Split]
    corpus_sha256: str
    sources: tuple[str, ...]
    options: Mapping[str, Any]
    layout: str = LLM_C
    format_version: int = FORMAT_VERSION

    def save(self, folder: Path) -> None:
        """Write ``manifest.json``: last of all files, so that its presence means completeness."""
        with atomic_write(folder / MANIFEST_NAME) as file:
            file.write((json.dumps(asdict(self), indent=2) + "\n").encode())

    @staticmethod
    def of(
        tokenizer: Tokenizer,
        splits: Mapping[str, Split],
        corpus_sha256: str,
        sources: Iterable[str],
        options: Mapping[str, Any],
        layout: str = LLM_C,
    ) -> "Manifest":
        """Describe shards that were made with a tokenizer."""
        dtype = dtype_for(tokenizer.vocab_size).name
        known_by = (tokenizer.name, tokenizer.sha256, tokenizer.vocab_size, tokenizer.eot_id)
        return Manifest(*known_by, dtype, splits, corpus_sha256, tuple(sources), options, layout)

    @staticmethod
    def load(folder: Path) -> "Manifest":
        """Read and check the manifest of a folder.

        Raises:
            ValueError: the folder has none, or it is not one that we understand.
        """
        path = folder / MANIFEST_NAME
        if not path.is_file():
            raise ValueError(f"no prepared data in {folder} (no {MANIFEST_NAME}); run scripts/prepare_data.py first")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format_version"] != FORMAT_VERSION:
                raise ValueError(f"format_version {content['format_version']}, expected {FORMAT_VERSION}")
            if content["dtype"] not in ("uint16", "uint32"):
                raise ValueError(f"dtype {content['dtype']!r}")
            if content.get("layout", LLM_C) not in (LLM_C, NANOGPT, NPY):
                raise ValueError(f"layout {content['layout']!r}")
            splits = {name: _split(value) for name, value in content.pop("splits").items()}
            return Manifest(splits=splits, sources=tuple(content.pop("sources")), **content)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is not a manifest that this version reads: {error}; prepare it again") from None

    @property
    def sha256(self) -> str:
        """Hash of the manifest, which hashes every shard: two equal ones mean equal data."""
        return sha256_of_text(json.dumps(asdict(self), sort_keys=True))

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """See to it that the shards were made with just this tokenizer.

        Raises:
            ValueError: they were made with another one, or with other ranks under its name.
        """
        if (tokenizer.sha256, tokenizer.vocab_size) != (self.tokenizer_sha256, self.vocab_size):
            raise ValueError(
                f"the data was made with tokenizer {self.tokenizer!r} ({self.vocab_size} ids), not with this "
                f"{tokenizer.name!r} ({tokenizer.vocab_size} ids); prepare it with --tokenizer {tokenizer.name}"
            )


class SplitTokens:
    """All tokens of a split as one long array, memory-mapped, shard after shard.

    Args:
        folder: the prepared folder.
        manifest: its manifest.
        split: ``"train"`` or ``"val"``.

    Raises:
        ValueError: the split is not there, or a shard is missing, damaged or not the one in the manifest.
    """

    def __init__(self, folder: Path, manifest: Manifest, split: str) -> None:
        if split not in manifest.splits:
            raise ValueError(f"{folder} has no split {split!r}; it has {', '.join(manifest.splits)}")
        self.name = split
        self.info = manifest.splits[split]
        self.vocab_size = manifest.vocab_size
        self._layout = manifest.layout
        self._paths = [folder / shard.name for shard in self.info.shards]
        self._ends = np.cumsum([shard.tokens for shard in self.info.shards])
        self._arrays: list[NDArray[Any]] | None = None
        for shard, array in zip(self.info.shards, self._open(), strict=True):
            if len(array) != shard.tokens or array.dtype != np.dtype(manifest.dtype).newbyteorder("<"):
                raise ValueError(f"shard {folder / shard.name} is not the one in the manifest; prepare the data again")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Copy out the tokens ``start`` to ``stop``, across shard edges, checking each id.

        Returns:
            (stop - start,) int64.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        assert 0 <= start < stop <= len(self)
        arrays = self._open()
        pieces = []
        shard = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            shard_start = int(self._ends[shard]) - len(arrays[shard])
            end = min(stop, int(self._ends[shard]))
            piece = arrays[shard][start - shard_start : end - shard_start]
            if piece.max() >= self.vocab_size:
                raise ValueError(
                    f"id {piece.max()} in {self._paths[shard]} is outside the vocabulary of {self.vocab_size}; "
                    "check the files with prepare_data.py --verify"
                )
            pieces.append(piece)
            start, shard = end, shard + 1
        return np.concatenate(pieces).astype(np.int64)

    def id_counts(self) -> NDArray[np.int64]:
        """How often each id occurs among the first million tokens: (V,)."""
        return np.bincount(self.read(0, min(len(self), _COUNTED)), minlength=self.vocab_size)

    def check_bytes(self) -> None:
        """Compare every shard's hash with the manifest's.

        Raises:
            ValueError: a shard has changed.
        """
        for path, shard in zip(self._paths, self.info.shards, strict=True):
            if sha256_of_file(path) != shard.sha256:
                raise ValueError(f"shard {path} has changed since it was written; prepare the data again")

    def _open(self) -> list[NDArray[Any]]:
        if self._arrays is None:
            self._arrays = [open_shard(path, self._layout) for path in self._paths]
        return self._arrays

    def __getstate__(self) -> dict[str, Any]:
        # A memory map pickles as a copy of its content: a loader's worker opens the files itself instead.
        return {**self.__dict__, "_arrays": None}


def verify(folder: Path) -> Manifest:
    """Check every byte and every id of a prepared folder against its manifest.

    Raises:
        ValueError: something is missing, damaged or other than the manifest says.
    """
    manifest = Manifest.load(folder)
    manifest.check_tokenizer(Tokenizer(manifest.tokenizer))
    for split in manifest.splits:
        tokens = SplitTokens(folder, manifest, split)
        tokens.check_bytes()
        for start in range(0, len(tokens), 2**20):
            tokens.read(start, min(start + 2**20, len(tokens)))
    return manifest


def _split(content: Mapping[str, Any]) -> Split:
    shards = tuple(Shard(**shard) for shard in content["shards"])
    for shard in shards:
        # Names come from a file that may be a stranger's: they must not lead out of its folder.
        if Path(shard.name).name != shard.name:
            raise ValueError(f"shard name {shard.name!r} is not a plain file name")
        if not isinstance(shard.tokens, int) or shard.tokens < 1:
            raise ValueError(f"shard {shard.name!r} has a token count of {shard.tokens!r}")
    split = Split(**{**content, "shards": shards})
    if not isinstance(split.utf8_bytes, int) or split.utf8_bytes < 1:
        raise ValueError(f"a split with {split.utf8_bytes!r} bytes")
    if not shards or split.tokens != sum(shard.tokens for shard in shards):
        raise ValueError("the token count of a split is not the sum of its shards'")
    return split
