import base64
import hashlib
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import regex
import tiktoken

import gpt
from gpt.errors import UserError
from gpt.tokenizer import Tokenizer
from tests.prepared import toy_tokenizer

TRICKY = [
    "",
    " ",
    "Hello, world!",
    "naïve café \U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 ❤️",
    "深度学习 と 自然言語処理 한국어",
    "def f(x):\n\treturn {'a': x ** 2}  # comment\n\n\n",
    "\x00\x01\x1b[31m\x7f\u200b\ufeff",
    "<|endoftext|>",
    "1234567890 3.14159 don't WON'T",
    "\r\n\r\n  trailing   ",
    "a" * 1000,
]


def _bpe_by_definition(text: str) -> list[int]:
    """Byte-pair encoding by definition: split by GPT-2's pattern, then merge the lowest-ranked pairs."""
    lines = Path(gpt.__file__).with_name("gpt2.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    # From encoder.py of Radford et al.
    pattern = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
    ids = []
    for word in regex.findall(pattern, text):
        parts = [bytes([byte]) for byte in word.encode()]
        while len(parts) > 1:
            pairs = [(ranks.get(left + right, 10**9), i) for i, (left, right) in enumerate(itertools.pairwise(parts))]
            rank, i = min(pairs)
            if rank == 10**9:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        ids += [ranks[part] for part in parts]
    return ids


@pytest.mark.parametrize("text", TRICKY)
def test_gpt2_ids_follow_the_definition_and_decode_to_the_text(text: str) -> None:
    tokenizer = Tokenizer("gpt2")
    ids = tokenizer.encode(text)
    assert ids == _bpe_by_definition(text)
    assert tokenizer.encode_array(text).tolist() == ids
    assert tokenizer.decode(ids) == text


def test_gpt2_known_ids() -> None:
    # From the GPT-2 release and tiktoken's own README.
    tokenizer = Tokenizer("gpt2")
    assert (tokenizer.vocab_size, tokenizer.eot_id) == (50257, 50256)
    assert tokenizer.encode("hello world") == [31373, 995]
    assert tokenizer.decode([50256]) == "<|endoftext|>"


@pytest.mark.parametrize("text", TRICKY)
def test_ids_of_bytes_are_the_utf8_bytes(text: str) -> None:
    tokenizer = Tokenizer("bytes")
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def test_end_of_text_of_bytes_is_256() -> None:
    tokenizer = Tokenizer("bytes")
    assert (tokenizer.vocab_size, tokenizer.eot_id) == (257, 256)
    assert tokenizer.decode_bytes([0xF0, 0x9F]) == b"\xf0\x9f"
    assert tokenizer.decode([0xF0, 0x9F]) == "\ufffd"


def test_sha256_is_the_hash_of_the_ranks_file() -> None:
    content = Path(gpt.__file__).with_name("gpt2.tiktoken").read_bytes()
    assert Tokenizer("gpt2").sha256 == hashlib.sha256(content).hexdigest()
    assert Tokenizer("bytes").sha256 != Tokenizer("gpt2").sha256


def test_damaged_ranks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "gpt2.tiktoken"
    damaged.write_bytes(b"IQ== 0\n")
    monkeypatch.setattr("gpt.tokenizer._GPT2_RANKS", damaged)
    with pytest.raises(UserError, match="damaged"):
        Tokenizer("gpt2")


def test_an_unknown_name_raises_with_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"'gtp2'.*gpt2, bytes, cl100k_base"):
        Tokenizer("gtp2")


def test_other_names_are_loaded_by_tiktoken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def offline(name: str) -> tiktoken.Encoding:
        asked.append(name)
        raise ConnectionError

    monkeypatch.setattr(tiktoken, "get_encoding", offline)
    with pytest.raises(UserError, match=r"cl100k_base.*download"):
        Tokenizer("cl100k_base")
    assert asked == ["cl100k_base"]


@pytest.mark.network
def test_cl100k_base_is_loaded_by_tiktoken() -> None:
    tokenizer = Tokenizer("cl100k_base")
    assert tokenizer.vocab_size == 100277
    assert tokenizer.encode("tiktoken is great!") == [83, 1609, 5963, 374, 2294, 0]


def test_an_unused_id_decodes_to_the_replacement_character(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {bytes([value]): value for value in range(256)}
    gaps = tiktoken.Encoding("gaps", pat_str="(?s:.)", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 300})
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["gaps"])
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: gaps)
    tokenizer = Tokenizer("gaps")
    assert tokenizer.vocab_size == 301
    assert tokenizer.decode([97, 299, 98]) == "a\ufffdb"


@pytest.mark.parametrize("ids", [[50257], [-1], [10**12]])
def test_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    with pytest.raises(UserError, match="outside"):
        Tokenizer("gpt2").decode(ids)


def test_importing_the_tokenizer_does_not_import_torch() -> None:
    code = "import sys, gpt.tokenizer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("name", ["gpt2", "cl100k_base", "o200k_base"])
def test_whitespace_that_overflows_the_regex_engine_is_encoded(name: str) -> None:
    tokenizer = toy_tokenizer(name, " \n\tab")
    for run in (" ", "\t", "\n", "\n ", " \n") if name == "gpt2" else (" ", "\t", "\n"):
        text = "a" + run * 1_200_000 + "b b"
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        short = "a" + run * 1_000 + "b b"
        # The first and last words are those of a short run.
        assert ids[:3] == tokenizer.encode(short)[:3]
        assert ids[-3:] == tokenizer.encode(short)[-3:]


def test_a_run_that_still_overflows_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.tokenizer._LONG_RUN", 10**9)
    with pytest.raises(UserError, match="run of whitespace is too long for tokenizer 'gpt2'"):
        Tokenizer("gpt2").encode("a" + " " * 1_200_000 + "b")


def test_half_a_surrogate_pair_raises() -> None:
    with pytest.raises(UserError, match=r"'\\udce9' in the text is not a character"):
        Tokenizer("gpt2").encode("x\udce9y")
