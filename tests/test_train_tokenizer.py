import hashlib
import json
import os
import subprocess
import sys
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch

from gpt.checkpoint import load_model, load_tokenizer, read_checkpoint, write_model
from gpt.data import train_tokenizer as module
from gpt.data.documents import PrepareOptions
from gpt.data.manifest import verify
from gpt.data.prepare import prepare
from gpt.data.train_tokenizer import sample, train_tokenizer
from gpt.errors import UserError
from gpt.generation.generate import Request, generate
from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT
from gpt.tokenizer import END_OF_TEXT, Tokenizer
from gpt.tokenizer_json import parse_tokenizer, tokenizer_json
from scripts import prepare_data
from tests.runs import TrainTiny, is_one_line_error

SCRIPTS = {
    "Latin": "The quick brown fox doesn't jump; it's lazy. Crème brûlée, naïve façade, Übergröße!",
    "Greek": "Η γρήγορη αλεπού πηδάει πάνω από τον σκύλο.",
    "Cyrillic": "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "Hebrew": "דג סקרן שט בים מאוכזב ולפתע מצא חברה",
    "Arabic": "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر",
    "Devanagari": "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण",
    "Thai": "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "Chinese": "天地玄黄，宇宙洪荒。日月盈昃，辰宿列张。寒来暑往，秋收冬藏。",
    "Japanese": "いろはにほへと ちりぬるを。カタカナと漢字、それから数字１２３。",
    "Korean": "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.",
    "emoji": "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 ❤️ \U0001f1e8\U0001f1ed",
    "code": "def f(x, *, y=None):\n\treturn {'a': x ** 2}  # comment\n\n\nif __name__ == \"__main__\":\r\n    f(1)\n",
    "control": "\x00\x01\x1b[31m\x7f\u200b\ufeff\u2028 \x1c\x1f\x85",
}
TEXTS = [" ".join([text, *reversed(text.split())]) for text in SCRIPTS.values()]


@pytest.fixture(scope="module")
def trained() -> Tokenizer:
    return train_tokenizer(TEXTS * 3, 900)


def test_the_vocabulary_has_the_bytes_the_merges_and_end_of_text(trained: Tokenizer) -> None:
    assert trained.vocab_size == 900
    assert trained.eot_id == 899
    assert sorted(trained.ranks.values()) == list(range(899))
    assert {token for token, rank in trained.ranks.items() if rank < 256} == {bytes([byte]) for byte in range(256)}
    assert trained.decode([899]) == END_OF_TEXT
    text = SCRIPTS["Chinese"]
    assert len(trained.encode(text)) < len(text) < len(Tokenizer("gpt2").encode(text))


@pytest.mark.parametrize("script", SCRIPTS)
def test_ids_are_those_of_the_tokenizers_library(script: str, trained: Tokenizer) -> None:
    theirs = tokenizers.Tokenizer.from_str(json.dumps(tokenizer_json(trained)))
    text = SCRIPTS[script]
    cases = [
        text,
        text[1:-1],
        text.upper(),
        text * 3,
        *text.split(),
        "".join(chain(*zip(text, SCRIPTS["code"] * 9, strict=False))),
    ]
    for case in cases:
        ids = trained.encode(case)
        assert ids == theirs.encode(case).ids
        assert trained.decode(ids) == case


def test_merges_are_those_that_the_library_trained() -> None:
    """The trainer's own list, not the one that this project derives from the ranks."""
    trained = tokenizers.Tokenizer(tokenizers.models.BPE())
    trained.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=899, initial_alphabet=alphabet, min_frequency=2)
    trained.train_from_iterator(TEXTS * 3, trainer)
    merges = [" ".join(pair) for pair in json.loads(trained.to_str())["model"]["merges"]]
    assert tokenizer_json(train_tokenizer(TEXTS * 3, 900))["model"]["merges"] == merges


def _documents(folder: Path) -> list[str]:
    folder.mkdir()
    for number in range(30):
        (folder / f"{number}.txt").write_text(f"{number}: {TEXTS[number % len(TEXTS)]}\n" * (1 + number % 3))
    return [str(folder / "*.txt")]


PREPARE = """\
import sys
from pathlib import Path
from gpt.data.documents import PrepareOptions
from gpt.data.prepare import prepare
prepare([sys.argv[1]], Path(sys.argv[2]), options=PrepareOptions(train_tokenizer=700), workers=int(sys.argv[3]))
"""


