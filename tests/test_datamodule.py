from pathlib import Path

import pytest

from gpt.data.prepare import prepare
from gpt.model.config import GPTConfig
from gpt.training.config import DataConfig, RunConfig
from gpt.training.datamodule import TokenDataModule

CHINESE = "学而时习之，不亦说乎？有朋自远方来，不亦乐乎？人不知而不愠，不亦君子乎？\n"


def _data(folder: Path, tokenizer: str, *documents: str) -> TokenDataModule:
    for number, text in enumerate(documents):
        (folder / f"{number}.txt").write_text(text)
    prepare([str(folder / "*.txt")], folder / "data", tokenizer)
    model = GPTConfig(context_length=16, d_model=16, num_layers=1, num_heads=1)
    return TokenDataModule(RunConfig(model=model, data=DataConfig(str(folder / "data"), 4, 4)))


@pytest.mark.parametrize("tokenizer", ["bytes", "gpt2"])
def test_the_opening_is_the_beginning_of_a_validation_text_in_whole_characters(tokenizer: str, tmp_path: Path) -> None:
    data = _data(tmp_path, tokenizer, CHINESE * 300)
    val = data.tokenizer.decode(data.val_windows.tokens.read(0, len(data.val_windows.tokens)).tolist())
    assert len(data.opening) >= 15  # 48 bytes, or 48 of GPT-2's tokens
    assert "\ufffd" not in data.opening
    assert val.removeprefix("<|endoftext|>").startswith(data.opening)
    assert data.prompt
    assert data.prompt in data.opening


def test_the_opening_is_of_the_first_document_that_is_long_enough(tmp_path: Path) -> None:
    texts = [f"{number}: ok" for number in range(60)]
    texts += [f"{number}: a document with more than forty-eight bytes of text" for number in range(60)]
    data = _data(tmp_path, "bytes", *texts)
    assert len(data.opening) == 48
    assert data.opening in [text[:48] for text in texts[60:]]
    assert data.prompt in [f"{number}: a document with" for number in range(10)] + [
        f"{number}: a document with" for number in range(10, 60)
    ]


def test_the_prompt_is_printable_words_of_one_line(tmp_path: Path) -> None:
    data = _data(tmp_path, "bytes", "\n \n\x1b[1mBold\x07 words, and a few more of them\n" * 100)
    assert data.opening.isprintable() is False
    assert data.prompt.isprintable()
    assert len(data.prompt) <= 24


@pytest.mark.parametrize(
    "text,prompt",
    [
        ("   \t indented\u00a0words\tand more of them here\n", "indented words and more"),
        ("👩\u200d👩\u200d👧 a family\n", "👩"),
        ("---\ntitle: x\n", "---"),
        (" \u00a0\u2003\n", ""),
    ],
)
def test_the_prompt_is_a_text_of_the_data(text: str, prompt: str, tmp_path: Path) -> None:
    assert _data(tmp_path, "bytes", text * 300).prompt == prompt
