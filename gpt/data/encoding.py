"""Text to token ids on several threads: in pieces, so that a document may be larger than memory, and in order."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt.data.documents import utf8_length
from gpt.tokenizer import END_OF_TEXT, Tokenizer

_BATCH_CHARACTERS = 2**17  # encoded by a thread at a time
_BATCHES_AHEAD = 4  # per thread


@dataclass(frozen=True)
class Piece:
    """Some text of a split, cut where ``Tokenizer.pieces`` cuts."""

    split: str
    begins_document: bool
    text: str


@dataclass(frozen=True)
class Encoded:
    """A batch of pieces: each split's token ids and how many bytes of text they are."""

    tokens: dict[str, NDArray[np.uint32]]
    utf8_bytes: dict[str, int]


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces in groups of some size: a task for each small document would cost more than encoding it."""
    batch: list[Piece] = []
    characters = 0
    for piece in pieces:
        batch.append(piece)
        characters += len(piece.text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def encode_pieces(pieces: Iterable[Piece], tokenizer: Tokenizer, end_of_text: bool, workers: int) -> Iterator[Encoded]:
    """Encode on threads (tiktoken lets go of the interpreter), in order, a bounded amount ahead.

    Args:
        pieces: what to encode.
        tokenizer: gives the ids.
        end_of_text: whether a literal ``<|endoftext|>`` in the text is that token.
        workers: number of threads; what comes out does not depend on it.
    """
    waiting: deque[Future[Encoded]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for batch in _batches(pieces):
                waiting.append(pool.submit(_encode_batch, batch, tokenizer, end_of_text))
                if len(waiting) > _BATCHES_AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _encode_batch(batch: list[Piece], tokenizer: Tokenizer, end_of_text: bool) -> Encoded:
    tokens: dict[str, list[NDArray[np.uint32]]] = {}
    utf8_bytes: dict[str, int] = {}
    begin = np.array([tokenizer.eot_id], dtype=np.uint32)
    for piece in batch:
        ids = tokenizer.encode_array(piece.text, end_of_text)
        of_split = tokens.setdefault(piece.split, [])
        # A text that begins with the token itself needs no other.
        if piece.begins_document and not (end_of_text and ids[0] == tokenizer.eot_id):
            of_split.append(begin)
        of_split.append(ids)
        size = utf8_length(piece.text) - (len(END_OF_TEXT) * piece.text.count(END_OF_TEXT) if end_of_text else 0)
        utf8_bytes[piece.split] = utf8_bytes.get(piece.split, 0) + size
    return Encoded({name: np.concatenate(parts) for name, parts in tokens.items()}, utf8_bytes)
