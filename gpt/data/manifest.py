"""The manifest of prepared data, the tokens of a split as one memory-mapped array, and the import of token files."""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any, TypeVar, get_origin

import numpy as np
from numpy.typing import NDArray

from gpt.data.token_files import LAYOUTS, LLM_C, NANOGPT, Shard, Split, detect_layout, dtype_for, open_shard
from gpt.errors import UserError
from gpt.files import atomic_write, sha256_of_file
from gpt.tokenizer import OWN_NAME, Tokenizer
from gpt.tokenizer_json import TOKENIZER_JSON, parse_tokenizer, read_json, tokenizer_json

log = logging.getLogger(__name__)

T = TypeVar("T")

MANIFEST_NAME = "manifest.json"
SPLITS = ("train", "val")
FORMAT_VERSION = 2

_CHUNK_TOKENS = 2**20  # read at a time
_MAX_OPEN_SHARDS = 32  # per split


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
    def of(tokenizer: Tokenizer, splits: Mapping[str, Split], corpus_sha256: str, **fields: Any) -> "Manifest":
        """Describe shards that this tokenizer encoded; ``fields`` are those from ``sources`` on."""
        encoded_by = tokenizer.name, tokenizer.sha256, tokenizer.vocab_size, tokenizer.eot_id
        return Manifest(*encoded_by, dtype_for(tokenizer.vocab_size).name, splits, corpus_sha256, **fields)

    def save(self, folder: Path, tokenizer: Tokenizer) -> None:
        """Write a vocabulary of your own, then ``manifest.json``: if it exists, the data is complete."""
        if tokenizer.vocabulary:
            with atomic_write(folder / TOKENIZER_JSON) as file:
                file.write(json.dumps(tokenizer_json(tokenizer), ensure_ascii=False).encode())
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
            supported = {"format_version": (FORMAT_VERSION,), "dtype": ("uint16", "uint32"), "layout": LAYOUTS}
            for key, known in supported.items():
                if content.get(key, LLM_C) not in known:
                    raise ValueError(f"{key} is {content.get(key)!r}; expected {' or '.join(map(str, known))}")
            splits = content.pop("splits")
            splits |= {name: _parse_split(splits[name]) for name in SPLITS}
            return _check_types(Manifest(splits=splits, sources=tuple(content.pop("sources")), **content))
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UserError(f"{path} is not a manifest of this version: {error}; prepare the data again") from None

    @property
    def sha256(self) -> str:
        """Hash of the tokenizer and of all shards in order: equal hashes mean equal tokens, from whatever sources."""
        shards = {name: [(shard.tokens, shard.sha256) for shard in split.shards] for name, split in self.splits.items()}
        content = self.tokenizer_sha256, self.vocab_size, self.eot_id, self.dtype, self.layout, shards
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def is_data_of(self, sha256: str) -> bool:
        """Whether a checkpoint's hash is of this data; earlier checkpoints have a hash of the whole manifest."""
        whole = hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()
        return sha256 in (self.sha256, whole)

    def open_tokenizer(self, folder: Path) -> Tokenizer:
        """The tokenizer that encoded the data; a vocabulary of your own lies in the folder."""
        if not OWN_NAME.fullmatch(self.tokenizer):
            tokenizer = Tokenizer(self.tokenizer)
            self.check_tokenizer(tokenizer)
            return tokenizer
        path = folder / TOKENIZER_JSON
        if not path.is_file():
            raise UserError(f"{path} is missing; restore it, or prepare the data again")
        try:
            tokenizer = parse_tokenizer(read_json(path))
            self.check_tokenizer(tokenizer)
        except UserError as error:
            raise UserError(f"{path} is not the vocabulary of this data ({error})") from None
        return tokenizer

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raise a UserError unless this tokenizer encoded the data."""
        encoded_by = self.tokenizer_sha256, self.vocab_size, self.eot_id
        if (tokenizer.sha256, tokenizer.vocab_size, tokenizer.eot_id) != encoded_by:
            raise UserError(
                f"the data's tokenizer is {self.tokenizer!r} ({self.vocab_size} ids); expected {tokenizer.name!r} "
                f"({tokenizer.vocab_size} ids); prepare the data with tokenizer {tokenizer.name}"
            )


class SplitTokens:
    """All tokens of a split as one array on disk, after checking its shards against the manifest."""

    def __init__(self, folder: Path, manifest: Manifest, split: str) -> None:
        if split not in manifest.splits:
            raise UserError(f"{folder} has no split {split!r}; it has {', '.join(manifest.splits)}")
        self.name, self.info, self.vocab_size = split, manifest.splits[split], manifest.vocab_size
        self._opened_from = folder, manifest, split
        self._paths = [folder / shard.name for shard in self.info.shards]
        self._dtype = np.dtype(manifest.dtype).newbyteorder("<")
        self._ends = np.cumsum([shard.tokens for shard in self.info.shards])
        self._offsets = []  # bytes before the tokens
        # Closed when evicted: a process may open only so many files, often 256 or 1,024.
        self._open = lru_cache(_MAX_OPEN_SHARDS)(lambda number: FileIO(self._paths[number]))
        for number, (path, shard) in enumerate(zip(self._paths, self.info.shards, strict=True)):
            array = open_shard(path, manifest.layout)
            self._open(number)
            if len(array) != shard.tokens or array.dtype != self._dtype:
                raise UserError(f"shard {path} is not the one in the manifest; prepare the data again")
            self._offsets.append(array.offset)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Copy the tokens from ``start`` to ``stop``, across shards, and check their ids: (stop - start,) int64."""
        assert 0 <= start < stop <= len(self)
        parts = []
        shard = int(np.searchsorted(self._ends, start, side="right"))
        while start < stop:
            end, size = int(self._ends[shard]), self._dtype.itemsize
            position = self._offsets[shard] + size * (start - end + self.info.shards[shard].tokens)
            length = min(stop, end) - start
            content = os.pread(self._open(shard).fileno(), size * length, position)
            if len(content) < size * length:
                raise UserError(f"shard {self._paths[shard]} was truncated while it was read; prepare the data again")
            part = np.frombuffer(content, self._dtype)
            if (largest := part.max()) >= self.vocab_size:
                raise UserError(
                    f"id {largest} in {self._paths[shard]} is outside the vocabulary of {self.vocab_size}; "
                    "check the files with prepare_data.py --verify"
                )
            parts.append(part)
            start, shard = start + length, shard + 1
        return np.concatenate(parts).astype(np.int64)

    def id_counts(self) -> NDArray[np.int64]:
        """Number of occurrences of each id in the first million tokens, enough to know which are frequent: (V,)."""
        return np.bincount(self.read(0, min(len(self), 1_000_000)), minlength=self.vocab_size)

    def check_bytes(self) -> None:
        """Raise a UserError if the hash of a shard is not the manifest's."""
        for path, shard in zip(self._paths, self.info.shards, strict=True):
            if sha256_of_file(path) != shard.sha256:
                raise UserError(f"shard {path} has changed since it was written; prepare the data again")

    def __reduce__(self) -> tuple[Any, ...]:
        # Loader workers open the files themselves.
        return SplitTokens, self._opened_from


