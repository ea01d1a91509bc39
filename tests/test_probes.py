import numpy as np
import pytest

from gpt.attention_maps.probes import repeated_random_probe, text_probe, token_labels
from gpt.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer("bytes")


@pytest.mark.parametrize(
    "token,label",
    [
        (b" the", "·the"),
        (b"\n\n", "⏎⏎"),
        (b"\t", "⇥"),
        (b"\r", "␍"),
        ("é".encode(), "é"),
        ("深".encode(), "深"),
        (b"\xf0\x9f", "‹F0›‹9F›"),
        (b" \xf0\x9f", "·‹F0›‹9F›"),
        (b"\xd7\x99\xd7", "י‹D7›"),
        (b"\x00", "U+0000"),
        ("\u202e".encode(), "U+202E"),  # reverses the direction of the following text
        (b"<script>", "<script>"),
        (b"", ""),
    ],
)
def test_labels_are_printable(token: bytes, label: str) -> None:
    assert token_labels([token])[0] == [label]


def test_a_part_of_a_character_has_the_whole_character() -> None:
    smile, text = "🙂".encode(), "é".encode()
    labels, characters = token_labels([b"a", b" " + smile[:2], smile[2:] + text[:1], text[1:] + text, b"\xff", b" b"])
    assert labels == ["a", "·🙂", "⋯é", "⋯é", "‹FF›", "·b"]
    assert characters == ["", "🙂", "🙂é", "é", "", ""]


def test_gpt2_tokens_that_split_a_character() -> None:
    gpt2 = Tokenizer("gpt2")
    ids = [gpt2.eot_id, *gpt2.encode("a 🙃")]
    probe = text_probe(gpt2, ids, "text")
    assert probe.labels[:2] == ("<start>", "a")
    assert probe.labels[2] in ("·🙃", "·")
    assert sum("🙃" in label for label in probe.labels) == 1
    assert probe.labels[-1] == "⋯"
    assert set(probe.characters) == {"", "🙃"}
    assert len(probe.labels) == len(probe.characters) == len(probe.token_ids) == len(ids)


@pytest.mark.parametrize("context_length,expected", [(1024, 32), (65, 32), (64, 31), (9, 4), (5, 2)])
def test_the_random_sequence_is_repeated(context_length: int, expected: int, tokenizer: Tokenizer) -> None:
    probe = repeated_random_probe(tokenizer, np.ones(257), context_length)
    assert probe is not None
    P = len(probe.token_ids) // 2
    assert expected == P
    assert probe.token_ids[0] == tokenizer.eot_id
    assert probe.token_ids[1 : P + 1] == probe.token_ids[P + 1 :]
    assert len(set(probe.token_ids)) == P + 1  # distinct, without end-of-text
    assert probe.is_repeated_random
    assert probe == repeated_random_probe(tokenizer, np.ones(257), context_length)


def test_random_tokens_are_sampled_from_ids_that_occur(tokenizer: Tokenizer) -> None:
    counts = np.zeros(257)
    counts[[3, 5, 7, 256]] = [1, 10, 100, 1000]
    probe = repeated_random_probe(tokenizer, counts, 128)
    assert probe is not None
    assert sorted(probe.token_ids[1:4]) == [3, 5, 7]


@pytest.mark.parametrize("context_length,ids", [(4, range(200)), (1, range(200)), (128, [5]), (128, [])])
def test_there_is_no_probe_with_fewer_than_two_ids(context_length: int, ids: list[int], tokenizer: Tokenizer) -> None:
    counts = np.zeros(257)
    counts[list(ids)] = 1
    assert repeated_random_probe(tokenizer, counts, context_length) is None