def test_vocabulary_and_shards_do_not_depend_on_workers_or_process(tmp_path: Path) -> None:
    sources = _documents(tmp_path / "text")
    contents = []
    for number, (workers, threads) in enumerate([("1", "false"), ("3", "true"), ("2", "true")]):
        environment = os.environ | {"TOKENIZERS_PARALLELISM": threads, "PYTHONHASHSEED": str(number)}
        command = [sys.executable, "-c", PREPARE, sources[0], str(tmp_path / str(number)), workers]
        subprocess.run(command, env=environment, check=True)
        files = sorted((tmp_path / str(number)).iterdir())
        assert [file.name for file in files] == [
            "manifest.json", "tokenizer.json", "train_000000.bin", "val_000000.bin",
        ]  # fmt: skip
        contents.append([file.read_bytes() for file in files])
    assert contents[0] == contents[1] == contents[2]


def test_prepared_again_nothing_changes_and_another_size_is_refused(tmp_path: Path) -> None:
    sources = _documents(tmp_path / "text")
    options = PrepareOptions(train_tokenizer=700)
    manifest, written = prepare(sources, tmp_path / "data", options=options)
    assert (written, manifest.vocab_size) == (True, 700)
    assert prepare(sources, tmp_path / "data", options=options) == (manifest, False)
    for other in (PrepareOptions(train_tokenizer=701), PrepareOptions()):
        with pytest.raises(UserError, match="other sources or options"):
            prepare(sources, tmp_path / "data", options=other)
    (tmp_path / "data" / "tokenizer.json").unlink()
    assert prepare(sources, tmp_path / "data", options=options) == (manifest, True)  # repaired
    assert verify(tmp_path / "data") == manifest


def test_only_the_training_split_is_learned(tmp_path: Path) -> None:
    (tmp_path / "text").mkdir()
    for number in range(20):
        (tmp_path / "text" / f"{number}.txt").write_text(f"{chr(0x4E00 + number)}{chr(0x5E00 + number)} " * 50)
    manifest, _ = prepare([str(tmp_path / "text")], tmp_path / "data", options=PrepareOptions(0.3, train_tokenizer=290))
    tokens = b" ".join(manifest.open_tokenizer(tmp_path / "data").ranks).decode(errors="ignore")
    held_out = {n for n in range(20) if chr(0x4E00 + n) not in tokens and chr(0x5E00 + n) not in tokens}
    assert manifest.splits["val"].documents <= len(held_out) < 20


