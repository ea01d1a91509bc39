"""Text to token ids and back with tiktoken: GPT-2's BPE, bytes, any tiktoken encoding, or a vocabulary of your own."""

import base64
import codecs
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import numpy as np
import tiktoken
from numpy.typing import NDArray

from gpt.errors import UserError

END_OF_TEXT = "<|endoftext|>"
WHITESPACE = r"[^\S\x1c-\x1f]"  # Unicode's, as in tiktoken's patterns; Python's \s also matches U+001C to U+001F

OWN_NAME = re.compile(r"bpe\d+-[0-9a-f]{8}")  # of a vocabulary of your own: its size and the beginning of its hash

_GPT2_RANKS = Path(__file__).with_name("gpt2.tiktoken")
# The hash that tiktoken pins for r50k_base, which has GPT-2's ranks.
_GPT2_SHA256 = "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"

_PATTERN_FAMILIES = {
    "bytes": "bytes",
    **dict.fromkeys(("gpt2", "r50k_base", "p50k_base", "p50k_edit"), "gpt2"),
    **dict.fromkeys(("cl100k_base", "o200k_base", "o200k_harmony"), "cl100k"),
}
# A very long run of whitespace overflows the regex engine's stack. Without its last character, which belongs to the
# next word, such a run is one word; from cl100k on, only if it has no line ends.
_LONG_RUN = 100_000  # characters
_GPT2_RUN = re.compile(rf"{WHITESPACE}+")
_CL100K_RUN = re.compile(rf"(?:(?![\r\n]){WHITESPACE})+")


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE vocabulary that splits text by GPT-2's pattern; ``gpt.tokenizer_json`` reads and writes it."""

    ranks: Mapping[bytes, int]  # of all 256 bytes and of every merge, as ``Tokenizer.ranks``
    special_tokens: Mapping[str, int]  # end-of-text first; the others are in no text


class Tokenizer:
    """A tiktoken encoding whose only special token is end-of-text.

    ``name`` is ``"gpt2"`` (50,257 ids), ``"bytes"`` (256 byte values and end-of-text), or one that
    ``tiktoken.get_encoding`` downloads on first use; or a vocabulary is given, which names itself. End-of-text *begins*
    each document (as in llm.c and build-nanogpt), so unconditional generation starts from it.
    """

    def __init__(self, name: str | Vocabulary) -> None:
        self.vocabulary = name if isinstance(name, Vocabulary) else None  # None: the name says all
        self._encoding = _own_encoding(name) if isinstance(name, Vocabulary) else _load_encoding(name)
        if END_OF_TEXT not in self._encoding.special_tokens_set:
            raise UserError(f"tokenizer {name!r} has no {END_OF_TEXT} token; use gpt2, bytes or cl100k_base")
        self.eot_id = self._encoding.encode_single_token(END_OF_TEXT)
        special = self.vocabulary.special_tokens if self.vocabulary else {}
        self._special_tokens = {number: token.encode() for token, number in special.items()}
        self.vocab_size = max(self._encoding.max_token_value, *special.values(), 0) + 1  # end-of-text included
        self.name = f"bpe{self.vocab_size}-{self.sha256[:8]}" if isinstance(name, Vocabulary) else name
        # Of the regex that splits text into words; None: unknown.
        self.pattern_family = "gpt2" if self.vocabulary else _PATTERN_FAMILIES.get(self.name)

    @cached_property
    def ranks(self) -> dict[bytes, int]:
        """Token bytes to id, in rising order, without special tokens; BPE merges the pair with the lowest id first."""
        return dict(sorted(self._encoding._mergeable_ranks.items(), key=itemgetter(1)))

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the ranks in tiktoken's file format, and of a vocabulary's special tokens."""
        lines = (base64.b64encode(token) + b" %d\n" % rank for token, rank in self.ranks.items())
        special = repr(dict(self.vocabulary.special_tokens)).encode() if self.vocabulary else b""
        return hashlib.sha256(b"".join(lines) + special).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Encode text; a literal ``<|endoftext|>`` in it is ordinary text."""
        return self.encode_array(text).tolist()

    def encode_array(self, text: str, end_of_text: bool = False) -> NDArray[np.uint32]:
        """Encode text to (n,) uint32, in a quarter of the time and a ninth of the memory of a list.

        ``end_of_text`` says whether a literal ``<|endoftext|>`` in the text is the end-of-text token.
        """
        allowed = {END_OF_TEXT} if end_of_text else set()
        try:
            ids = self._encoding.encode_to_numpy(text, allowed_special=allowed, disallowed_special=())
        except UnicodeEncodeError as error:
            raise UserError(f"{text[error.start]!r} in the text is not a character; expected valid Unicode") from None
        except ValueError:  # the regex engine's stack overflowed
            ids = self._encode_long_run(text, end_of_text)
        return ids.astype(np.uint32, copy=False)

    def _encode_long_run(self, text: str, end_of_text: bool) -> NDArray[np.uint32]:
        """Encode the first long run of whitespace as the one word that it is, without the regex."""
        for match in (_CL100K_RUN if self.pattern_family == "cl100k" else _GPT2_RUN).finditer(text):
            start, end = match.start(), match.end() - (match.end() < len(text))
            if end - start >= _LONG_RUN and text[match.end() : match.end() + 1] not in ("\r", "\n"):
                word = np.array(self._encoding._encode_single_piece(text[start:end]), dtype=np.uint32)
                before, after = (self.encode_array(part, end_of_text) for part in (text[:start], text[end:]))
                return np.concatenate([before, word, after])
        raise UserError(f"a run of whitespace is too long for tokenizer {self.name!r}; shorten it")

    def decode(self, ids: list[int]) -> str:
        """Decode ids to text; invalid UTF-8 becomes U+FFFD."""
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def decode_bytes(self, ids: list[int]) -> bytes:
        """Decode ids to bytes."""
        return b"".join(map(self._decode_one, ids))

    def _decode_one(self, token: int) -> bytes:
        if not 0 <= token < self.vocab_size:
            raise UserError(f"id {token} is outside tokenizer {self.name!r}, which has {self.vocab_size} ids")
        if token in self._special_tokens:
            return self._special_tokens[token]
        try:
            return self._encoding.decode_single_token_bytes(token)
        except KeyError:  # some vocabularies have unused ids
            return "\ufffd".encode()

    def utf8_lengths(self) -> NDArray[np.int64]:
        """Number of text bytes of each id, 0 for end-of-text: (vocab_size,)."""
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        lengths[list(self.ranks.values())] = list(map(len, self.ranks))
        return lengths

    def merges(self) -> list[tuple[bytes, bytes]]:
        """BPE merges in rank order: the two tokens that each token of several bytes is merged from."""
        pairs = []
        for token, rank in self.ranks.items():
            if len(token) > 1:
                parts = [bytes([byte]) for byte in token]
                while len(parts) > 2:
                    merged = [self.ranks.get(left + right, rank) for left, right in pairwise(parts)]
                    first = merged.index(min(merged))
                    parts[first : first + 2] = [parts[first] + parts[first + 1]]
                pairs.append((parts[0], parts[1]))
        return pairs


