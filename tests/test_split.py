import hashlib
import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.data.documents import Document, PrepareOptions
from gpt.data.prepare import prepare
from gpt.data.split import SplitPlan, measure_corpus, plan_split, split_key
from tests.prepared import texts_of


def _documents(texts: list[str]) -> list[Document]:
    return [Document(f"document {number}", lambda text=text: iter((text,))) for number, text in enumerate(texts)]


def _key(text: str, seed: int = 0) -> int:
    """Split key by definition: eight bytes of the text's hash, or of the hash of the seed and the text's hash."""
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes((hashlib.sha256(seed.to_bytes(8, "big") + digest).digest() if seed else digest)[:8], "big")


def _split(texts: list[str], val_fraction: float, seed: int = 0) -> dict[str, list[str]]:
    """Texts of each split, by the plan for these documents."""
    documents = _documents(texts)
    stats = measure_corpus(documents, seed)
    plan = plan_split(stats, val_fraction)
    splits: dict[str, list[str]] = {"train": [], "val": []}
    for document, key, size in zip(documents, stats.keys, stats.sizes, strict=True):
        for split, text in plan.assign(key, size, document):  # one block per split
            splits[split].append(text)
    return splits


def test_validation_takes_documents_in_hash_order_until_the_fraction_is_reached() -> None:
    # Twenty documents of 100 bytes: 30% are the six with the lowest keys.
    texts = [f"{number:03}" + "x" * 97 for number in range(20)]
    assert sorted(_split(texts, 0.3)["val"]) == sorted(sorted(texts, key=_key)[:6])
    assert sorted(_split(texts, 0.3, seed=7)["val"]) == sorted(sorted(texts, key=lambda text: _key(text, 7))[:6])
    assert split_key(hashlib.sha256(b"abc").digest(), 7) == _key("abc", 7)


@pytest.mark.parametrize("seed", range(8))
def test_a_document_larger_than_the_rest_is_divided(seed: int) -> None:
    novel = "".join(f"line {number} of a long novel\n" for number in range(2000))
    texts = [novel, *(f"note {seed} {number} " * 5 for number in range(3))]
    splits = _split(texts, 0.1)
    val_bytes, total = sum(map(len, splits["val"])), sum(map(len, texts))
    assert val_bytes == pytest.approx(0.1 * total, rel=0.05)
    assert max(splits["train"], key=len) + max(splits["val"], key=len) == novel


@given(
    texts=st.lists(st.text("ab\n é漢", max_size=30), min_size=1, max_size=12),
    val_fraction=st.floats(0.01, 0.99),
    seed=st.integers(0, 2**63 - 1),
)
def test_splits_are_not_empty_and_together_have_all_text(texts: list[str], val_fraction: float, seed: int) -> None:
    present = [text for text in texts if text]
    try:
        splits = _split(texts, val_fraction, seed)
    except ValueError:
        # Only if a single text, or copies of one, is too short for a character in each split.
        size = max((len(text.encode()) for text in present), default=0)
        assert len(set(present)) <= 1 or size * min(val_fraction, 0.5) < 4
        return
    train, val = ["".join(splits[name]) for name in ("train", "val")]
    assert train
    assert val
    assert sorted(train + val) == sorted("".join(texts))
    # The same documents in another order: the same split.
    other = _split(texts[::-1], val_fraction, seed)
    assert {name: sorted(parts) for name, parts in other.items()} == {n: sorted(parts) for n, parts in splits.items()}


def test_the_val_fraction_is_at_most_twofold_off() -> None:
    generator = np.random.default_rng(0)
    for seed in range(200):
        texts = [chr(97 + n % 26) * int(size) + str(n) for n, size in enumerate(generator.lognormal(3, 2, size=30) + 1)]
        splits = _split(texts, 0.1, seed)
        share = sum(map(len, splits["val"])) / sum(map(len, texts))
        assert 0.05 <= share <= 0.2


def test_equal_documents_are_in_the_same_split() -> None:
    texts = [f"document {number} " * 3 for number in range(10)] * 3
    splits = _split(texts, 0.3)
    assert not set(splits["train"]) & set(splits["val"])
    assert len(splits["val"]) % 3 == 0


