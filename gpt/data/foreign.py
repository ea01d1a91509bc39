"""A manifest for token files that other projects made: llm.c, modded-nanogpt, nanoGPT and build-nanogpt."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.data.manifest import MANIFEST_NAME, SPLITS, Manifest
from gpt.data.token_files import LLM_C, NANOGPT, NPY, Shard, Split, dtype_for, layout_of, open_shard
from gpt.errors import UserError
from gpt.files import sha256_of_file, sha256_of_text
from gpt.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_SUFFIXES = (".bin", ".npy")
_CHUNK = 2**22


def token_files(folder: Path) -> list[Path]:
    """The files of a folder that look like tokens, by their names."""
    return sorted(path for path in folder.iterdir() if path.suffix in _SUFFIXES) if folder.is_dir() else []


def adopt(folder: Path, tokenizer_name: str) -> tuple[Manifest, bool]:
    """Describe the token files of a folder by a manifest beside them; they stay as they are.

    A file belongs to the split, train or val, that its name contains.

    Args:
        folder: holds ``.bin`` or ``.npy`` files.
        tokenizer_name: what they were made with, as ``Tokenizer`` takes it; the files do not say.

    Returns:
        The manifest, and whether it is new.

    Raises:
        ValueError: a file is damaged, an id outside the vocabulary, a split missing, or another manifest is there.
    """
    if (folder / "meta.pkl").exists():
        raise UserError(
            f"{folder} is of nanoGPT's character vocabulary (meta.pkl), not of a tokenizer: prepare its text"
        )
    tokenizer = Tokenizer(tokenizer_name)
    existing = Manifest.load(folder) if (folder / MANIFEST_NAME).exists() else None
    if existing is not None and existing.options:
        raise UserError(f"{folder} is prepared data already; check it with --verify")
    paths: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for path in token_files(folder):
        splits = [split for split in paths if split in path.stem]
        if len(splits) != 1:
            raise UserError(f"{path} does not say whether it is train or val; put one of them into its name")
        paths[splits[0]].append(path)
    for split, files in paths.items():
        if not files:
            raise UserError(f"{folder} has no file of split {split}; put {split} into the name of one")
    layouts = {layout_of(path) for files in paths.values() for path in files}
    if len(layouts) != 1:
        raise UserError(f"{folder} holds files of several kinds ({', '.join(sorted(layouts))}); give each a folder")
    layout = layouts.pop()
    log.info(
        "%s holds token files in the format of %s", folder, {LLM_C: "llm.c", NANOGPT: "nanoGPT", NPY: "NumPy"}[layout]
    )
    reader = _Reader(tokenizer, layout)
    splits_read = {split: reader.read(files) for split, files in paths.items()}
    shards = [shard for split in splits_read.values() for shard in split.shards]
    corpus_sha256 = sha256_of_text("".join(shard.sha256 for shard in shards))
    names = [shard.name for shard in shards]
    manifest = Manifest.of(tokenizer, splits_read, corpus_sha256, names, options={}, layout=layout)
    if existing is not None:
        if existing == manifest:
            return manifest, False
        raise UserError(f"{folder / MANIFEST_NAME} describes other data or another tokenizer; delete it to replace it")
    manifest.save(folder)
    return manifest, True


class _Reader:
    """Reads every token of the files: counts documents and bytes of text, and checks ids."""

    def __init__(self, tokenizer: Tokenizer, layout: str) -> None:
        self.tokenizer, self.layout = tokenizer, layout
        self.dtype: np.dtype[Any] = dtype_for(tokenizer.vocab_size)
        self._utf8_lengths = tokenizer.utf8_lengths()

    def read(self, paths: list[Path]) -> Split:
        shards, documents, utf8_bytes = [], 0, 0
        for path in paths:
            tokens = open_shard(path, self.layout)
            self._check(path, tokens)
            for start in range(0, len(tokens), _CHUNK):
                chunk = tokens[start : start + _CHUNK]
                if (largest := chunk.max()) >= self.tokenizer.vocab_size:
                    raise UserError(
                        f"{path} holds id {largest}, which tokenizer {self.tokenizer.name!r} does not have "
                        f"({self.tokenizer.vocab_size} ids); give the one that it was made with, with --tokenizer"
                    )
                documents += int((chunk == self.tokenizer.eot_id).sum())
                utf8_bytes += int(self._utf8_lengths[chunk].sum())
            shards.append(Shard(path.name, len(tokens), sha256_of_file(path)))
        if utf8_bytes == 0:
            raise UserError(f"{paths[0]} holds no text, only ends of it")
        return Split(sum(shard.tokens for shard in shards), documents, utf8_bytes, tuple(shards))

    def _check(self, path: Path, tokens: NDArray[Any]) -> None:
        if tokens.dtype != self.dtype:
            raise UserError(
                f"{path} holds {tokens.dtype} and tokenizer {self.tokenizer.name!r} needs {self.dtype}; "
                "give the one that it was made with, with --tokenizer"
            )
        if self.layout == NANOGPT and len(tokens) > 1 and not tokens[1:_CHUNK:2].any():
            raise UserError(f"{path} looks like ids of 32 bits; without a header they must be uint16, as nanoGPT's")