class StreamDecoder:
    """Decodes ids one at a time, holding back the bytes of an incomplete character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """Decode one more id; empty in the middle of a character."""
        return self._decoder.decode(self._tokenizer.decode_bytes([token]))

    def finish(self) -> str:
        """Return the rest: U+FFFD for an incomplete character, else nothing."""
        return self._decoder.decode(b"", final=True)


def is_tokenizer_name(name: str) -> bool:
    """Whether a name alone says which tokenizer it is."""
    return name in ("bytes", "gpt2", *tiktoken.list_encoding_names())


def _load_encoding(name: str) -> tiktoken.Encoding:
    if name == "bytes":
        ranks = {bytes([value]): value for value in range(256)}
        return tiktoken.Encoding("bytes", pat_str="(?s:.)", mergeable_ranks=ranks, special_tokens={END_OF_TEXT: 256})
    if name == "gpt2":
        return _gpt2_encoding()
    if OWN_NAME.fullmatch(name):
        raise UserError(f"the vocabulary of tokenizer {name!r} is missing; give a folder or tokenizer.json that has it")
    if not is_tokenizer_name(name):
        known = ", ".join(["gpt2", "bytes", *sorted(set(tiktoken.list_encoding_names()) - {"gpt2"})])
        raise UserError(f"unknown tokenizer {name!r}; expected one of {known}")
    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:  # the exceptions of requests are OSErrors; a wrong hash is a ValueError
        raise UserError(
            f"tokenizer {name!r} could not be downloaded ({type(error).__name__}); gpt2 and bytes work offline"
        ) from error


def _gpt2_encoding() -> tiktoken.Encoding:  # tiktoken.get_encoding("gpt2") would use the network
    content = _GPT2_RANKS.read_bytes()
    if hashlib.sha256(content).hexdigest() != _GPT2_SHA256:
        raise UserError(f"{_GPT2_RANKS} is damaged (its SHA-256 is not OpenAI's); reinstall mini-gpt")
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, content.splitlines())}
    return _own_encoding(Vocabulary(ranks, {END_OF_TEXT: len(ranks)}))


def _own_encoding(vocabulary: Vocabulary) -> tiktoken.Encoding:
    from tiktoken_ext.openai_public import r50k_pat_str

    end_of_text = {END_OF_TEXT: next(iter(vocabulary.special_tokens.values()))}
    ranks = dict(vocabulary.ranks)
    return tiktoken.Encoding("bpe", pat_str=r50k_pat_str, mergeable_ranks=ranks, special_tokens=end_of_text)
