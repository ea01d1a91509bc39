import base64
import hashlib
import importlib
import itertools
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import regex
import tiktoken

import gpt
from gpt.tokenizer import Tokenizer

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


def _bpe_by_hand(text: str) -> list[int]:
    """Byte-pair encoding from its definition: split by GPT-2's pattern, then merge the lowest-ranked pair, etc."""
    lines = Path(gpt.__file__).with_name("gpt2.tiktoken").read_bytes().splitlines()
    ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in lines)}
    # Radford et al.'s encoder.py has this pattern.
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
def test_gpt2_gives_the_ids_of_the_definition_and_gives_the_text_back(text: str) -> None:
    tokenizer = Tokenizer("gpt2")
    ids = tokenizer.encode(text)
    assert ids == _bpe_by_hand(text)
    assert tokenizer.encode_array(text).tolist() == ids
    assert tokenizer.decode(ids) == text


def test_gpt2_known_ids() -> None:
    # From the GPT-2 release and tiktoken's own README.
    tokenizer = Tokenizer("gpt2")
    assert (tokenizer.vocab_size, tokenizer.eot_id) == (50257, 50256)
    assert tokenizer.encode("hello world") == [31373, 995]
    assert tokenizer.decode([50256]) == "<|endoftext|>"


@pytest.mark.parametrize("text", TRICKY)
def test_bytes_are_the_utf8_bytes(text: str) -> None:
    tokenizer = Tokenizer("bytes")
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text


def test_bytes_has_end_of_text_after_the_256() -> None:
    tokenizer = Tokenizer("bytes")
    assert (tokenizer.vocab_size, tokenizer.eot_id) == (257, 256)
    assert tokenizer.decode_bytes([0xF0, 0x9F]) == b"\xf0\x9f"
    assert tokenizer.decode([0xF0, 0x9F]) == "\ufffd"


def test_the_hash_is_that_of_the_ranks_file() -> None:
    content = Path(gpt.__file__).with_name("gpt2.tiktoken").read_bytes()
    assert Tokenizer("gpt2").sha256 == hashlib.sha256(content).hexdigest()
    assert Tokenizer("bytes").sha256 != Tokenizer("gpt2").sha256


def test_damaged_ranks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged = tmp_path / "gpt2.tiktoken"
    damaged.write_bytes(b"IQ== 0\n")
    monkeypatch.setattr("gpt.tokenizer._GPT2_RANKS", damaged)
    with pytest.raises(ValueError, match="damaged"):
        Tokenizer("gpt2")


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'gtp2'.*gpt2, bytes, cl100k_base"):
        Tokenizer("gtp2")


def test_any_tiktoken_name_is_asked_of_tiktoken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def offline(name: str) -> tiktoken.Encoding:
        asked.append(name)
        raise ConnectionError

    monkeypatch.setattr(tiktoken, "get_encoding", offline)
    with pytest.raises(ValueError, match=r"cl100k_base.*download"):
        Tokenizer("cl100k_base")
    assert asked == ["cl100k_base"]


@pytest.mark.network
def test_cl100k_base_is_had_from_tiktoken() -> None:
    tokenizer = Tokenizer("cl100k_base")
    assert tokenizer.vocab_size == 100277
    assert tokenizer.encode("tiktoken is great!") == [83, 1609, 5963, 374, 2294, 0]


def test_an_id_that_stands_for_nothing_is_a_replacement_character(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {bytes([value]): value for value in range(256)}
    gaps = tiktoken.Encoding("gaps", pat_str="(?s:.)", mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 300})
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["gaps"])
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: gaps)
    tokenizer = Tokenizer("gaps")
    assert tokenizer.vocab_size == 301
    assert tokenizer.decode([97, 299, 98]) == "a\ufffdb"


@pytest.mark.parametrize("ids", [[50257], [-1], [10**12]])
def test_ids_outside_the_vocabulary_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="outside"):
        Tokenizer("gpt2").decode(ids)


