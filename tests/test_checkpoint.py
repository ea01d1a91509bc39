import pickle
import shutil
from pathlib import Path

import pytest
import torch

from gpt.checkpoint import find_checkpoint, load_model, read_checkpoint
from gpt.errors import UserError
from gpt.model.transformer import GPT
from tests.runs import HostilePickle, same_tensors

EMPTY = {"format_version": 2, "state_dict": {}}


def test_the_checkpoint_of_a_run_folder_is_best_ckpt_else_last_ckpt(tiny_run: Path, tmp_path: Path) -> None:
    assert find_checkpoint(tiny_run) == tiny_run / "best.ckpt"
    shutil.copy(tiny_run / "last.ckpt", tmp_path)
    assert find_checkpoint(tmp_path) == tmp_path / "last.ckpt"
    assert find_checkpoint(str(tiny_run / "last.ckpt")) == tiny_run / "last.ckpt"


def test_a_checkpoint_is_a_lightning_checkpoint_with_plain_values(tiny_run: Path) -> None:
    content = read_checkpoint(tiny_run / "last.ckpt")
    assert content["format_version"] == 2
    assert content["global_step"] == 30
    assert all(key.startswith("model.transformer.") for key in content["state_dict"])
    assert content["hyper_parameters"] == {
        "model": {
            "vocab_size": 257,
            "context_length": 32,
            "d_model": 32,
            "num_layers": 2,
            "num_heads": 2,
            "dropout": 0.1,
            "qkv_bias": True,
        },
        "tokenizer": "bytes",
        "document_mask": False,
    }
    provenance = content["provenance"]
    assert provenance["torch"] == str(torch.__version__)
    assert len(provenance["manifest_sha256"]) == 64
    assert provenance["git_revision"] is None or len(provenance["git_revision"]) >= 40


def test_a_loaded_model_has_the_weights_of_the_file_and_is_in_eval_mode(tiny_run: Path) -> None:
    model, tokenizer = load_model(tiny_run)
    assert isinstance(model, GPT)
    assert not model.training
    assert tokenizer.name == "bytes"
    weights = torch.load(tiny_run / "best.ckpt", weights_only=True)["state_dict"]
    assert same_tensors({f"model.{name}": tensor for name, tensor in model.state_dict().items()}, weights)
    assert model(torch.tensor([[256, 1, 2]])).shape == (1, 3, 257)


def test_code_in_a_pickle_is_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "touched"
    torch.save({"format_version": 2, "state_dict": HostilePickle(target)}, tmp_path / "evil.ckpt")
    (tmp_path / "plain.ckpt").write_bytes(pickle.dumps(HostilePickle(target)))
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    for name in ("evil.ckpt", "plain.ckpt"):
        with pytest.raises(UserError, match=name):
            load_model(tmp_path / name)
    assert not target.exists()


@pytest.mark.parametrize(
    "content,words",
    [
        ({"weights": 1}, "not a checkpoint of this project"),
        ([1, 2], "not a checkpoint of this project"),
        ({"format_version": 2}, "not a checkpoint of this project"),
        ({"format_version": 1}, "has format 1; export it with the code that wrote it"),
        ({**EMPTY, "hyper_parameters": {"model": {"d_modle": 1}, "tokenizer": "bytes"}}, "d_modle"),
    ],
)
def test_a_file_that_is_not_a_checkpoint_is_refused(content: object, words: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "other.ckpt")
    with pytest.raises(UserError, match=words):
        load_model(tmp_path / "other.ckpt")


def test_damaged_and_inconsistent_checkpoints_are_refused(tiny_run: Path, tmp_path: Path) -> None:
    whole = (tiny_run / "last.ckpt").read_bytes()
    content = torch.load(tiny_run / "last.ckpt", weights_only=True)
    cut = tmp_path / "cut.ckpt"
    cut.write_bytes(whole[: len(whole) // 2])
    other_tokenizer = {**content, "hyper_parameters": {**content["hyper_parameters"], "tokenizer": "gpt2"}}
    torch.save(other_tokenizer, tmp_path / "tokenizer.ckpt")
    fewer = dict(list(content["state_dict"].items())[:-1])
    torch.save({**content, "state_dict": fewer}, tmp_path / "fewer.ckpt")
    for name, words in [("cut", "damaged"), ("tokenizer", r"257 token ids.*50257"), ("fewer", "Missing key")]:
        with pytest.raises(UserError, match=words):
            load_model(tmp_path / f"{name}.ckpt")


def test_a_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint"):
        load_model(tmp_path / "nope")
    with pytest.raises(UserError, match=r"neither best\.ckpt nor last\.ckpt"):
        load_model(tmp_path)
    with pytest.raises(UserError, match="no checkpoint"):
        load_model("https://example.org/model.ckpt")
