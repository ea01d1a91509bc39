"""What a prepared folder holds, as its manifest says it, and a split of it as one long row of tokens."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.data.token_files import LLM_C, NANOGPT, NPY, Shard, Split, dtype_for, open_shard
from gpt.errors import UserError
from gpt.files import atomic_write, sha256_of_file, sha256_of_text
from gpt.tokenizer import Tokenizer

MANIFEST_NAME = "manifest.json"
SPLITS = ("train", "val")
FORMAT_VERSION = 2

_COUNTED = 1_000_000  # tokens: enough to see which ids are common


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
        return Manifest(
            tokenizer=tokenizer.name,
            tokenizer_sha256=tokenizer.sha256,
            vocab_size=tokenizer.vocab_size,
            eot_id=tokenizer.eot_id,
            dtype=dtype_for(tokenizer.vocab_size).name,
            splits=splits,
            corpus_sha256=corpus_sha256,
            sources=tuple(sources),
            options=options,
            layout=layout,
        )

    @staticmethod
    def load(folder: Path) -> "Manifest":
        """Read and check the manifest of a folder.

        Raises:
            ValueError: the folder has none, or it is not one that we understand.
        """
        path = folder / MANIFEST_NAME
        if not path.is_file():
            raise UserError(f"no prepared data in {folder} (no {MANIFEST_NAME}); run scripts/prepare_data.py first")
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["format_version"] != FORMAT_VERSION:
                raise UserError(f"format_version {content['format_version']}, expected {FORMAT_VERSION}")
            if content["dtype"] not in ("uint16", "uint32"):
                raise UserError(f"dtype {content['dtype']!r}")
            if content.get("layout", LLM_C) not in (LLM_C, NANOGPT, NPY):
                raise UserError(f"layout {content['layout']!r}")
            splits = {name: _split(value) for name, value in content.pop("splits").items()}
            return Manifest(splits=splits, sources=tuple(content.pop("sources")), **content)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise UserError(f"{path} is not a manifest that this version reads: {error}; prepare it again") from None

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
            raise UserError(
                f"the data was made with tokenizer {self.tokenizer!r} ({self.vocab_size} ids), not with this "
                f"{tokenizer.name!r} ({tokenizer.vocab_size} ids); prepare it with --tokenizer {tokenizer.name}"
            )


class SplitTokens:
    """All tokens of a split as one long array, memory-mapped, shard after shard.

    Args:
        split: ``"train"`` or ``"val"``.

    Raises:
        ValueError: the split is not there, or a shard is missing, damaged or not the one in the manifest.
    """

    def __init__(self, folder: Path, manifest: Manifest, split: str) -> None:
        if split not in manifest.splits:
            raise UserError(f"{folder} has no split {split!r}; it has {', '.join(manifest.splits)}")
        self.name = split
        self.info = manifest.splits[split]
        self.vocab_size = manifest.vocab_size
        self._layout = manifest.layout
        self._paths = [folder / shard.name for shard in self.info.shards]
        self._ends = np.cumsum([shard.tokens for shard in self.info.shards])
        self._arrays: list[NDArray[Any]] | None = None
        for shard, array in zip(self.info.shards, self._open(), strict=True):
            if len(array) != shard.tokens or array.dtype != np.dtype(manifest.dtype).newbyteorder("<"):
                raise UserError(f"shard {folder / shard.name} is not the one in the manifest; prepare the data again")

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
                raise UserError(
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
                raise UserError(f"shard {path} has changed since it was written; prepare the data again")

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
            raise UserError(f"shard name {shard.name!r} is not a plain file name")
        if not isinstance(shard.tokens, int) or shard.tokens < 1:
            raise UserError(f"shard {shard.name!r} has a token count of {shard.tokens!r}")
    split = Split(**{**content, "shards": shards})
    if not isinstance(split.utf8_bytes, int) or split.utf8_bytes < 1:
        raise UserError(f"a split with {split.utf8_bytes!r} bytes")
    if not shards or split.tokens != sum(shard.tokens for shard in shards):
        raise UserError("the token count of a split is not the sum of its shards'")
    return split
