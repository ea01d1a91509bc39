"""The Lightning module; complete runs are in test_run.py."""

import subprocess
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
import torch.nn.functional as F

from gpt.data.manifest import Manifest, SplitTokens
from gpt.data.windows import IGNORED, TokenWindows, TrainingBatches
from gpt.errors import UserError
from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.transformer import GPT
from gpt.training.config_parser import parse_config
from gpt.training.datamodule import TokenDataModule
from gpt.training.module import GPTModule, _git_revision, _mixed_seed
from tests.runs import TrainTiny, same_tensors, scalars, weights


@pytest.mark.parametrize("micro_batch_size,world_size", [(1, 1), (2, 1), (3, 1), (1, 2), (3, 2)])
def test_losses_of_micro_batches_add_up_to_the_mean_over_the_targets_of_the_global_batch(
    micro_batch_size: int, world_size: int, tiny_data: Path
) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(257, 32, 32, 2, 2, 0.0))
    windows = TokenWindows(SplitTokens(tiny_data, Manifest.load(tiny_data), "train"), 32)
    incomplete = len(windows) - 1
    assert windows.num_targets(incomplete) < 32
    ranks = [TrainingBatches(windows, 1234, 6, micro_batch_size, rank, world_size) for rank in range(world_size)]
    step = next(step for step in range(100) if incomplete in ranks[0].window_indices(step))

    chosen = [windows[index] for index in ranks[0].window_indices(step)]
    inputs, targets = (torch.stack([window[name] for window in chosen]) for name in ("inputs", "targets"))
    mean = F.cross_entropy(model(inputs).flatten(0, 1).double(), targets.flatten(), ignore_index=IGNORED)
    expected = torch.autograd.grad(mean, list(model.parameters()))

    total = 0.0
    for batches in ranks:
        for micro in range(batches.accumulation):
            batch = batches[step * batches.accumulation + micro]
            hidden = model.transformer(batch["inputs"])
            loss = next_token_loss(hidden, model.lm_head_weight, batch["targets"]) / batch["global_targets"]
            loss.backward()
            total += loss.item()
    assert total == pytest.approx(mean.item(), rel=1e-6)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert (parameter.grad - gradient).norm() <= 1e-6 * gradient.norm() + 1e-9


def test_seeds_of_micro_batches_differ_in_their_low_32_bits() -> None:
    seeds = {
        _mixed_seed(seed, number, rank) % 2**32 for seed in range(3) for number in range(3000) for rank in range(2)
    }
    assert len(seeds) >= 3 * 3000 * 2 - 2  # 18,000 random 32-bit numbers may collide once


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_plain_trainer_trains_to_the_losses_of_train_py(
    accumulation: int, train_tiny: TrainTiny, tiny_data: Path, tiny_config: Path, tmp_path: Path
) -> None:
    flags = ["--trainer.max_steps", "8", "--data.micro_batch_size", str(4 // accumulation)]
    assert train_tiny(tmp_path, *flags) == 0
    config = parse_config(tiny_config, ["--data.path", str(tiny_data), *flags])
    L.seed_everything(config.seed, verbose=False)
    data = TokenDataModule(config)
    module = GPTModule(config, data.manifest)
    losses: list[float] = []

    class Record(L.Callback):
        def on_train_batch_end(self, trainer: L.Trainer, module: GPTModule, outputs: Any, batch: Any, i: int) -> None:
            if module.completes_step(batch):
                losses.append(float(module.train_loss))

    options: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    options |= {"val_check_interval": 4 * accumulation, "check_val_every_n_epoch": None}
    trainer = L.Trainer(max_steps=8, accelerator="cpu", accumulate_grad_batches=accumulation, **options)
    trainer.callbacks.append(Record())
    trainer.fit(module, data)
    assert losses == list(scalars(tmp_path / "tiny", "loss/train_nats").values())  # bit-equal
    assert same_tensors(module.state_dict(), weights(tmp_path / "tiny"))
    assert "val_loss_nats" in trainer.callback_metrics


def test_a_trainer_with_another_accumulate_grad_batches_is_refused(tiny_data: Path, tiny_config: Path) -> None:
    config = parse_config(tiny_config, ["--data.path", str(tiny_data)])
    data = TokenDataModule(config)
    trainer = L.Trainer(max_steps=1, accelerator="cpu", logger=False, enable_checkpointing=False)
    with pytest.raises(UserError, match="accumulate_grad_batches is 1; the config's batch sizes need 2"):
        trainer.fit(GPTModule(config, data.manifest), data)


def test_only_this_project_s_repository_is_recorded_and_nothing_of_another_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        return subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True).stdout

    package = tmp_path / "vendored" / "gpt"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (tmp_path / "hook").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "hook").chmod(0o755)
    git("init")
    git("add", "vendored")
    git("commit", "-m", "another project")
    git("config", "core.fsmonitor", str(tmp_path / "hook"))
    monkeypatch.setattr("gpt.__file__", str(package / "__init__.py"))
    assert _git_revision() is None
    monkeypatch.setattr("gpt.__file__", str(tmp_path / "gpt" / "__init__.py"))  # a repository of another name
    assert _git_revision() is None
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "mini-gpt"\n')
    revision = _git_revision()
    assert revision is not None
    assert git("rev-parse", "HEAD").strip() in revision
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))  # as in a git hook
    assert _git_revision() == revision
    assert not (tmp_path / "ran").exists()
