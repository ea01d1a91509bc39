"""scripts/watch_attention.py and gpt/attention_maps/watch.py."""

import shutil
from pathlib import Path

import pytest
import torch

from gpt.attention_maps.capture import attention_maps
from gpt.checkpoint import load_model
from gpt.generation.generate import Request, generate
from gpt.generation.sampling import Sampling
from scripts import convert, watch_attention
from tests.attention_events import read_captures, unpack_layer


def test_prompts_are_captured(tiny_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tiny_run), "--prompt", "two bottles", "wall", "--logdir", str(tmp_path), "--device", "cpu"]
    assert watch_attention.main(arguments) == 0
    assert "tiny-step30" in capfd.readouterr().err
    captures = read_captures(tmp_path / "tiny-step30")
    assert sorted(written[0].series["probe"] for written in captures.values()) == ["prompt", "prompt", "random"]
    model, tokenizer = load_model(tiny_run)
    maps = attention_maps(model, torch.tensor([[tokenizer.eot_id, *b"two bottles"]]))[:, 0]
    # The random sequence is that of training, so that the scores compare.
    (training,) = (tag for tag in read_captures(tiny_run) if "random" in tag)
    assert training in captures
    (written,) = (w for (w,) in captures.values() if w.series["labels"][1:4] == ["t", "w", "o"])
    assert written.step == 30
    assert abs(unpack_layer(written.layers[1], 2) - maps[1].numpy()).max() < 0.004


def test_generated_tokens_are_captured(tiny_run: Path, tmp_path: Path) -> None:
    arguments = [str(tiny_run / "last.ckpt"), "--prompt", "one", "--generate", "9", "--temperature", "0"]
    assert watch_attention.main([*arguments, "--logdir", str(tmp_path), "--device", "cpu"]) == 0
    captures = read_captures(tmp_path / "tiny-step30")
    (written,) = (w for (w,) in captures.values() if w.series["probe"] == "generated")
    model, tokenizer = load_model(tiny_run / "last.ckpt")
    (continuation,) = generate(model, tokenizer, [list(b"one")], Request(9, Sampling(temperature=0)), [0])
    assert written.series["generated_from"] == 4
    assert "".join(written.series["labels"][4:]).replace("·", " ") == continuation.text


def test_a_hugging_face_folder_is_captured(tiny_run: Path, tmp_path: Path) -> None:
    assert convert.main(["to-hf", str(tiny_run), str(tmp_path / "exported")]) == 0
    arguments = [str(tmp_path / "exported"), "--prompt", "wall", "--logdir", str(tmp_path / "logs")]
    assert watch_attention.main(arguments) == 0
    assert all(written.step == 0 for (written,) in read_captures(tmp_path / "logs" / "exported").values())


@pytest.mark.parametrize(
    "arguments,message",
    [
        (["--prompt", ""], "are empty"),
        (["--prompt", "x" * 32], "33 tokens"),
        (["--prompt", "x", "--generate", "31"], "33 tokens"),
        (["--prompt", "x", "--generate", "-1"], "--generate is -1"),
        (["--prompt", "x", "--generate", "1", "--temperature", "-1"], "temperature"),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(
    arguments: list[str], message: str, tiny_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert watch_attention.main([str(tiny_run), *arguments, "--logdir", str(tmp_path / "logs")]) == 2
    errors = capfd.readouterr().err.strip().splitlines()
    assert message in errors[-1]
    assert errors[-1].startswith("error: ")
    assert not (tmp_path / "logs").exists()


def test_without_training_data_the_random_sequence_is_of_the_whole_vocabulary(tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "alone")
    (tmp_path / "alone" / "config.yaml").unlink()
    assert watch_attention.main([str(tmp_path / "alone"), "--prompt", "wall", "--logdir", str(tmp_path / "logs")]) == 0
    captures = read_captures(tmp_path / "logs" / "alone-step30")
    assert [w.series["probe"] for (w,) in captures.values()].count("random") == 1
    assert captures.keys().isdisjoint(read_captures(tiny_run))


def test_a_missing_checkpoint_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert watch_attention.main([str(tmp_path / "nothing"), "--prompt", "x", "--logdir", str(tmp_path / "logs")]) == 2
    error = capfd.readouterr().err
    assert error.startswith("error: ")
    assert str(tmp_path / "nothing") in error
