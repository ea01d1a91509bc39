"""What the tests of the data share."""

from pathlib import Path

import numpy as np

from gpt.data.manifest import Manifest, SplitTokens
from gpt.tokenizer import Tokenizer


def ids_of(folder: Path, split: str) -> np.ndarray:
    """All ids of a split, from its shards."""
    tokens = SplitTokens(folder, Manifest.load(folder), split)
    return tokens.read(0, len(tokens))


def texts_of(folder: Path, split: str) -> list[str]:
    """The documents of a split, decoded from its shards."""
    manifest, ids = Manifest.load(folder), ids_of(folder, split)
    tokenizer = Tokenizer(manifest.tokenizer)
    assert ids[0] == manifest.eot_id  # end-of-text begins each document
    starts = np.flatnonzero(ids == manifest.eot_id)
    return [tokenizer.decode(part[1:].tolist()) for part in np.split(ids, starts[1:])]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by its name."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}