def test_importing_it_needs_no_torch() -> None:
    code = "import sys, gpt.tokenizer; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def _toy(name: str, alphabet: str) -> Tokenizer:
    """A tokenizer with the pattern of a tiktoken name, and merges learnt from nonsense: ranks need no download."""
    openai = importlib.import_module("tiktoken_ext.openai_public")
    generator = random.Random(0)
    sequence = [bytes([byte]) for byte in "".join(generator.choice(alphabet) for _ in range(10_000)).encode()]
    ranks = {bytes([value]): value for value in range(256)}
    while len(ranks) < 450:
        pairs = Counter(itertools.pairwise(sequence))
        merged = next(a + b for (a, b), _ in pairs.most_common() if a + b not in ranks)
        ranks[merged] = len(ranks)
        out: list[bytes] = []
        for part in sequence:
            out[-1:] = [out[-1] + part] if out and out[-1] + part == merged else [*out[-1:], part]
        sequence = out
    with pytest.MonkeyPatch.context() as patch:
        for loader in ("load_tiktoken_bpe", "data_gym_to_mergeable_bpe_ranks"):
            patch.setattr(openai, loader, lambda *arguments, **options: ranks)
        pattern = openai.ENCODING_CONSTRUCTORS[name]()["pat_str"]
        encoding = tiktoken.Encoding(
            name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 999}
        )
        patch.setattr(tiktoken, "get_encoding", lambda name: encoding)
        patch.setattr("gpt.tokenizer._gpt2_encoding", lambda: encoding)
        return Tokenizer(name)


@pytest.mark.parametrize("name", ["gpt2", "r50k_base", "p50k_base", "p50k_edit", "cl100k_base", "o200k_base"])
def test_pieces_have_the_ids_of_the_whole_for_every_known_pattern(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alphabet = " \n\r\t\x1c\x85\u00a0\u2028abZ12.,!'s/²é\u0301漢，_\U0001f600"
    tokenizer, generator = _toy(name, alphabet), random.Random(1)
    monkeypatch.setattr("gpt.tokenizer._PIECE", 7)
    number_of_pieces = 0
    for _ in range(5000):
        text = "".join(generator.choice(alphabet) for _ in range(generator.randint(1, 30)))
        if generator.random() < 0.3:
            text = text.replace("a", " ").replace("b", "\n").replace(".", " ")
        cut = generator.randint(0, len(text))
        pieces = list(tokenizer.pieces([text[:cut], text[cut:]]))
        assert "".join(pieces) == text
        assert [token for piece in pieces for token in tokenizer.encode(piece)] == tokenizer.encode(text)
        number_of_pieces += len(pieces)
    assert number_of_pieces > 7500


@pytest.mark.parametrize("name", ["gpt2", "cl100k_base", "o200k_base"])
def test_whitespace_that_overflows_the_regex_engine_has_its_definitions_ids(name: str) -> None:
    tokenizer = _toy(name, " \n\tab")
    for run in (" ", "\t", "\n", "\n ", " \n") if name == "gpt2" else (" ", "\t", "\n"):
        text = "a" + run * 1_200_000 + "b b"
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        short = "a" + run * 1_000 + "b b"
        # The same words: the ends of the run are where they are in a short one.
        assert ids[:3] == tokenizer.encode(short)[:3]
        assert ids[-3:] == tokenizer.encode(short)[-3:]


def test_a_tokenizer_of_unknown_pattern_is_given_the_whole_text() -> None:
    tokenizer = Tokenizer("gpt2")
    tokenizer.name = "unheard_of"
    assert list(tokenizer.pieces(["a b " * 100_000, "c d"])) == ["a b " * 100_000 + "c d"]


def test_a_run_that_still_overflows_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpt.tokenizer._LONG_RUN", 10**9)
    with pytest.raises(ValueError, match="run of whitespace is too long for tokenizer 'gpt2'"):
        Tokenizer("gpt2").encode("a" + " " * 1_200_000 + "b")


def test_text_without_spaces_is_cut_too() -> None:
    generator = random.Random(0)
    base64_text = base64.b64encode(generator.randbytes(600_000)).decode()
    chinese = "，".join("深度学习" * 5 for _ in range(30_000))
    for text in (base64_text, chinese):
        pieces = list(Tokenizer("gpt2").pieces([text]))
        assert max(map(len, pieces)) < 2**17 + 1000
        assert [i for piece in pieces for i in Tokenizer("gpt2").encode(piece)] == Tokenizer("gpt2").encode(text)
    assert max(map(len, Tokenizer("bytes").pieces(["ACGT" * 250_000]))) <= 2**17
    literal = "<|endoftext|>" * 50_000
    pieces = list(Tokenizer("bytes").pieces([literal[:7], literal[7:]]))
    assert sum(piece.count("<|endoftext|>") for piece in pieces) == 50_000


def test_half_a_character_is_named() -> None:
    with pytest.raises(ValueError, match=r"'\\udce9' in the text is no character"):
        Tokenizer("gpt2").encode("x\udce9y")
