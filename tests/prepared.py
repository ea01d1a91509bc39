"""Helpers of the data tests."""

import importlib
import itertools
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tiktoken

from gpt.data.manifest import Manifest, SplitTokens
from gpt.data.token_files import Shard, create_shard
from gpt.files import sha256_of_file
from gpt.tokenizer import Tokenizer


def ids_of(folder: Path, split: str) -> np.ndarray:
    """All token ids of a split."""
    tokens = SplitTokens(folder, Manifest.load(folder), split)
    return tokens.read(0, len(tokens))


def texts_of(folder: Path, split: str) -> list[str]:
    """Decoded documents of a split."""
    manifest, ids = Manifest.load(folder), ids_of(folder, split)
    tokenizer = Tokenizer(manifest.tokenizer)
    assert ids[0] == manifest.eot_id  # end-of-text begins each document
    starts = np.flatnonzero(ids == manifest.eot_id)
    return [tokenizer.decode(part[1:].tolist()) for part in np.split(ids, starts[1:])]


def write_shard(path: Path, tokens: np.ndarray) -> Shard:
    """Write (n,) uint16 or uint32 token ids as a shard."""
    with create_shard(path, tokens.dtype) as file:
        file.write(tokens.data)
    return Shard(path.name, len(tokens), sha256_of_file(path))


def contents(folder: Path) -> dict[str, bytes]:
    """Bytes of every file of a folder, by name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def toy_tokenizer(name: str, alphabet: str) -> Tokenizer:
    """Tokenizer with the pattern of a tiktoken name and merges trained on random text, which need no download."""
    openai = importlib.import_module("tiktoken_ext.openai_public")
    generator = random.Random(0)
    sequence = [bytes([byte]) for byte in "".join(generator.choice(alphabet) for _ in range(10_000)).encode()]
    ranks = {bytes([value]): value for value in range(256)}
    while len(ranks) < 450:
        pairs = Counter(itertools.pairwise(sequence))
        merged = next(a + b for (a, b), _ in pairs.most_common() if a + b not in ranks)
        ranks[merged] = len(ranks)
        out: list[bytes] = []
        for part in sequence:
            out[-1:] = [out[-1] + part] if out and out[-1] + part == merged else [*out[-1:], part]
        sequence = out
    with pytest.MonkeyPatch.context() as patch:
        for loader in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
            patch.setattr(openai, loader, lambda *arguments, **options: ranks)
        pattern = openai.ENCODING_CONSTRUCTORS[name]()["pat_str"]
        encoding = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 999}
        )
        patch.setattr(tiktoken, "get_encoding", lambda name: encoding)
        patch.setattr("gpt.tokenizer._gpt2_encoding", lambda: encoding)
        return Tokenizer(name)