@pytest.mark.parametrize("seed", [0, 1, 7])
@pytest.mark.parametrize(
    "texts,val_whole,train",
    [
        (["equal row"] * 500 + [f"row {n:05}" for n in range(500)], 100, 900),
        (["equal row"] * 300 + ["a row too"] * 300 + [f"row {n:05}" for n in range(400)], 100, 900),
        (["equal row"] * 120 + [f"row {n:05}" for n in range(880)], 100, 900),
        ([text for n in range(200) for text in [f"row {n:05}"] * 5], 100, 900),
    ],
)
def test_equal_documents_count_as_one(texts: list[str], val_whole: int, train: int, seed: int) -> None:
    splits = _split(texts, 0.1, seed)
    assert (len(splits["val"]), len(splits["train"])) == (val_whole, train)
    assert not set(splits["train"]) & set(splits["val"])


@pytest.mark.parametrize("other", ["another row of text", "x"])
def test_equal_documents_larger_than_the_rest_are_cut_at_the_same_place(
    other: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        splits = _split(["an equal row of text"] * 1000 + [other], 0.1)
    assert splits["train"] == ["an equal row of te"] * 1000
    assert splits["val"] == ["xt"] * 1000 + [other]
    (record,) = caplog.records
    assert record.message.startswith("validation has 1 of 2 distinct documents and the end of the largest: equal ones")


@pytest.mark.parametrize("num_notes,in_val", [(1, 1), (3, 1), (20, 2), (90, 9)])
def test_validation_takes_its_fraction_of_the_documents_beside_a_large_one(num_notes: int, in_val: int) -> None:
    notes = [f"note {n:03}\n" * 10 for n in range(num_notes)]
    novel = "".join(f"line {n}\n" for n in range(9000))
    splits = _split([*notes, novel], 0.1)
    assert len(set(splits["val"]) & set(notes)) == in_val
    assert sum(map(len, splits["val"])) == pytest.approx(0.1 * sum(map(len, [*notes, novel])), rel=0.02)


def test_the_hash_decides_which_of_equally_long_documents_is_divided() -> None:
    texts = ["a" * 3000, "b" * 3000]
    assert sorted(_split(texts, 0.1)["val"]) == sorted(_split(texts[::-1], 0.1)["val"])


@pytest.mark.parametrize("fraction", [0.1, 0.102, 0.104, 0.11, 0.5])
def test_a_document_is_never_divided_inside_an_end_of_text(fraction: float) -> None:
    splits = _split(["ab<|endoftext|>" * 300], fraction)
    assert sum(part.count("<|endoftext|>") for parts in splits.values() for part in parts) == 300


def test_a_single_document_is_divided_at_a_line_start() -> None:
    text = "".join(f"line {number} é\n" for number in range(1000))
    splits = _split([text], 0.1)
    (train,), (val,) = splits["train"], splits["val"]
    assert train + val == text
    assert val.startswith("line ")
    assert len(val.encode()) == pytest.approx(0.1 * len(text.encode()), abs=20)


def test_a_single_line_is_divided_between_characters() -> None:
    text = "\U0001f600" * 100
    splits = _split([text], 0.33)
    (train,), (val,) = splits["train"], splits["val"]
    assert (train + val, len(val)) == (text, 33)


def test_a_streaming_split_depends_on_the_key_alone() -> None:
    plan = SplitPlan(val_below=2**62)
    (document,) = _documents(["text"])
    splits = [next(plan.assign(key, 10**12, document))[0] for key in (0, 2**62 - 1, 2**62, 2**64 - 1)]
    assert splits == ["val", "val", "train", "train"]


def test_streaming_validates_on_the_documents_below_the_threshold(tmp_path: Path) -> None:
    texts = [f"document number {number}" for number in range(200)]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    sources = [str(tmp_path / f"{number}.txt") for number in range(200)]
    prepare(sources, tmp_path / "data", "bytes", PrepareOptions(0.2, streaming=True))
    assert sorted(texts_of(tmp_path / "data", "val")) == sorted(t for t in texts if _key(t) < 0.2 * 2**64)
    assert len(texts_of(tmp_path / "data", "train") + texts_of(tmp_path / "data", "val")) == 200
