import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.checkpoint import read_checkpoint
from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT
from gpt.training.config import OptimConfig
from gpt.training.module import GPTModule
from gpt.training.optim import build_optimizer
from tests.runs import TrainTiny, same_tensors, scalars, weights


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> Callable[[set[int], float], None]:
    """Multiply the loss of the micro-batches with the given numbers by a value."""

    def apply(numbers: set[int], value: float) -> None:
        original = GPTModule.training_step

        def patched(self: GPTModule, batch: Any, batch_idx: int) -> torch.Tensor:
            loss = original(self, batch, batch_idx)
            return loss * value if batch["number"] in numbers else loss

        monkeypatch.setattr(GPTModule, "training_step", patched)

    return apply


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_step_with_a_nonfinite_loss_is_skipped_and_counted(
    optimizer: str, value: float, poison: Callable, train_tiny: TrainTiny, tmp_path: Path
) -> None:
    poison({14, 41}, value)  # micro-batches of steps 8 and 21
    flags = ["--optim.name", optimizer, "--trainer.max_steps", "24"]
    assert train_tiny(tmp_path, *flags) == 0
    skipped = scalars(tmp_path / "tiny", "optimizer/skipped_steps")
    assert [skipped[step] for step in (7, 8, 20, 21, 24)] == [0, 1, 1, 2, 2]
    assert all(tensor.isfinite().all() for tensor in weights(tmp_path / "tiny").values())
    content = read_checkpoint(tmp_path / "tiny" / "last.ckpt")
    assert content["skipped_steps"] == [2, 8]
    for state in content["optimizer_states"][0]["state"].values():
        assert all(value.isfinite().all() for value in state.values())


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_skipped_step_changes_neither_weights_nor_optimizer_state(name: str) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=11, context_length=8, d_model=16, num_layers=1, num_heads=2, dropout=0.0))
    optimizer = build_optimizer(model, OptimConfig(name=name))
    inputs = torch.randint(0, 11, (2, 8))

    def step(factor: float, found: float) -> None:
        optimizer.zero_grad()
        (model(inputs).square().mean() * factor).backward()
        optimizer.found_inf = torch.tensor(found)
        optimizer.step()

    step(1.0, 0.0)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    step(float("nan"), 1.0)
    after = (model.state_dict(), optimizer.state_dict()["state"])
    assert same_tensors(before[0], after[0])
    assert all(same_tensors(state, after[1][index]) for index, state in before[1].items())
    step(1.0, 0.0)
    assert not any(torch.equal(before[0][n], p) for n, p in model.named_parameters() if p.ndim >= 2)


def test_too_many_skipped_steps_end_the_run_and_the_first_is_named(
    poison: Callable, train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    poison(set(range(30, 1000)), float("nan"))  # from step 16 on
    assert train_tiny(tmp_path, "--guard.max_skipped_steps", "3") == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: by step 19, 4 steps")
    assert "the first of them step 16 (global batch 15 of seed 1234)" in error
    assert str(tmp_path / "tiny" / "best.ckpt") in error
    content = read_checkpoint(tmp_path / "tiny" / "last.ckpt")
    assert content["global_step"] == 15
    assert all(tensor.isfinite().all() for tensor in content["state_dict"].values())


def test_a_resumed_run_continues_the_count_of_skipped_steps(
    poison: Callable, train_tiny: TrainTiny, tmp_path: Path
) -> None:
    poison({14}, float("nan"))
    assert train_tiny(tmp_path, "--trainer.max_steps", "10") == 0
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "14") == 0
    assert scalars(tmp_path / "tiny", "optimizer/skipped_steps")[14] == 1
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["skipped_steps"] == [1, 8]