def verify(folder: Path) -> Manifest:
    """Check every byte and every id of prepared data against its manifest."""
    manifest = Manifest.load(folder)
    manifest.open_tokenizer(folder)
    for split in manifest.splits:
        tokens = SplitTokens(folder, manifest, split)
        tokens.check_bytes()
        for start in range(0, len(tokens), _CHUNK_TOKENS):
            tokens.read(start, min(start + _CHUNK_TOKENS, len(tokens)))
    return manifest


def _parse_split(content: Mapping[str, Any]) -> Split:
    shards = tuple(_check_types(Shard(**shard)) for shard in content["shards"])
    split = _check_types(Split(**{**content, "shards": shards}))
    for shard in shards:
        if Path(shard.name).name != shard.name:  # a manifest from elsewhere must not name files outside its folder
            raise ValueError(f"a shard's name is {shard.name!r}; expected a file name")
    if min(split.tokens, split.utf8_bytes, *(shard.tokens for shard in shards)) < 1:
        raise ValueError("a count of tokens or bytes is 0 or less; expected at least 1")
    if split.tokens != sum(shard.tokens for shard in shards):
        raise ValueError(f"a split has {split.tokens!r} tokens; expected the sum of its shards'")
    return split


def _check_types(content: T) -> T:
    """Raise ValueError if a field of a dataclass has another type than its annotation."""
    for field in fields(content):  # type: ignore[arg-type]
        value, kind = getattr(content, field.name), get_origin(field.type) or field.type
        if not isinstance(value, kind):  # type: ignore[arg-type]
            raise ValueError(f"{field.name} is {value!r:.100}; expected {kind}")
    return content


