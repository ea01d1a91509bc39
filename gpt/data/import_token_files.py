"""Import the token files of llm.c, modded-nanogpt, nanoGPT and build-nanogpt: add a manifest beside them."""

import hashlib
import logging
from pathlib import Path

from gpt.data.manifest import MANIFEST_NAME, SPLITS, Manifest
from gpt.data.token_files import NANOGPT, Shard, Split, detect_layout, dtype_for, open_shard
from gpt.errors import UserError
from gpt.files import sha256_of_file
from gpt.tokenizer import Tokenizer

log = logging.getLogger(__name__)

_CHUNK_TOKENS = 2**22


def find_token_files(folder: Path) -> list[Path]:
    """Files of a folder whose names end as those of token files do."""
    return sorted(path for path in folder.iterdir() if path.suffix in (".bin", ".npy")) if folder.is_dir() else []


def import_token_files(folder: Path, tokenizer_name: str) -> tuple[Manifest, bool]:
    """Check a folder's token files and write their manifest; returns it, and False if it was there already.

    The files do not change. A file belongs to the split, train or val, that its name contains.
    """
    if (folder / "meta.pkl").exists():
        raise UserError(f"{folder} has nanoGPT's character vocabulary (meta.pkl), not a tokenizer; prepare its text")
    tokenizer = Tokenizer(tokenizer_name)
    existing = Manifest.load(folder) if (folder / MANIFEST_NAME).exists() else None
    if existing is not None and existing.options:
        raise UserError(f"{folder} is prepared data already; verify it instead")
    paths = _paths_by_split(folder)
    layouts = {detect_layout(path) for files in paths.values() for path in files}
    if len(layouts) != 1:
        raise UserError(f"{folder} has files of several formats ({', '.join(sorted(layouts))}); expected one")
    layout = layouts.pop()
    log.info("%s has token files in the format of %s", folder, layout)
    splits = {split: _read_split(files, tokenizer, layout) for split, files in paths.items()}
    shards = [shard for split in splits.values() for shard in split.shards]
    corpus_sha256 = hashlib.sha256("".join(shard.sha256 for shard in shards).encode()).hexdigest()
    manifest = Manifest.of(tokenizer, splits, corpus_sha256, [shard.name for shard in shards], {}, layout)
    if existing not in (None, manifest):
        raise UserError(f"{folder / MANIFEST_NAME} describes other data or another tokenizer; delete it to replace it")
    if existing is None:
        manifest.save(folder)
    return manifest, existing is None


def _paths_by_split(folder: Path) -> dict[str, list[Path]]:
    paths: dict[str, list[Path]] = {split: [] for split in SPLITS}
    for path in find_token_files(folder):
        splits = [split for split in SPLITS if split in path.stem]
        if len(splits) != 1:
            raise UserError(f"the name of {path} is ambiguous; expected either train or val in it")
        paths[splits[0]].append(path)
    for split, files in paths.items():
        if not files:
            raise UserError(f"{folder} has no file of split {split}; expected one with {split} in its name")
    return paths


def _read_split(paths: list[Path], tokenizer: Tokenizer, layout: str) -> Split:
    """Read all tokens: check their ids, and count documents and bytes of text."""
    lengths, dtype = tokenizer.utf8_lengths(), dtype_for(tokenizer.vocab_size)
    shards, documents, utf8_bytes = [], 0, 0
    for path in paths:
        tokens = open_shard(path, layout)
        if tokens.dtype != dtype:
            raise UserError(f"{path} has ids of {tokens.dtype}; expected {dtype} for tokenizer {tokenizer.name!r}")
        if layout == NANOGPT and len(tokens) > 1 and not tokens[1:_CHUNK_TOKENS:2].any():
            raise UserError(f"{path} seems to have ids of uint32; expected uint16 in a file without a header")
        for start in range(0, len(tokens), _CHUNK_TOKENS):
            chunk = tokens[start : start + _CHUNK_TOKENS]
            if (largest := chunk.max()) >= tokenizer.vocab_size:
                raise UserError(
                    f"{path} has id {largest}; expected ids below {tokenizer.vocab_size}, as of tokenizer "
                    f"{tokenizer.name!r}. Give the tokenizer that encoded the file"
                )
            documents += int((chunk == tokenizer.eot_id).sum())
            utf8_bytes += int(lengths[chunk].sum())
        shards.append(Shard(path.name, len(tokens), sha256_of_file(path)))
    if utf8_bytes == 0:
        raise UserError(f"{paths[0]} contains no text, only end-of-texts")
    return Split(sum(shard.tokens for shard in shards), documents, utf8_bytes, tuple(shards))
