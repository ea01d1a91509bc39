"""Text to token ids on several threads: in pieces, so that a document may be larger than memory, and in order."""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpt.data.documents import utf8_length
from gpt.errors import UserError
from gpt.tokenizer import END_OF_TEXT, Tokenizer

_BATCH_CHARACTERS = 2**17  # encoded by a thread at a time
_BATCHES_AHEAD = 4  # per thread


@dataclass(frozen=True)
class Piece:
    """Some text of a split, cut where ``Tokenizer.pieces`` cuts."""

    split: str
    begins_document: bool
    text: str
    document: str  # its name, for messages


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
        try:
            ids = tokenizer.encode_array(piece.text, end_of_text)
        except ValueError as error:
            raise UserError(f"{piece.document}: {error}") from None
        of_split = tokens.setdefault(piece.split, [])
        if piece.begins_document:
            of_split.append(begin)
        of_split.append(ids)
        size = utf8_length(piece.text) - (len(END_OF_TEXT) * piece.text.count(END_OF_TEXT) if end_of_text else 0)
        utf8_bytes[piece.split] = utf8_bytes.get(piece.split, 0) + size
    joined = {name: np.concatenate(parts) for name, parts in tokens.items()}
    return Encoded({n: _no_empty_documents(ids, tokenizer.eot_id) for n, ids in joined.items()}, utf8_bytes)


def _no_empty_documents(ids: NDArray[np.uint32], eot_id: int) -> NDArray[np.uint32]:
    """Of several ends of text in a row, one: a text that begins or ends with the token itself needs no other."""
    is_eot = ids == eot_id
    return ids[~np.append(is_eot[:-1] & is_eot[1:], False)]
