"""Which documents are validation: a choice by the hash of their text, so that no order and no machine matters."""

import hashlib
import logging
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gpt.data.documents import Document, utf8_length
from gpt.errors import UserError
from gpt.tokenizer import END_OF_TEXT

log = logging.getLogger(__name__)

_KEYS = 2**64


@dataclass(frozen=True)
class Survey:
    """What a first reading of the documents found: a key, from the hash of the text, and a size in bytes for each."""

    keys: "array[int]"
    sizes: "array[int]"
    corpus_sha256: str

    @property
    def utf8_bytes(self) -> int:
        """Of all documents together."""
        return sum(self.sizes)


@dataclass(frozen=True)
class Plan:
    """A document is validation if its key is below ``below``, unless it has more bytes than ``largest``.

    The one whose key is ``cut_key``, if any, gives its end, from the character ``cut`` on.
    """

    below: int
    largest: float
    cut_key: int | None = None
    cut: int = 0

    def parts(self, key: int, size: int, document: Document) -> Iterator[tuple[str, Iterable[str]]]:
        """A document's text, or the two parts of it, each with its split; to be read in this order."""
        if key == self.cut_key:
            before, after = _cut_in_two(document.read(), self.cut)
            yield "train", before
            yield "val", after
        else:
            yield ("val" if key < self.below and size <= self.largest else "train"), document.read()


def key_of(digest: bytes, seed: int) -> int:
    """A document's place in the order, in 0 .. 2**64 - 1: its hash, or another for each seed."""
    if seed:
        digest = hashlib.sha256(seed.to_bytes(8, "big") + digest).digest()
    return int.from_bytes(digest[:8], "big")


def survey(documents: Iterable[Document], seed: int) -> Survey:
    """Read every document once.

    Raises:
        ValueError: there is no text.
    """
    keys, sizes, corpus = array("Q"), array("Q"), hashlib.sha256()
    empty, first_empty = 0, ""
    for document in documents:
        digest, size = document.measure()
        keys.append(key_of(digest, seed))
        sizes.append(size)
        corpus.update(digest)
        if size == 0:
            empty, first_empty = empty + 1, first_empty or document.name
    if not any(sizes):
        raise UserError("the sources hold no text; give some with text in it")
    if empty:
        log.warning("left out %d empty documents, the first of them %s", empty, first_empty)
    return Survey(keys, sizes, corpus.hexdigest())


def plan(found: Survey, val_fraction: float, documents: Iterable[Document]) -> Plan:
    """Choose documents in the order of their keys until the fraction of the bytes is reached.

    A document that alone has more than the fraction stays in training: a novel among notes would take all of
    validation, or leave nothing to train on. Where less than half of the fraction comes together, because there is
    one document or a few long ones, the longest gives its end.

    Args:
        val_fraction: in (0, 1).
        documents: the same again, in the same order; read on only as far as the longest, if that is cut.

    Raises:
        ValueError: there is too little text for two splits.
    """
    numbers = np.flatnonzero(np.array(found.sizes))  # empty documents do not count
    keys, sizes = np.array(found.keys)[numbers], np.array(found.sizes)[numbers]
    wanted = val_fraction * found.utf8_bytes
    order = np.argsort(keys)
    eligible = np.where(sizes <= wanted, sizes, 0)
    reached = int(np.searchsorted(np.cumsum(eligible[order]), wanted))
    below = int(keys[order][min(reached, len(keys) - 1)]) + 1  # up to and with that one
    if eligible.all():
        below = min(below, int(keys.max()))  # never all that there is: training needs a document too
    chosen = int(eligible[keys < below].sum())
    if chosen >= wanted / 2:
        return Plan(below, wanted)
    longest = int(np.lexsort((keys, -sizes.astype(np.int64)))[0])  # of equal ones, that with the lowest key
    key, size = int(keys[longest]), int(sizes[longest])
    copies = int((keys == key).sum())
    if key < below and size <= wanted:
        chosen -= copies * size
    alone = copies == len(keys)
    missing = min((wanted - chosen) / copies, size if alone else size / 2)
    document = next((document for number, document in enumerate(documents) if number == numbers[longest]), None)
    if document is None:
        raise UserError("the sources changed while they were read; run this again")
    return Plan(below, wanted, key, _find_cut(document, size, missing))


def plan_by_hash_alone(val_fraction: float) -> Plan:
    """The plan of a single reading: a fraction of all keys."""
    return Plan(below=int(val_fraction * _KEYS), largest=float("inf"))


def _find_cut(document: Document, size: int, val_bytes: float) -> int:
    """Where a document's validation part starts, in characters: at a line start, if one is near."""
    start, before = size - round(val_bytes), 0
    for chunk in document.read():
        if start >= (length := utf8_length(chunk)):
            start -= length
            before += len(chunk)
            continue
        cut = len(chunk.encode()[:start].decode(errors="ignore"))
        next_line = chunk.find("\n", max(0, cut - 1)) + 1
        if next_line > 0 and len(chunk[cut:next_line].encode()) < val_bytes / 2:
            cut = next_line
        # Not inside a literal end of text, which would no longer be one.
        literal = chunk.find(END_OF_TEXT, max(0, cut - len(END_OF_TEXT) + 1), cut + len(END_OF_TEXT) - 1)
        if literal >= 0:
            cut = literal if before + literal > 0 else literal + len(END_OF_TEXT)
        if before + cut > 0 and val_bytes >= 1:
            return before + cut
        break
    raise UserError(f"{document.name} has {size} bytes, too few for a training and a validation split; give more text")


def _cut_in_two(chunks: Iterator[str], cut: int) -> tuple[Iterator[str], Iterator[str]]:
    """The text before and after a character; the first part is to be read to its end before the second."""
    rest: list[str] = []

    def before() -> Iterator[str]:
        left = cut
        for chunk in chunks:
            yield chunk[:left]
            if left <= len(chunk):
                rest.append(chunk[left:])
                return
            left -= len(chunk)

    def after() -> Iterator[str]:
        yield from rest
        yield from chunks

    return before(), after()
