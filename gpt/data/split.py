"""The train/val split: documents are chosen by the hash of their text, so it does not depend on order or machine."""

import hashlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gpt.data.documents import Document, utf8_length
from gpt.errors import UserError
from gpt.tokenizer import END_OF_TEXT


@dataclass(frozen=True)
class CorpusStats:
    """A first pass over the documents: the split key and the size in bytes of each, and a hash of them all."""

    keys: "array[int]"
    sizes: "array[int]"
    longest: Document  # of several equally long ones, that with the lowest key
    corpus_sha256: str


@dataclass(frozen=True)
class SplitPlan:
    """Which documents are validation: those with ``key < val_below`` and at most ``max_val_bytes`` bytes.

    The document with ``cut_key``, if any, is divided: its characters from ``cut`` on are validation.
    """

    val_below: int
    max_val_bytes: float = float("inf")
    cut_key: int | None = None
    cut: int = 0

    def assign(self, key: int, size: int, document: Document) -> Iterator[tuple[str, str]]:
        """Read a document's text in blocks, each with its split."""
        is_val = key < self.val_below and size <= self.max_val_bytes
        cut = self.cut if key == self.cut_key else 0 if is_val else size  # characters of training
        for block in document.read():
            if cut > 0:
                yield "train", block[:cut]
            if cut < len(block):
                yield "val", block[cut:]
            cut = max(0, cut - len(block))


def split_key(digest: bytes, seed: int) -> int:
    """Pseudorandom key of a document in [0, 2**64), from its SHA-256 and the seed."""
    if seed:
        digest = hashlib.sha256(seed.to_bytes(8, "big") + digest).digest()
    return int.from_bytes(digest[:8], "big")


def measure_corpus(documents: Iterable[Document], seed: int) -> CorpusStats:
    """Hash and measure every document."""
    keys, sizes, corpus = array("Q"), array("Q"), hashlib.sha256()
    longest, longest_rank = None, (0, 0)
    for document in documents:
        digest, size = document.measure()
        key = split_key(digest, seed)
        keys.append(key)
        sizes.append(size)
        corpus.update(digest)
        if (size, -key) > longest_rank:
            longest, longest_rank = document, (size, -key)
    if longest is None:
        raise UserError("the sources contain no text; give at least one with text")
    return CorpusStats(keys, sizes, longest, corpus.hexdigest())


def plan_split(stats: CorpusStats, val_fraction: float) -> SplitPlan:
    """Choose documents in the order of their keys until ``val_fraction`` of the bytes is validation.

    A document larger than that fraction stays in training: a novel among notes would be all of validation. If less than
    half of the fraction is reached (a single document, or a few long ones), the end of the longest is validation too.
    """
    keys, sizes = np.array(stats.keys), np.array(stats.sizes)
    keys, sizes = keys[sizes > 0], sizes[sizes > 0]
    val_bytes = val_fraction * sum(stats.sizes)
    order = np.argsort(keys)
    eligible_sizes = np.where(sizes <= val_bytes, sizes, 0)
    last = int(np.searchsorted(np.cumsum(eligible_sizes[order]), val_bytes))
    val_below = int(keys[order][min(last, len(keys) - 1)]) + 1
    if eligible_sizes.all():
        val_below = min(val_below, int(keys.max()))  # at least one document is training
    chosen_bytes = int(eligible_sizes[keys < val_below].sum())
    if chosen_bytes >= val_bytes / 2:
        return SplitPlan(val_below, val_bytes)

    size = int(sizes.max())
    key = int(keys[sizes == size].min())
    copies = int((keys == key).sum())
    if key < val_below and size <= val_bytes:
        chosen_bytes -= copies * size
    missing_bytes = min((val_bytes - chosen_bytes) / copies, size if copies == len(keys) else size / 2)
    return SplitPlan(val_below, val_bytes, key, _find_cut(stats.longest, size, missing_bytes))


def _find_cut(document: Document, size: int, val_bytes: float) -> int:
    """Character at which a document's validation part starts: at the start of a line if one is near."""
    start, before, block = size - round(val_bytes), 0, ""  # bytes left to skip, and characters skipped
    for block in document.read():
        if start < (length := utf8_length(block)):
            break
        start -= length
        before += len(block)
    cut = len(block.encode()[:start].decode(errors="ignore"))
    next_line = block.find("\n", max(0, cut - 1)) + 1
    if next_line > 0 and len(block[cut:next_line].encode()) < val_bytes / 2:
        cut = next_line
    # Not inside a literal <|endoftext|>, which may stand for the token.
    literal = block.find(END_OF_TEXT, max(0, cut - len(END_OF_TEXT) + 1), cut + len(END_OF_TEXT) - 1)
    if literal >= 0:
        cut = literal if before + literal > 0 else literal + len(END_OF_TEXT)
    if before + cut == 0 or val_bytes < 1:
        raise UserError(f"{document.name} has {size} bytes, too few for two splits; give more text")
    return before + cut