def test_a_text_that_is_too_small_is_one_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sources = _documents(tmp_path / "text")
    assert prepare_data.main([*sources, "--output", str(tmp_path / "data"), "--train-tokenizer", "50000"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error == "error: the training text is enough for 937 ids; --train-tokenizer is 50000"
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("size", [-1, 1, 257, 2**20 + 1])
def test_an_impossible_size_is_refused(size: int) -> None:
    with pytest.raises(UserError, match=f"train_tokenizer is {size}; expected"):
        PrepareOptions(train_tokenizer=size)


@pytest.mark.parametrize("choice", ["text", "token"])
def test_a_literal_end_of_text_that_is_the_token_is_not_learned(choice: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"one two {END_OF_TEXT} three {END_OF_TEXT} four " * 200)
    options = PrepareOptions(special_tokens=choice, train_tokenizer=270)
    manifest, _ = prepare([str(tmp_path / "a.txt")], tmp_path / "data", options=options)
    ranks = manifest.open_tokenizer(tmp_path / "data").ranks
    assert (b"endoftext" in ranks) == (choice == "text")


def test_the_sample_is_bounded_and_evenly_spaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_BYTES", 1000)
    texts = [f"{number:010}" for number in range(1000)]
    spaced = [int(text) for text in sample(texts, 10_000)]
    assert spaced == list(range(0, 1000, 10))
    assert [int(text) for text in sample(texts, float("inf"))] == list(range(100))
    assert list(sample(texts[:50], 500)) == texts[:50]


def test_streaming_learns_from_the_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAMPLE_BYTES", 2000)
    sources = _documents(tmp_path / "text")
    options = PrepareOptions(0.2, streaming=True, train_tokenizer=300)
    assert prepare(sources, tmp_path / "data", options=options)[0].vocab_size == 300
    assert verify(tmp_path / "data").splits["train"].documents > 10


def test_the_vocabulary_travels_with_data_checkpoint_and_export(
    tmp_path: Path, train_tiny: TrainTiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import AutoTokenizer

    from scripts import convert

    monkeypatch.chdir(tmp_path)
    sources = _documents(tmp_path / "text")
    prepare(sources, tmp_path / "data", options=PrepareOptions(train_tokenizer=600))
    assert train_tiny(tmp_path, "--data.path", str(tmp_path / "data")) == 0
    Path("alone.ckpt").write_bytes((tmp_path / "tiny" / "best.ckpt").read_bytes())
    assert convert.main(["to-hf", "alone.ckpt", "hf"]) == 0
    assert convert.main(["from-hf", "hf", "back"]) == 0
    origin = load_tokenizer("data")
    for source in ("data/tokenizer.json", "tiny", "alone.ckpt", "hf", "hf/tokenizer.json", "back"):
        assert load_tokenizer(source).sha256 == origin.sha256, source
    model, tokenizer = load_model("alone.ckpt")
    assert tokenizer.name == origin.name
    (text,) = generate(model, tokenizer, [tokenizer.encode("天地")], Request(8), [0])
    assert tokenizer.decode(text.token_ids).startswith(text.text)
    theirs = AutoTokenizer.from_pretrained("hf")
    for case in TEXTS:
        assert theirs(case)["input_ids"] == origin.encode(case)
    assert theirs.eos_token_id == origin.eot_id
    prepare(["text/*.txt"], Path("other"), load_tokenizer("tiny"))
    assert train_tiny(tmp_path, "--data.path", "other", "--init_from", "alone.ckpt", "--run_name", "fine") == 0


@pytest.mark.parametrize(
    "damage,words",
    [
        (lambda path: path.unlink(), "tokenizer.json is missing"),
        (lambda path: path.rename(path.with_name("vocabulary.json")), "tokenizer.json is missing"),
        (lambda path: path.write_text("{"), "is not the vocabulary"),
        (
            lambda path: path.write_bytes(path.read_bytes().replace(b'"a"', b'"b"')),
            "is not the vocabulary",
        ),
        (lambda path: path.write_text(json.dumps(tokenizer_json(Tokenizer("gpt2")))), "is not the vocabulary"),
        (
            lambda path: path.write_text(json.dumps(tokenizer_json(train_tokenizer(TEXTS, 600)))),
            "is not the vocabulary",
        ),
    ],
    ids=["missing", "renamed", "damaged", "altered", "gpt2", "another"],
)
def test_a_missing_or_altered_vocabulary_is_one_line(
    damage, words: str, tmp_path: Path, train_tiny: TrainTiny, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(_documents(tmp_path / "text"), tmp_path / "data", options=PrepareOptions(train_tokenizer=600))
    damage(tmp_path / "data" / "tokenizer.json")
    assert prepare_data.main(["--verify", str(tmp_path / "data")]) == 2
    assert is_one_line_error(capsys.readouterr().err, words)
    assert train_tiny(tmp_path, "--data.path", str(tmp_path / "data")) == 2
    assert is_one_line_error(capsys.readouterr().err, words)
    assert not (tmp_path / "tiny").exists()


def test_the_hash_covers_ids_and_special_tokens(trained: Tokenizer) -> None:
    content = tokenizer_json(trained)
    moved = {**content, "added_tokens": [{"content": END_OF_TEXT, "id": 1200}]}
    moved["model"] = {**content["model"], "vocab": {**content["model"]["vocab"], END_OF_TEXT: 1200}}
    hashes = {parse_tokenizer(changed).sha256 for changed in (content, moved)}
    assert len(hashes) == 2
    assert hashlib.sha256(b"").hexdigest() not in hashes


def test_token_files_of_a_vocabulary_of_your_own_are_imported(tmp_path: Path, trained: Tokenizer) -> None:
    (tmp_path / "files").mkdir()
    for split in ("train", "val"):
        ids = [trained.eot_id, *trained.encode(SCRIPTS["Thai"])]
        np.array(ids, dtype=np.uint16).tofile(tmp_path / "files" / f"{split}.bin")
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer_json(trained)))
    arguments = [str(tmp_path / "files"), "--tokenizer", str(tmp_path / "tokenizer.json")]
    assert prepare_data.main(arguments) == 0
    manifest = verify(tmp_path / "files")
    assert manifest.open_tokenizer(tmp_path / "files").sha256 == trained.sha256
    assert manifest.splits["val"].utf8_bytes == len(SCRIPTS["Thai"].encode())


@pytest.mark.parametrize("vocabulary", ["another", "no json", 3, "[" * 100_000], ids=["another", "text", "int", "deep"])
def test_an_altered_vocabulary_of_a_checkpoint_is_refused(
    vocabulary: object, tmp_path: Path, trained: Tokenizer, capsys: pytest.CaptureFixture[str]
) -> None:
    config = GPTConfig(trained.vocab_size, context_length=8, d_model=8, num_layers=1, num_heads=1)
    write_model(tmp_path / "best.ckpt", config, GPT(config).state_dict(), trained)
    content = read_checkpoint(tmp_path, whole=True)
    if vocabulary == "another":
        vocabulary = json.dumps(tokenizer_json(train_tokenizer(TEXTS, 700)))
    content["hyper_parameters"]["vocabulary"] = vocabulary
    torch.save(content, tmp_path / "best.ckpt")
    with pytest.raises(UserError, match="cannot be used"):
        load_model(tmp_path)
    assert prepare_data.main(["pydocs", "--output", str(tmp_path / "data"), "--tokenizer", str(tmp_path)]) == 2
    assert is_one_line_error(capsys.readouterr().err, "cannot be used")
    assert not (tmp_path / "data").exists()
