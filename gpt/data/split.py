"""The train/val split: documents are chosen by the hash of their text, so it does not depend on order or machine."""

import hashlib
import logging
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from gpt.data.documents import Document, utf8_length
from gpt.errors import UserError
from gpt.tokenizer import END_OF_TEXT

log = logging.getLogger(__name__)

_FEW_DOCUMENTS = 5


@dataclass(frozen=True)
class CorpusStats:
    """A first pass over the documents: the split key and the size in bytes of each, and a hash of them all."""

    keys: "array[int]"
    sizes: "array[int]"
    corpus_sha256: str


@dataclass(frozen=True)
class SplitPlan:
    """Which documents are validation: those with ``key < val_below`` that are not among ``train_keys``.

    Of the documents with ``cut_key``, if any, which are equal, the last ``cut_bytes`` bytes are validation.
    """

    val_below: int
    train_keys: frozenset[int] = frozenset()
    cut_key: int | None = None
    cut_bytes: float = 0.0

    def assign(self, key: int, size: int, document: Document) -> Iterator[tuple[str, str]]:
        """Read a document's text in blocks, each with its split."""
        cut = 0 if key < self.val_below and key not in self.train_keys else size  # characters of training
        if key == self.cut_key:
            cut = _find_cut(document, size, self.cut_bytes)
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
    for document in documents:
        digest, size = document.measure()
        keys.append(split_key(digest, seed))
        sizes.append(size)
        corpus.update(digest)
    if not any(sizes):
        raise UserError("the sources contain no text; give at least one with text")
    return CorpusStats(keys, sizes, corpus.hexdigest())


def plan_split(stats: CorpusStats, val_fraction: float) -> SplitPlan:
    """Choose documents in the order of their keys until ``val_fraction`` of the bytes is validation.

    Equal documents count as one, of all their bytes. One that is larger than the fraction stays in training: a novel
    among notes would be all of validation. If the others are less than the fraction together, ``val_fraction`` of them
    is chosen. If less than half of the fraction is reached, the end of the largest is validation too.
    """
    keys, first, copies = np.unique(stats.keys, return_index=True, return_counts=True)  # sorted
    sizes = np.array(stats.sizes)[first]
    keys, sizes, copies = keys[sizes > 0], sizes[sizes > 0], copies[sizes > 0]
    val_bytes = val_fraction * int((sizes * copies).sum())
    is_eligible = sizes * copies <= val_bytes
    reached = np.cumsum(np.where(is_eligible, sizes * copies, 0))
    last = int(np.searchsorted(reached, val_bytes if reached[-1] > val_bytes else val_fraction * reached[-1]))
    if is_eligible.all():
        last = min(last, len(keys) - 2)  # at least one document is training
    whole = is_eligible[: last + 1]
    plan = SplitPlan(int(keys[last]) + 1, frozenset(keys[: last + 1][~whole].tolist()))
    end = ""
    if reached[last] < val_bytes / 2:
        largest = int(np.argmax(sizes * copies))
        missing = (val_bytes - float(reached[last])) / int(copies[largest])
        cut_bytes = min(missing, int(sizes[largest]) / (1 if len(keys) == 1 else 2))
        if cut_bytes >= 1 or not whole.any():
            plan = replace(plan, cut_key=int(keys[largest]), cut_bytes=cut_bytes)
            end = " and the end of the largest"
    if whole.sum() < _FEW_DOCUMENTS and len(stats.keys) > 1:
        why = "equal ones count as one, and one larger than the fraction stays in training"
        log.info("validation has %d of %d distinct documents%s: %s", whole.sum(), len(keys), end, why)
    return plan


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