def find_token_files(folder: Path) -> list[Path]:
    """Files of a folder whose names end as those of token files do."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".bin", ".npy")) if folder.is_dir() else []


def import_token_files(folder: Path, tokenizer: Tokenizer) -> tuple[Manifest, bool]:
    """Check a folder's token files and write their manifest; returns it, and False if it was there already.

    The files (of llm.c, modded-nanogpt, nanoGPT, build-nanogpt) do not change; their names contain their split.
    """
    if (folder / "meta.pkl").exists():
        raise UserError(f"{folder} has nanoGPT's character vocabulary (meta.pkl), not a tokenizer; prepare its text")
    existing = Manifest.load(folder) if (folder / MANIFEST_NAME).exists() else None
    if existing and existing.options:
        raise UserError(f"{folder} is prepared data already; verify it instead")
    paths = find_token_files(folder)
    for path in paths:
        if sum(split in path.stem for split in SPLITS) != 1:
            raise UserError(f"the name of {path} is ambiguous; expected either train or val in it")
    layouts = sorted({detect_layout(path) for path in paths})
    if len(layouts) > 1:
        raise UserError(f"{folder} has files of several formats ({', '.join(layouts)}); expected one")
    splits = {split: _read_split(folder, split, tokenizer) for split in SPLITS}
    log.info("%s has token files in the format of %s", folder, layouts[0])
    shards = [shard for split in splits.values() for shard in split.shards]
    corpus_sha256 = hashlib.sha256("".join(shard.sha256 for shard in shards).encode()).hexdigest()
    names = tuple(shard.name for shard in shards)
    manifest = Manifest.of(tokenizer, splits, corpus_sha256, sources=names, options={}, layout=layouts[0])
    if existing is None:
        manifest.save(folder, tokenizer)
    elif existing != manifest:
        raise UserError(f"{folder / MANIFEST_NAME} describes other data or another tokenizer; delete it to replace it")
    return manifest, existing is None


def _read_split(folder: Path, split: str, tokenizer: Tokenizer) -> Split:
    """Read all tokens: check their ids, and count documents and bytes of text."""
    paths = [path for path in find_token_files(folder) if split in path.stem]
    if not paths:
        raise UserError(f"{folder} has no file of split {split}; expected one with {split} in its name")
    lengths, dtype = tokenizer.utf8_lengths(), dtype_for(tokenizer.vocab_size)
    shards, documents, utf8_bytes = [], 0, 0
    for path in paths:
        layout = detect_layout(path)
        tokens = open_shard(path, layout)
        if tokens.dtype != dtype:
            raise UserError(f"{path} has ids of {tokens.dtype}; expected {dtype} for tokenizer {tokenizer.name!r}")
        if layout == NANOGPT and len(tokens) > 1 and not tokens[1:_CHUNK_TOKENS:2].any():
            raise UserError(f"{path} seems to have ids of uint32; expected uint16 in a file without a header")
        for start in range(0, len(tokens), _CHUNK_TOKENS):
            chunk = tokens[start : start + _CHUNK_TOKENS]
            if (largest := chunk.max()) >= len(lengths):
                raise UserError(
                    f"{path} has id {largest}; expected ids below {len(lengths)}. Give the tokenizer that encoded it"
                )
            documents += int((chunk == tokenizer.eot_id).sum())
            utf8_bytes += int(lengths[chunk].sum())
        shards.append(Shard(path.name, len(tokens), sha256_of_file(path)))
    if utf8_bytes == 0:
        raise UserError(f"{paths[0]} contains no text, only end-of-texts")
    return Split(sum(shard.tokens for shard in shards), documents, utf8_bytes, tuple(shards))
