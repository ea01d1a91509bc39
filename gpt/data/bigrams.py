"""The embedded source ``bigrams``: texts in which an induction head forms within minutes."""

import random
import string
from collections.abc import Iterator

_CHARACTERS = string.ascii_letters + string.digits + "+/"  # 64


def bigram_texts() -> Iterator[str]:
    """Generate 3,000 texts of 512 characters that only an induction head predicts; always the same ones.

    Each text has 16 of 64 characters and its own successor of each, a random permutation. The next character is the
    successor with probability 0.85, else any of the 16. So a bigram holds in one text alone, and repeats at random
    distances; at fixed distances, attention by position would be enough.

    Source: Bietti et al. 2023, "Birth of a Transformer", section 3; Edelman et al. 2024, "Statistical Induction Heads".
    """
    rng = random.Random(0)
    for _ in range(3_000):
        characters = rng.sample(_CHARACTERS, 16)
        successors = dict(zip(characters, rng.sample(characters, 16), strict=True))
        text = [rng.choice(characters)]
        while len(text) < 512:
            text.append(successors[text[-1]] if rng.random() < 0.85 else rng.choice(characters))
        yield "".join(text)
