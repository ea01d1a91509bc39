import pickle
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from gpt.checkpoint import find_checkpoint, load_model, read_checkpoint, steps_trained, uses_document_mask
from gpt.errors import UserError
from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT
from tests.runs import HostilePickle, same_tensors

WEIGHT = "model.transformer.blocks.0.mlp.fc_in.weight"
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
        ({"format_version": torch.ones(3)}, "not a checkpoint of this project"),
        ({**EMPTY, "hyper_parameters": 5}, r"\(it has no hyper_parameters\)"),
        ({**EMPTY, "hyper_parameters": {"model": asdict(GPTConfig()), "tokenizer": []}}, "cannot be used"),
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


def _flip(content: bytes, bit: int) -> bytes:
    return content[: bit // 8] + bytes([content[bit // 8] ^ 1 << bit % 8]) + content[bit // 8 + 1 :]


def _same(first: Any, second: Any) -> bool:
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(_same(first[key], second[key]) for key in first)
    return (
        _same(dict(enumerate(first)), dict(enumerate(second))) if isinstance(first, list | tuple) else first == second
    )


def test_a_flipped_bit_is_refused_or_changes_nothing_that_is_read(tiny_run: Path, tmp_path: Path) -> None:
    whole = (tiny_run / "last.ckpt").read_bytes()
    content, weights = torch.load(tiny_run / "last.ckpt", weights_only=True), load_model(tiny_run)[0].state_dict()
    random = Random(0)
    refused = 0
    for _ in range(60):
        (tmp_path / "flipped.ckpt").write_bytes(_flip(whole, random.randrange(8 * len(whole))))
        try:
            assert _same(read_checkpoint(tmp_path / "flipped.ckpt", whole=True), content)
        except UserError:
            refused += 1
        with suppress(UserError):
            assert same_tensors(load_model(tmp_path / "flipped.ckpt")[0].state_dict(), weights)
    assert refused > 50  # the others are in the zip format's padding and dates


def test_any_pickle_ends_in_a_value_or_a_user_error(tiny_run: Path, tmp_path: Path) -> None:
    """Bits are flipped in the pickle, and its checksum is right."""
    random = Random(0)
    with zipfile.ZipFile(tiny_run / "last.ckpt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    pickle_name = next(name for name in members if name.endswith("data.pkl"))
    for _ in range(40):
        flipped = _flip(members[pickle_name], random.randrange(8 * len(members[pickle_name])))
        with zipfile.ZipFile(tmp_path / "flipped.ckpt", "w") as archive:
            for name, content in {**members, pickle_name: flipped}.items():
                archive.writestr(name, content)
        with suppress(UserError):
            load_model(tmp_path / "flipped.ckpt")
            uses_document_mask(tmp_path / "flipped.ckpt")
            steps_trained(tmp_path / "flipped.ckpt")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("names", [[WEIGHT], None])
def test_weights_of_other_floating_point_types_are_cast(
    dtype: torch.dtype, names: list[str] | None, tiny_run: Path, tmp_path: Path
) -> None:
    content = torch.load(tiny_run / "best.ckpt", weights_only=True)
    for name in names or list(content["state_dict"]):
        content["state_dict"][name] = content["state_dict"][name].to(dtype)
    torch.save(content, tmp_path / "cast.ckpt")
    model, _ = load_model(tmp_path / "cast.ckpt")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    ids = torch.tensor([[256, 1, 2]])
    torch.testing.assert_close(model(ids), load_model(tiny_run)[0](ids), rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    "change,words",
    [
        (lambda w: w.int(), "is int32; expected a dense tensor in float16, bfloat16"),
        (lambda w: w.to(torch.float8_e4m3fn), "is float8_e4m3fn"),
        (lambda w: w.to_sparse(), "is sparse"),
        (lambda w: w.to_sparse_csr(), "is sparse"),
        (lambda w: w.to("meta"), "is meta"),
        (lambda w: w.tolist(), "is of type list; expected a tensor"),
        (lambda w: w.T, "size mismatch"),
        (lambda w: w[0, 0], "size mismatch"),
        (lambda w: w * float("nan"), "not finite: it diverged in training"),
        (lambda w: w.index_fill(0, torch.tensor([5]), float("-inf")), "not finite"),
        (lambda w: w * 1e30, "not finite"),  # the weights are, but the logits are not
        (lambda w: w.double() * 1e300, "not finite"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(
    change: Callable[[torch.Tensor], Any], words: str, tiny_run: Path, tmp_path: Path
) -> None:
    content = torch.load(tiny_run / "best.ckpt", weights_only=True)
    content["state_dict"][WEIGHT] = change(content["state_dict"][WEIGHT])
    torch.save(content, tmp_path / "other.ckpt")
    with pytest.raises(UserError, match=words):
        load_model(tmp_path / "other.ckpt")


@pytest.mark.parametrize(
    "change,words",
    [
        ({"num_layers": 2.0}, r"num_layers is 2\.0; it must be an integer"),
        ({"num_layers": True}, "num_layers is True"),
        ({"num_layers": "2"}, "num_layers is '2'"),
        ({"num_layers": -1}, "num_layers is -1; it must be at least 1"),
        ({"num_layers": 10**9}, "fewer than 1000000000 layers"),
        ({"context_length": 10**9}, "size mismatch"),
        ({"context_length": 10**30}, r"it must be below 2\*\*31"),
        ({"d_model": 2 * 10**9}, "do not fit its config"),
        ({"dropout": "0.1"}, "dropout is '0.1'"),
        ({"qkv_bias": "no"}, "qkv_bias is 'no'; it must be true or false"),
        ({1: 1}, "keywords must be strings"),
    ],
)
def test_a_shape_of_wrong_types_or_sizes_is_refused(
    change: dict[Any, Any], words: str, tiny_run: Path, tmp_path: Path
) -> None:
    content = torch.load(tiny_run / "best.ckpt", weights_only=True)
    content["hyper_parameters"]["model"].update(change)
    torch.save(content, tmp_path / "other.ckpt")
    with pytest.raises(UserError, match=words):
        load_model(tmp_path / "other.ckpt")


def test_a_shape_is_not_completed_with_defaults(tiny_run: Path, tmp_path: Path) -> None:
    content = torch.load(tiny_run / "best.ckpt", weights_only=True)
    del content["hyper_parameters"]["model"]["dropout"]
    torch.save(content, tmp_path / "other.ckpt")
    with pytest.raises(UserError, match="its config has no dropout"):
        load_model(tmp_path / "other.ckpt")


def test_a_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint"):
        load_model(tmp_path / "nope")
    with pytest.raises(UserError, match=r"neither best\.ckpt nor last\.ckpt"):
        load_model(tmp_path)
    with pytest.raises(UserError, match="no checkpoint"):
        load_model("https://example.org/model.ckpt")
