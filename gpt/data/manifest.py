"""The manifest of prepared data, and the tokens of a split as one memory-mapped array."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.data.token_files import LAYOUTS, LLM_C, Shard, Split, dtype_for, open_shard
from gpt.errors import UserError
from gpt.files import atomic_write, sha256_of_file
from gpt.tokenizer import Tokenizer

MANIFEST_NAME = "manifest.json"
SPLITS = ("train", "val")
FORMAT_VERSION = 2

_COUNTED_TOKENS = 1_000_000  # enough to know which ids are frequent
_VERIFIED_TOKENS = 2**20  # at a time


@dataclass(frozen=True)
class Manifest:
    """Contents of a folder of shards."""

    tokenizer: str
    tokenizer_sha256: str  # of its ranks
    vocab_size: int
    eot_id: int
    dtype: str
    splits: Mapping[str, Split]
    corpus_sha256: str  # of all documents in order; of the names of streamed sources; of imported token files
    sources: tuple[str, ...]
    options: Mapping[str, Any]  # of prepare; empty for imported token files
    layout: str = LLM_C
    format_version: int = FORMAT_VERSION

    @staticmethod
    def of(
        tokenizer: Tokenizer,
        splits: Mapping[str, Split],
        corpus_sha256: str,
        sources: Iterable[str],
        options: Mapping[str, Any],
        layout: str = LLM_C,
    ) -> "Manifest":
        """Describe shards that this tokenizer encoded."""
        encoded_by = tokenizer.name, tokenizer.sha256, tokenizer.vocab_size, tokenizer.eot_id
        dtype = dtype_for(tokenizer.vocab_size).name
        return Manifest(*encoded_by, dtype, splits, corpus_sha256, tuple(sources), options, layout)

    def save(self, folder: Path) -> None:
        """Write ``manifest.json``, after all other files: if it exists, the data is complete."""
        with atomic_write(folder / MANIFEST_NAME) as file:
            file.write((json.dumps(asdict(self), indent=2) + "\n").encode())

    @staticmethod
    def load(folder: Path) -> "Manifest":
        """Read and check the manifest of a folder."""
        path = folder / MANIFEST_NAME
        if not path.is_file():
            raise UserError(f"no prepared data in {folder} (no {MANIFEST_NAME}); run scripts/prepare_data.py first")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            for key, known in (
                ("format_version", [FORMAT_VERSION]),
                ("dtype", ["uint16", "uint32"]),
                ("layout", LAYOUTS),
            ):
                if content.get(key, LLM_C) not in known:
                    raise ValueError(f"{key} is {content.get(key)!r}; expected {' or '.join(map(str, known))}")
            splits = {name: _parse_split(split) for name, split in content.pop("splits").items()}
            return Manifest(splits=splits, sources=tuple(content.pop("sources")), **content)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UserError(f"{path} is not a manifest of this version: {error}; prepare the data again") from None

    @property
    def sha256(self) -> str:
        """Hash of the manifest, and so of all shards: equal hashes mean equal data."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise a UserError unless this tokenizer encoded the data."""
        if (tokenizer.sha256, tokenizer.vocab_size) != (self.tokenizer_sha256, self.vocab_size):
            raise UserError(
                f"the data's tokenizer is {self.tokenizer!r} ({self.vocab_size} ids); expected {tokenizer.name!r} "
                f"({tokenizer.vocab_size} ids); prepare the data with tokenizer {tokenizer.name}"
            )


class SplitTokens:
    """All tokens of a split as one array, memory-mapped shard by shard, after checking it against the manifest."""

    def __init__(self, folder: Path, manifest: Manifest, split: str) -> None:
        if split not in manifest.splits:
            raise UserError(f"{folder} has no split {split!r}; it has {', '.join(manifest.splits)}")
        self.name = split
        self.info = manifest.splits[split]
        self.vocab_size = manifest.vocab_size
        self._layout = manifest.layout
        self._paths = [folder / shard.name for shard in self.info.shards]
        self._ends = np.cumsum([shard.tokens for shard in self.info.shards])
        for path, shard, array in zip(self._paths, self.info.shards, self._arrays, strict=True):
            if len(array) != shard.tokens or array.dtype != np.dtype(manifest.dtype).newbyteorder("<"):
                raise UserError(f"shard {path} is not the one in the manifest; prepare the data again")

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Copy the tokens from ``start`` to ``stop``, across shards, and check their ids: (stop - start,) int64."""
        assert 0 <= start < stop <= len(self)
        arrays, parts = self._arrays, []
        shard = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            shard_start = int(self._ends[shard]) - len(arrays[shard])
            part = arrays[shard][start - shard_start : stop - shard_start]
            if (largest := part.max()) >= self.vocab_size:
                raise UserError(
                    f"id {largest} in {self._paths[shard]} is outside the vocabulary of {self.vocab_size}; "
                    "check the files with prepare_data.py --verify"
                )
            parts.append(part)
            start, shard = start + len(part), shard + 1
        return np.concatenate(parts).astype(np.int64)

    def id_counts(self) -> NDArray[np.int64]:
        """Number of occurrences of each id in the first million tokens: (V,)."""
        return np.bincount(self.read(0, min(len(self), _COUNTED_TOKENS)), minlength=self.vocab_size)

    def check_bytes(self) -> None:
        """Raise a UserError if the hash of a shard is not the manifest's."""
        for path, shard in zip(self._paths, self.info.shards, strict=True):
            if sha256_of_file(path) != shard.sha256:
                raise UserError(f"shard {path} has changed since it was written; prepare the data again")

    @cached_property
    def _arrays(self) -> list[NDArray[Any]]:
        return [open_shard(path, self._layout) for path in self._paths]

    def __getstate__(self) -> dict[str, Any]:
        # A memory map is pickled as a copy of its content, so loader workers open the files themselves.
        return {name: value for name, value in self.__dict__.items() if name != "_arrays"}


def verify(folder: Path) -> Manifest:
    """Check every byte and every id of prepared data against its manifest."""
    manifest = Manifest.load(folder)
    manifest.check_tokenizer(Tokenizer(manifest.tokenizer))
    for split in manifest.splits:
        tokens = SplitTokens(folder, manifest, split)
        tokens.check_bytes()
        for start in range(0, len(tokens), _VERIFIED_TOKENS):
            tokens.read(start, min(start + _VERIFIED_TOKENS, len(tokens)))
    return manifest


def _parse_split(content: Mapping[str, Any]) -> Split:
    split = Split(**{**content, "shards": tuple(Shard(**shard) for shard in content["shards"])})
    for shard in split.shards:
        if Path(shard.name).name != shard.name:  # a manifest from elsewhere must not name files outside its folder
            raise ValueError(f"a shard's name is {shard.name!r}; expected a file name")
    for count in (split.utf8_bytes, *(shard.tokens for shard in split.shards)):
        if not isinstance(count, int) or count < 1:
            raise ValueError(f"a count of tokens or bytes is {count!r}; expected at least 1")
    if not split.shards or split.tokens != sum(shard.tokens for shard in split.shards):
        raise ValueError(f"a split has {split.tokens!r} tokens; expected the sum of its shards'")
    return split
