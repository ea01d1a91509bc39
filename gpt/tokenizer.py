"""Text to token ids and back, over tiktoken: GPT-2's BPE (shipped, works offline), raw bytes, or any tiktoken name."""

import base64
import codecs
import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import tiktoken
from numpy.typing import NDArray

from gpt.errors import UserError

END_OF_TEXT = "<|endoftext|>"

_GPT2_RANKS = Path(__file__).with_name("gpt2.tiktoken")
# The hash that tiktoken itself pins for r50k_base, whose ranks are GPT-2's.
_GPT2_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"

# Where text can be cut so that its parts have the ids of the whole, by the pattern that splits it into words: only
# where no word can reach across. Whitespace is Unicode's: Python's \s has U+001C to U+001F too, which are no space
# to the patterns. GPT-2's words have whitespace nowhere but at their start; from cl100k on, punctuation takes the
# line ends that follow it. tests/test_tokenizer.py tries this on each pattern.
_SPACE, _NO_SPACE = r"[^\S\x1c-\x1f]", r"[\S\x1c-\x1f]"
# Text without spaces (base64, minified JSON, Chinese) is cut between letters, digits and punctuation; not at an
# apostrophe, which may begin a contraction, and only at characters that every version of Unicode puts in one class.
_CLASSES = r"(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]|(?<=[A-Za-z0-9])[!-&(-/:;=?@\[-`{}~]|(?<=[一-龥])[，。、！？：；]"
_GPT2_CUT = re.compile(rf"(?<={_NO_SPACE}){_SPACE}|{_CLASSES}")
_LATER_CUT = re.compile(rf"(?<=[^\W_]){_SPACE}|(?<={_NO_SPACE}) |{_CLASSES}")
_BYTES_CUT = re.compile(r"(?s)(?<=.)[^<|endoftxt>]")  # anywhere, but not inside a literal end of text
_CUTS = {
    "bytes": _BYTES_CUT,
    **dict.fromkeys(("gpt2", "r50k_base", "p50k_base", "p50k_edit"), _GPT2_CUT),
    **dict.fromkeys(("cl100k_base", "o200k_base", "o200k_harmony"), _LATER_CUT),
}
# A long run of whitespace overflows the regex engine's stack. Without its last character, which begins the next word
# or stands alone, it is one word; but from cl100k on, line ends in it make several.
_LONG_RUN = 100_000
_GPT2_RUN = re.compile(rf"{_SPACE}+")
_LATER_RUN = re.compile(rf"(?:(?![\r\n]){_SPACE})+")
_PIECE = 2**17  # characters; long ones take longer per character


