import base64
import random

import pytest

from gpt.data.encoding import chunk_text
from gpt.tokenizer import Tokenizer
from tests.prepared import toy_tokenizer


@pytest.mark.parametrize("name", ["gpt2", "r50k_base", "p50k_base", "p50k_edit", "cl100k_base", "o200k_base"])
def test_chunks_have_the_ids_of_the_whole_for_every_known_pattern(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alphabet = " \n\r\t\x1c\x85\u00a0\u2028abZ12.,!'s/²é\u0301漢，_\U0001f600"
    tokenizer, generator = toy_tokenizer(name, alphabet), random.Random(1)
    monkeypatch.setattr("gpt.data.encoding._CHUNK_CHARACTERS", 7)
    num_chunks = 0
    for _ in range(5000):
        text = "".join(generator.choice(alphabet) for _ in range(generator.randint(1, 30)))
        if generator.random() < 0.3:
            text = text.replace("a", " ").replace("b", "\n").replace(".", " ")
        cut = generator.randint(0, len(text))
        chunks = list(chunk_text([text[:cut], text[cut:]], tokenizer.pattern_family))
        assert "".join(chunks) == text
        assert [token for chunk in chunks for token in tokenizer.encode(chunk)] == tokenizer.encode(text)
        num_chunks += len(chunks)
    assert num_chunks > 7500


def test_text_is_not_cut_if_the_tokenizers_pattern_is_unknown() -> None:
    tokenizer = Tokenizer("gpt2")
    tokenizer.pattern_family = None
    assert list(chunk_text(["a b " * 100_000, "c d"], tokenizer.pattern_family)) == ["a b " * 100_000 + "c d"]


def test_text_without_spaces_is_cut() -> None:
    generator = random.Random(0)
    base64_text = base64.b64encode(generator.randbytes(600_000)).decode()
    chinese = "，".join("深度学习" * 5 for _ in range(30_000))
    for text in (base64_text, chinese):
        chunks = list(chunk_text([text], "gpt2"))
        assert max(map(len, chunks)) < 2**17 + 1000
        assert [i for chunk in chunks for i in Tokenizer("gpt2").encode(chunk)] == Tokenizer("gpt2").encode(text)
    assert max(map(len, chunk_text(["ACGT" * 250_000], "bytes"))) <= 2**17
    literal = "<|endoftext|>" * 50_000
    chunks = list(chunk_text([literal[:7], literal[7:]], "bytes"))
    assert sum(chunk.count("<|endoftext|>") for chunk in chunks) == 50_000
