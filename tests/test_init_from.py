import json
import shutil
from pathlib import Path

import pytest
import torch

from gpt.checkpoint import load_model, read_checkpoint, write_model
from gpt.huggingface import write_pretrained
from tests.runs import TrainTiny, same_weights, scalars


@pytest.mark.parametrize("kind", ["run folder", "hugging face"])
def test_a_run_starts_from_the_weights_of_init_from(
    kind: str, tiny_run: Path, train_tiny: TrainTiny, tmp_path: Path
) -> None:
    source = tiny_run
    if kind == "hugging face":
        model, tokenizer = load_model(tiny_run)
        source = tmp_path / "hf"
        write_pretrained(source, model.config, model.state_dict(), tokenizer)
    flags = ("--init_from", str(source), "--trainer.max_steps", "3", "--model.dropout", "0.0")
    assert train_tiny(tmp_path / "fine", *flags) == 0
    assert train_tiny(tmp_path / "fresh", "--trainer.max_steps", "3") == 0
    fine, fresh = (scalars(tmp_path / name / "tiny", "loss/train_nats") for name in ("fine", "fresh"))
    assert fine[1] < fresh[1] - 0.5
    # A shorter context keeps the embeddings of the first positions.
    assert train_tiny(tmp_path / "short", *flags, "--model.context_length", "16", "--optim.learning_rate", "1e-9",
                      "--optim.min_learning_rate", "0", "--optim.weight_decay", "0") == 0  # fmt: skip
    short = read_checkpoint(tmp_path / "short" / "tiny")["state_dict"]
    whole = read_checkpoint(tiny_run)["state_dict"]
    key = "model.transformer.position_embedding.weight"
    torch.testing.assert_close(short[key], whole[key][:16], rtol=1e-5, atol=1e-6)


def test_a_resumed_run_does_not_read_init_from_again(tiny_run: Path, train_tiny: TrainTiny, tmp_path: Path) -> None:
    shutil.copytree(tiny_run, tmp_path / "source")
    flags = ("--init_from", str(tmp_path / "source"), "--optim.schedule", "constant")
    assert train_tiny(tmp_path / "whole", *flags, "--trainer.max_steps", "8") == 0
    assert train_tiny(tmp_path / "parts", *flags, "--trainer.max_steps", "4") == 0
    shutil.rmtree(tmp_path / "source")
    assert train_tiny(tmp_path / "parts", "--resume", "--trainer.max_steps", "8") == 0
    assert same_weights(tmp_path / "whole" / "tiny", tmp_path / "parts" / "tiny")


def test_the_shape_comes_from_the_weights(tiny_run: Path, tiny_data: Path, tmp_path: Path) -> None:
    from scripts import train

    config = tmp_path / "fine.yaml"
    config.write_text(
        "model: {dropout: 0.0}\ndata: {global_batch_size: 2, micro_batch_size: 2}\noptim: {warmup_steps: 1}\n"
        "trainer: {max_steps: 2, accelerator: cpu}"
    )
    flags = ["--config", str(config), "--data.path", str(tiny_data), "--checkpoints_dir", str(tmp_path / "runs")]
    shutil.copytree(tiny_run, tmp_path / "source")
    assert train.main([*flags, "--init_from", str(tmp_path / "source")]) == 0
    model, _ = load_model(tmp_path / "runs" / "fine")
    assert (model.config.d_model, model.config.num_layers, model.config.num_heads) == (32, 2, 2)
    assert (model.config.context_length, model.config.dropout) == (32, 0.0)
    shutil.rmtree(tmp_path / "source")  # a resume does not need it
    assert train.main([*flags, "--resume", "--trainer.max_steps", "3"]) == 0


@pytest.mark.parametrize(
    "flags,words",
    [
        (["--model.d_model", "64"], "another shape than this run; give --model.d_model 32"),
        (["--model.num_layers", "1", "--model.num_heads", "4"], "give --model.num_layers 2 --model.num_heads 2"),
        (["--model.context_length", "64"], "give --model.context_length 32"),
        (["--model.qkv_bias", "false"], "give --model.qkv_bias true"),
        (["--init_from", "nowhere.ckpt"], "there is no checkpoint nowhere.ckpt"),
    ],
)
def test_weights_of_another_shape_are_refused_with_the_flags_to_give(
    flags: list[str], words: str, tiny_run: Path, train_tiny: TrainTiny, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert train_tiny(tmp_path, "--init_from", str(tiny_run), *flags) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_weights_of_another_tokenizer_are_refused(
    train_tiny: TrainTiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpt.model.config import GPTConfig
    from gpt.model.transformer import GPT
    from gpt.tokenizer import Tokenizer

    config = GPTConfig(50257, context_length=32, d_model=32, num_layers=2, num_heads=2)
    write_model(tmp_path / "other.ckpt", config, GPT(config).state_dict(), Tokenizer("gpt2"))
    assert train_tiny(tmp_path / "runs", "--init_from", str(tmp_path / "other.ckpt")) == 2
    message = "has tokenizer 'gpt2' and the data 'bytes'; prepare the data with --tokenizer gpt2"
    assert message in capsys.readouterr().err


def test_the_saved_config_contains_init_from(tiny_run: Path, train_tiny: TrainTiny, tmp_path: Path) -> None:
    assert train_tiny(tmp_path, "--init_from", str(tiny_run), "--trainer.max_steps", "2") == 0
    assert json.dumps(str(tiny_run))[1:-1] in (tmp_path / "tiny" / "config.yaml").read_text()