class Tokenizer:
    """A tiktoken encoding whose only special token in use is the end of text.

    End-of-text *begins* each document (as in llm.c and build-nanogpt), so it is also what an
    unconditional generation starts from.

    Args:
        name: ``"gpt2"`` (50,257 ids), ``"bytes"`` (256 byte values + end of text = 257 ids), or a name
            known to ``tiktoken.get_encoding``, which downloads its ranks on first use.

    Raises:
        ValueError: the name is unknown, its ranks cannot be had, or it has no end-of-text token.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._encoding = _load_encoding(name)
        if END_OF_TEXT not in self._encoding.special_tokens_set:
            raise UserError(f"tokenizer {name!r} has no {END_OF_TEXT} token; use gpt2, bytes or cl100k_base")

    @property
    def vocab_size(self) -> int:
        """Number of ids, end of text included: valid ids are ``0 <= id < vocab_size``."""
        return self._encoding.n_vocab

    @property
    def eot_id(self) -> int:
        """Id of the end-of-text token."""
        return self._encoding.encode_single_token(END_OF_TEXT)

    @cached_property
    def sha256(self) -> str:
        """Hash of the ranks in tiktoken's file format, so equal vocabularies have equal hashes."""
        if self.name == "gpt2":
            return _GPT2_SHA256  # checked when it was loaded
        return hashlib.sha256(_ranks_as_file(self.ranks)).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Encode text as ordinary characters: a literal ``<|endoftext|>`` in it is just 13 characters."""
        return self.encode_array(text).tolist()

    def encode_array(self, text: str, end_of_text: bool = False) -> NDArray[np.uint32]:
        """The same ids as ``encode``, as (n,) uint32: a quarter of the time and a ninth of the memory of a list.

        Args:
            end_of_text: whether a literal ``<|endoftext|>`` in it is the end-of-text token.
        """
        allowed = {END_OF_TEXT} if end_of_text else set()
        try:
            ids = self._encoding.encode_to_numpy(text, allowed_special=allowed, disallowed_special=())
        except UnicodeEncodeError as error:
            raise UserError(
                f"{text[error.start]!r} in the text is no character, but half of one or a byte that is not UTF-8"
            ) from None
        except ValueError:  # the regex engine's stack overflowed
            ids = self._encode_around_runs(text, end_of_text)
        return ids.astype(np.uint32, copy=False)

    def _encode_around_runs(self, text: str, end_of_text: bool) -> NDArray[np.uint32]:
        run = _LATER_RUN if _CUTS.get(self.name) is _LATER_CUT else _GPT2_RUN
        ids: list[NDArray[np.uint32]] = []
        done = 0
        for match in run.finditer(text):
            start, end = match.span()
            if end - start < _LONG_RUN or text[end : end + 1] in ("\r", "\n"):
                continue
            if end < len(text):
                end -= 1
            if start > done:
                ids.append(self.encode_array(text[done:start], end_of_text))
            ids.append(np.array(self._encoding._encode_single_piece(text[start:end]), dtype=np.uint32))
            done = end
        if not ids:
            raise UserError(f"a run of whitespace is too long for tokenizer {self.name!r}; shorten it")
        if done < len(text):
            ids.append(self.encode_array(text[done:], end_of_text))
        return np.concatenate(ids)

    def pieces(self, chunks: Iterable[str]) -> Iterator[str]:
        """Cut a text anew, such that the ids of the pieces, one after the other, are the ids of the whole.

        Args:
            chunks: the text, cut anywhere.

        Yields:
            Pieces of a size that is fast to encode; longer ones where there is nowhere to cut, and the whole text
            for a tokenizer whose pattern is unknown.
        """
        cut_at = _CUTS.get(self.name)
        pending: list[str] = []
        for chunk in chunks:
            for start in range(0, len(chunk), _PIECE):
                part = chunk[start : start + _PIECE]
                if cut := _last_cut(cut_at, part) if cut_at else 0:
                    yield "".join([*pending, part[:cut]])
                    pending = []
                pending.append(part[cut:])
        if rest := "".join(pending):
            yield rest

    def decode(self, ids: list[int]) -> str:
        """Decode ids to text; bytes that are not UTF-8 become U+FFFD.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: list[int]) -> bytes:
        """Decode ids to the exact bytes they stand for.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        if outside := [token for token in ids if not 0 <= token < self.vocab_size]:
            raise UserError(f"id {outside[0]} is outside tokenizer {self.name!r}, which has {self.vocab_size} ids")
        try:
            return self._encoding.decode_bytes(ids)
        except KeyError:  # some vocabularies have gaps: ids below vocab_size that stand for nothing
            return b"".join(map(self._decode_one, ids))

    def utf8_lengths(self) -> NDArray[np.int64]:
        """How many bytes of text each id stands for, the end of text for none: (vocab_size,)."""
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        for token, rank in self.ranks.items():
            lengths[rank] = len(token)
        return lengths

    @property
    def ranks(self) -> dict[bytes, int]:
        """Bytes and id of every token but the special ones; the pair with the lowest id is merged first."""
        return self._encoding._mergeable_ranks

    def merges(self) -> list[tuple[bytes, bytes]]:
        """The pair that each token of several bytes is made of, in the order of ids."""
        pairs = []
        for token, rank in sorted(self.ranks.items(), key=lambda item: item[1]):
            if len(token) > 1:
                parts = [bytes([byte]) for byte in token]
                while len(parts) > 2:
                    merged = [self.ranks.get(left + right, rank) for left, right in pairwise(parts)]
                    first = merged.index(min(merged))
                    parts[first : first + 2] = [parts[first] + parts[first + 1]]
                pairs.append((parts[0], parts[1]))
        return pairs

    def _decode_one(self, token: int) -> bytes:
        try:
            return self._encoding.decode_single_token_bytes(token)
        except KeyError:
            return "\ufffd".encode()


class StreamDecoder:
    """Turns ids into text as they come: a character appears once all of its bytes are there.

    What has come out in the end is ``Tokenizer.decode`` of all ids.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that an id makes certain; empty in the middle of a character."""
        return self._decoder.decode(self._tokenizer.decode_bytes([token]))

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a character that never became whole, or nothing."""
        return self._decoder.decode(b"", final=True)


def _last_cut(cut_at: re.Pattern[str], text: str) -> int:
    """Last position, not the first, at which the pattern allows a cut; 0 if there is none."""
    for start in (max(0, len(text) - 1000), 0):
        if cuts := [match.start() for match in cut_at.finditer(text, start)]:
            return cuts[-1]
    return 0


def _load_encoding(name: str) -> tiktoken.Encoding:
    if name == "bytes":
        ranks = {bytes([value]): value for value in range(256)}
        return tiktoken.Encoding("bytes", pat_str="(?s:.)", mergeable_ranks=ranks, special_tokens={END_OF_TEXT: 256})
    if name == "gpt2":
        return _gpt2_encoding()
    if name not in tiktoken.list_encoding_names():
        known = ", ".join(["gpt2", "bytes", *sorted(set(tiktoken.list_encoding_names()) - {"gpt2"})])
        raise UserError(f"unknown tokenizer {name!r}; known are {known}")
    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:  # requests' exceptions are OSErrors; a wrong hash is a ValueError
        raise UserError(
            f"tokenizer {name!r} needs a download that failed ({type(error).__name__}); gpt2 and bytes work offline"
        ) from error


def _gpt2_encoding() -> tiktoken.Encoding:
    # tiktoken keeps its patterns in this plug-in module; get_encoding("gpt2") itself would ask the network.
    from tiktoken_ext.openai_public import r50k_pat_str

    content = _GPT2_RANKS.read_bytes()
    if hashlib.sha256(content).hexdigest() != _GPT2_SHA256:
        raise UserError(f"{_GPT2_RANKS} is damaged (its SHA-256 is not OpenAI's); reinstall mini-gpt")
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, content.splitlines())}
    return tiktoken.Encoding(
        "gpt2", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens={END_OF_TEXT: len(ranks)}
    )


def _ranks_as_file(ranks: dict[bytes, int]) -> bytes:
    lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in sorted(ranks.items(), key=lambda kv: kv[1]))
    return b"".join(lines)
