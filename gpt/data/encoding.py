"""Encode text on several threads, in order, in chunks, so that a document may be larger than memory."""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpt.data.documents import utf8_length
from gpt.errors import UserError
from gpt.tokenizer import END_OF_TEXT, WHITESPACE, Tokenizer

EncodedBatch = dict[str, tuple[NDArray[np.uint32], int]]  # by split: token ids, and the number of text bytes

# Where text can be cut so that its chunks have the ids of the whole: positions that no word of the tokenizer's
# pattern spans. GPT-2's words have whitespace only at their start; from cl100k on, punctuation includes the line ends
# after it. tests/test_encoding.py checks this for each pattern.
_NOT_WHITESPACE = r"[\S\x1c-\x1f]"
# Text without spaces (base64, minified JSON, Chinese) is cut between letters, digits and punctuation; not at an
# apostrophe, which may begin a contraction, and only at characters that every version of Unicode puts in one class.
_CLASSES = r"(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]|(?<=[A-Za-z0-9])[!-&(-/:;=?@\[-`{}~]|(?<=[一-龥])[，。、！？：；]"
_CUTS = {
    "bytes": re.compile(r"(?s)(?<=.)[^<|endoftxt>]"),  # anywhere, but not inside a literal <|endoftext|>
    "gpt2": re.compile(rf"(?<={_NOT_WHITESPACE}){WHITESPACE}|{_CLASSES}"),
    "cl100k": re.compile(rf"(?<=[^\W_]){WHITESPACE}|(?<={_NOT_WHITESPACE}) |{_CLASSES}"),
}
_CHUNK_CHARACTERS = 2**17  # longer texts take longer per character
_BATCH_CHARACTERS = 2**17  # many small documents make one task: a task each would cost more than encoding them
_PREFETCH_BATCHES = 4  # per thread


class TextChunk(NamedTuple):
    """A part of a document's text, cut by ``chunk_text``."""

    split: str
    begins_document: bool
    text: str
    document: str  # its name, for messages


def chunk_text(blocks: Iterable[str], pattern_family: str | None) -> Iterator[str]:
    """Cut a text, given in any blocks, into chunks whose concatenated ids are the ids of the whole.

    Chunks are longer where the text cannot be cut; if the tokenizer's pattern is unknown (None), the whole text is one.
    """
    pattern = _CUTS.get(pattern_family or "")
    pending: list[str] = []
    for block in blocks:
        for start in range(0, len(block), _CHUNK_CHARACTERS):
            part = block[start : start + _CHUNK_CHARACTERS]
            if cut := _last_cut(pattern, part) if pattern else 0:
                yield "".join([*pending, part[:cut]])
                pending = []
            pending.append(part[cut:])
    if rest := "".join(pending):
        yield rest


def _last_cut(pattern: re.Pattern[str], text: str) -> int:
    """Last position at which the text can be cut, 0 if there is none; searches the end first."""
    for start in (max(0, len(text) - 1000), 0):
        if cuts := [match.start() for match in pattern.finditer(text, start)]:
            return cuts[-1]
    return 0


def encode_chunks(
    chunks: Iterable[TextChunk], tokenizer: Tokenizer, end_of_text: bool, workers: int
) -> Iterator[EncodedBatch]:
    """Encode on ``workers`` threads (tiktoken releases the GIL), in order, prefetching a bounded number of batches."""
    futures: deque[Future[EncodedBatch]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for batch in _batches(chunks):
                futures.append(pool.submit(_encode_batch, batch, tokenizer, end_of_text))
                if len(futures) > _PREFETCH_BATCHES * workers:
                    yield futures.popleft().result()
            while futures:
                yield futures.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)


def _batches(chunks: Iterable[TextChunk]) -> Iterator[list[TextChunk]]:
    batch: list[TextChunk] = []
    characters = 0
    for chunk in chunks:
        batch.append(chunk)
        characters += len(chunk.text)
        if characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _encode_batch(batch: list[TextChunk], tokenizer: Tokenizer, end_of_text: bool) -> EncodedBatch:
    eot = np.array([tokenizer.eot_id], dtype=np.uint32)
    arrays: defaultdict[str, list[NDArray[np.uint32]]] = defaultdict(list)
    utf8_bytes = Counter[str]()
    for chunk in batch:
        try:
            ids = tokenizer.encode_array(chunk.text, end_of_text)
        except UserError as error:
            raise UserError(f"{chunk.document}: {error}") from None
        arrays[chunk.split] += [eot, ids] if chunk.begins_document else [ids]
        literals = chunk.text.count(END_OF_TEXT) if end_of_text else 0
        utf8_bytes[chunk.split] += utf8_length(chunk.text) - literals * len(END_OF_TEXT)
    return {split: (np.concatenate(parts), utf8_bytes[split]) for split, parts in arrays.items()}
