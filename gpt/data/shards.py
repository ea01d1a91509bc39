"""Token shards on disk, and the manifest that says what they are.

A shard is llm.c's: a header of 256 int32 (magic, version, token count, zeros), then the token ids, uint16 where
the vocabulary allows it and uint32 otherwise. Files of llm.c and modded-nanogpt are therefore shards as they are.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.files import atomic_write, sha256_of_file
from gpt.tokenizer import Tokenizer

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1

_HEADER_INTS = 256
_HEADER_BYTES = 4 * _HEADER_INTS
# dtype -> (magic, version): llm.c's GPT-2 files and its Llama 3 files.
_FORMATS: dict[np.dtype[Any], tuple[int, int]] = {np.dtype("<u2"): (20240520, 1), np.dtype("<u4"): (20240801, 7)}


def dtype_for(vocab_size: int) -> np.dtype[Any]:
    """The smallest of the two dtypes that holds every id: uint16 up to 65,536 ids, else uint32."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def write_shard(path: Path, tokens: NDArray[Any]) -> None:
    """Write a shard, atomically.

    Args:
        path: where to.
        tokens: (n,) uint16 or uint32.
    """
    header = np.zeros(_HEADER_INTS, dtype="<i4")
    header[:3] = *_FORMATS[tokens.dtype], len(tokens)
    with atomic_write(path) as file:
        file.write(header.tobytes())
        file.write(tokens.tobytes())


def open_shard(path: Path) -> NDArray[Any]:
    """Memory-map the tokens of a shard, after checking its header and size.

    Returns:
        (n,) uint16 or uint32, read-only.

    Raises:
        ValueError: the file is missing, of another format, or truncated.
    """
    if not path.is_file():
        raise ValueError(f"shard {path} is missing; prepare the data again")
    with path.open("rb") as file:
        header = np.frombuffer(file.read(_HEADER_BYTES), dtype="<i4")
    dtypes = [dtype for dtype, start in _FORMATS.items() if tuple(header[:2]) == start]
    if len(header) < _HEADER_INTS or not dtypes:
        raise ValueError(f"{path} is not a token shard (its header is not llm.c's); prepare the data again")
    count, dtype = int(header[2]), dtypes[0]
    size, expected = path.stat().st_size, _HEADER_BYTES + count * dtype.itemsize
    if count < 1 or size != expected:
        raise ValueError(
            f"shard {path} is damaged: {size} bytes where its header promises {expected}; prepare it again"
        )
    return np.memmap(path, dtype=dtype, mode="r", offset=_HEADER_BYTES, shape=(count,))


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
        corpus_sha256: hash over the documents, in their order, so that changed sources are noticed.
        sources: what the user named.
        options: what the user chose.
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
    format_version: int = FORMAT_VERSION

    def save(self, folder: Path) -> None:
        """Write ``manifest.json``: last of all files, so that its presence means completeness."""
        with atomic_write(folder / MANIFEST_NAME) as file:
            file.write((json.dumps(asdict(self), indent=2) + "\n").encode())

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
            splits = {name: _split(value) for name, value in content.pop("splits").items()}
            return Manifest(splits=splits, sources=tuple(content.pop("sources")), **content)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ValueError(f"{path} is not a manifest that this version reads: {error}; prepare it again") from None

    @property
    def sha256(self) -> str:
        """Hash of the manifest, which hashes every shard: two equal ones mean equal data."""
        return sha256_of_json(asdict(self))

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
            pieces.append(arrays[shard][start - shard_start : end - shard_start])
            start, shard = end, shard + 1
        tokens = np.concatenate(pieces).astype(np.int64)
        if tokens.max() >= self.vocab_size:
            raise ValueError(
                f"id {tokens.max()} in {self._paths[shard - 1]} is outside the vocabulary of {self.vocab_size}; "
                "check the files with prepare_data.py --verify"
            )
        return tokens

    def _open(self) -> list[NDArray[Any]]:
        if self._arrays is None:
            self._arrays = [open_shard(path) for path in self._paths]
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
    for name, split in manifest.splits.items():
        tokens = SplitTokens(folder, manifest, name)
        for shard in split.shards:
            if sha256_of_file(folder / shard.name) != shard.sha256:
                raise ValueError(
                    f"shard {folder / shard.name} has changed since it was written; prepare the data again"
                )
        for start in range(0, len(tokens), 2**20):
            tokens.read(start, min(start + 2**20, len(tokens)))
    return manifest


def sha256_of_json(content: Any) -> str:
    """Hash of plain values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _split(content: Mapping[str, Any]) -> Split:
    shards = tuple(Shard(**shard) for shard in content["shards"])
    for shard in shards:
        # Names come from a file that may be a stranger's: they must not lead out of its folder.
        if Path(shard.name).name != shard.name:
            raise ValueError(f"shard name {shard.name!r} is not a plain file name")
        if not isinstance(shard.tokens, int) or shard.tokens < 1:
            raise ValueError(f"shard {shard.name!r} has a token count of {shard.tokens!r}")
    split = Split(**{**content, "shards": shards})
    for total in (split.documents, split.utf8_bytes):
        if not isinstance(total, int) or total < 1:
            raise ValueError(f"a split with {total!r} documents or bytes")
    if not shards or split.tokens != sum(shard.tokens for shard in shards):
        raise ValueError("the token count of a split is not the sum of its shards'")
    return split
