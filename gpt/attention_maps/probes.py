"""The texts whose attention is watched: the user's own, and random tokens that come twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.tokenizer import Tokenizer

MAX_PROBE_TOKENS = 256  # maps grow with the square: GPT-2 small's 144 are 2.2 MB at 64 tokens, 36 MB at 256
_MAX_REPEATED = 32
_VISIBLE = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}


@dataclass(frozen=True)
class Probe:
    """A text to watch.

    Args:
        name: what kind it is, such as ``text``.
        token_ids: at least two, the end of text first.
        labels: one per token, readable: white space made visible, parts of a character as their bytes.
        characters: for a token that is part of a character, the whole of it; "" for any other.
        repeats: whether it is [end of text, r1 .. rP, r1 .. rP], on which induction is defined.
        generated_from: index of the first token that the model wrote itself, if it did.
    """

    name: str
    token_ids: tuple[int, ...]
    labels: tuple[str, ...]
    characters: tuple[str, ...]
    repeats: bool = False
    generated_from: int | None = None


def text_probe(tokenizer: Tokenizer, token_ids: Sequence[int], name: str, generated_from: int | None = None) -> Probe:
    """A probe of tokens, which begin with the end of text.

    Args:
        token_ids: two or more.
        generated_from: index of the first token that the model wrote.
    """
    labels, characters = token_labels([tokenizer.decode_bytes([token]) for token in token_ids[1:]])
    return Probe(
        name=name,
        token_ids=tuple(token_ids),
        labels=("<start>", *labels),
        characters=("", *characters),
        generated_from=generated_from,
    )


def repeated_random_probe(tokenizer: Tokenizer, weights: NDArray[Any], context_length: int) -> Probe | None:
    """[end of text, r1 .. rP, r1 .. rP]: what follows a token is known only to who looks up its first copy.

    Args:
        weights: (V,), how often each id occurs; the distinct r are drawn in proportion, so that none is drawn that
            the model has never seen.
        context_length: P is at most (context_length - 1) // 2, and 32.

    Returns:
        The probe; None where fewer than two ids occur or fit.

    Source: Olsson et al. 2022, "Prefix matching".
    """
    weights = np.array(weights, dtype=np.float64)
    weights[tokenizer.eot_id] = 0
    P = min(_MAX_REPEATED, (context_length - 1) // 2, int(np.count_nonzero(weights)))
    if P < 2:
        return None
    drawn = np.random.default_rng(0).choice(  # always the same, so that runs compare
        len(weights), size=P, replace=False, p=weights / weights.sum()
    )
    once = [int(token) for token in drawn]
    probe = text_probe(tokenizer, [tokenizer.eot_id, *once, *once], "random")
    return Probe("random", probe.token_ids, probe.labels, ("",) * len(probe.labels), repeats=True)


def token_labels(tokens: Sequence[bytes]) -> tuple[list[str], list[str]]:
    """Labels that can be read, and whole characters where a token is only part of one.

    Args:
        tokens: consecutive ones of a text.

    Returns:
        For each token its label, such as ``·cat`` or ``·‹F0›‹9F›``, and the characters of which it has only a part,
        or "".
    """
    # Each byte that belongs to no character becomes a lone surrogate, which stands for one byte again.
    text = b"".join(tokens).decode("utf-8", errors="surrogateescape")
    whole: list[tuple[int, int, str]] = []  # where each character of several bytes begins and ends
    position = 0
    for character in text:
        length = 1 if _is_stray(character) else len(character.encode())
        if length > 1:
            whole.append((position, position + length, character))
        position += length
    labels, characters, start = [], [], 0
    for token in tokens:
        end = start + len(token)
        labels.append("".join(_visible(character) for character in token.decode("utf-8", errors="surrogateescape")))
        cut = (c for first, last, c in whole if first < end and start < last and not (start <= first and last <= end))
        characters.append("".join(cut))
        start = end
    return labels, characters


def _is_stray(character: str) -> bool:
    return "\udc80" <= character <= "\udcff"


def _visible(character: str) -> str:
    if _is_stray(character):
        return f"‹{ord(character) - 0xDC00:02X}›"
    return _VISIBLE.get(character, character if character.isprintable() else f"U+{ord(character):04X}")
