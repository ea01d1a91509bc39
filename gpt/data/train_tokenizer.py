"""Train a byte-level BPE vocabulary on text, with Hugging Face's ``tokenizers``."""

import json
from collections.abc import Iterable, Iterator

from gpt.errors import UserError
from gpt.tokenizer import END_OF_TEXT, Tokenizer
from gpt.tokenizer_json import parse_tokenizer

SAMPLE_BYTES = 25_000_000  # of the training split: Chinese words, which rarely repeat, take 70 bytes of memory per byte


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Train a vocabulary: 256 bytes, end-of-text as the last id, and merges in between.

    The same texts give the same vocabulary, whatever the number of threads.

    Source: Sennrich et al. 2016, section 3.2; bytes and pattern as in Radford et al. 2019, section 2.2.
    """
    from tokenizers import Tokenizer as Trained
    from tokenizers import models, pre_tokenizers, trainers

    trained = Trained(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - 1,
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    trained.train_from_iterator(texts, trainer)
    if (size := trained.get_vocab_size()) < vocab_size - 1:
        raise UserError(f"the training text is enough for {size + 1} ids; train_tokenizer is {vocab_size}")
    end_of_text = {"content": END_OF_TEXT, "id": size}
    return parse_tokenizer({**json.loads(trained.to_str()), "added_tokens": [end_of_text]})


def sample(texts: Iterable[str], total_bytes: float) -> Iterator[str]:
    """Evenly spaced ones of the texts, ``SAMPLE_BYTES`` in all; of an unknown total (infinity), the first ones."""
    fraction = min(1.0, SAMPLE_BYTES / total_bytes) if total_bytes < float("inf") else 1.0
    seen = taken = 0
    for text in texts:
        seen += len(text.encode())
        if taken < seen * fraction:
            taken += len(text.encode())
            yield text
        if taken >= SAMPLE_BYTES:
            return
