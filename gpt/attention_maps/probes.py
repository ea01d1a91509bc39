"""Probes, the token sequences whose attention is captured: a text, and a repeated random sequence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpt.tokenizer import Tokenizer

MAX_PROBE_TOKENS = 256  # maps grow with the square: those of GPT-2 small take 2.2 MB at 64 tokens, 36 MB at 256
CONTINUED = "⋯"  # the rest of a character that an earlier token began
_MAX_REPEATED = 32
_VISIBLE = {" ": "·", "\n": "⏎", "\t": "⇥", "\r": "␍"}


@dataclass(frozen=True)
class Probe:
    """A token sequence to capture."""

    name: str  # its kind, such as "text"
    token_ids: tuple[int, ...]  # at least two, end-of-text first
    labels: tuple[str, ...]  # a printable label per token; white space and parts of a character are made visible
    characters: tuple[str, ...]  # per token, the whole characters of which it holds a part, usually ""
    is_repeated_random: bool = False  # whether it is from repeated_random_probe; induction is defined on it alone
    generated_from: int | None = None  # index of the first generated token, if there is one


def text_probe(tokenizer: Tokenizer, token_ids: Sequence[int], name: str, generated_from: int | None = None) -> Probe:
    """Label the tokens of a text, of which the first is end-of-text."""
    labels, characters = token_labels([tokenizer.decode_bytes([token]) for token in token_ids[1:]])
    return Probe(name, tuple(token_ids), ("<start>", *labels), ("", *characters), generated_from=generated_from)


def repeated_random_probe(tokenizer: Tokenizer, counts: NDArray[Any], context_length: int) -> Probe | None:
    """Build [end-of-text, r1 .. rP, r1 .. rP]: only the earlier copy of a token predicts the next one.

    The distinct r are sampled in proportion to ``counts``, (V,), the frequency of each id in the training data, so that
    the model has seen them all. P is as large as ``context_length`` allows, at most 32. Returns None if fewer than two
    ids occur or fit.

    Source: Olsson et al. 2022, "Prefix matching".
    """
    weights = np.array(counts, dtype=np.float64)
    weights[tokenizer.eot_id] = 0
    P = min(_MAX_REPEATED, (context_length - 1) // 2, int(np.count_nonzero(weights)))
    if P < 2:
        return None
    # The seed is fixed, so that the scores of different runs compare.
    sampled = np.random.default_rng(0).choice(len(weights), size=P, replace=False, p=weights / weights.sum()).tolist()
    probe = text_probe(tokenizer, [tokenizer.eot_id, *sampled, *sampled], "random")
    return replace(probe, characters=("",) * len(probe.labels), is_repeated_random=True)


def token_labels(tokens: Sequence[bytes]) -> tuple[list[str], list[str]]:
    """Return ``Probe.labels``, such as ``·cat``, and ``Probe.characters`` of consecutive tokens.

    A character of several tokens is in the label of the first; the labels of the others begin with ``⋯``.
    """
    text = b"".join(tokens).decode(errors="surrogateescape")  # an invalid byte becomes a lone surrogate
    # The index in the text of each byte's character.
    indices = [i for i, character in enumerate(text) for _ in character.encode(errors="surrogateescape")]
    labels, characters, start = [], [], 0
    for token in tokens:
        end = start + len(token)
        own, before = sorted({*indices[start:end]}), {*indices[:start]}
        labels.append("".join(CONTINUED if i in before else _visible(text[i]) for i in own))
        characters.append("".join(text[i] for i in own if i in before or i in indices[end:]))
        start = end
    return labels, characters


def token_label(tokenizer: Tokenizer) -> Callable[[int], str]:
    """A function from a token id to the label of that token alone."""
    return cache(lambda token: token_labels([tokenizer.decode_bytes([token])])[0][0])


def _visible(character: str) -> str:
    if "\udc80" <= character <= "\udcff":  # a byte that surrogateescape could not decode
        return f"‹{ord(character) - 0xDC00:02X}›"
    return _VISIBLE.get(character, character if character.isprintable() else f"U+{ord(character):04X}")
