import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT
from gpt.training.cpu_memory import reduce_cpu_memory
from gpt.training.preflight import activation_bytes
from tests.runs import TrainTiny, is_one_line_error


def test_check_describes_the_run_and_writes_nothing(
    train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(tmp_path / "checkpoints", "--check") == 0
    captured = capfd.readouterr()
    assert captured.out == ""
    for words in (
        "34,720 parameters",  # 257·32 + 32·32 + 2·(12·32² + 13·32) + 2·32
        "3,302 tokens per epoch, 12 validation windows",
        "30 steps of 128 tokens = 1.16 epochs; warmup 5 steps",
        "2 x 2 sequences per step",
        "cpu, 32-true, math attention",
        "weights 0.1 MiB",
        f"run folder: {tmp_path / 'checkpoints' / 'tiny'}",
    ):
        assert words in captured.err, captured.err
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    "flags,words",
    [
        (["--optim.muon_learning_rate", "0.1"], "--optim.muon_learning_rate has no effect: optim.name is adamw"),
        (["--optim.muon_momentum=0.5"], "--optim.muon_momentum has no effect"),
        (["--optim.decay_fraction", "0.1"], "--optim.decay_fraction has no effect: optim.schedule is cosine"),
        (
            ["--optim.schedule", "constant", "--optim.min_learning_rate", "1e-4"],
            "--optim.min_learning_rate has no effect",
        ),
    ],
)
def test_a_flag_without_effect_is_refused(
    flags: list[str], words: str, train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(tmp_path / "checkpoints", *flags) == 2
    assert is_one_line_error(capfd.readouterr().err, words)
    assert not (tmp_path / "checkpoints").exists()


@pytest.mark.parametrize(
    "flags,warning",
    [
        (["--optim.schedule", "constant"], "optim.min_learning_rate has no effect: optim.schedule is constant"),
        (["--trainer.max_steps", "2600"], "the run has 101 epochs"),  # of 3,302 tokens, 128 a step
        (["--optim.warmup_steps", "30"], "the run ends before its warmup (30 steps)"),
    ],
)
def test_a_questionable_option_is_a_warning(
    flags: list[str], warning: str, train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(tmp_path, "--check", *flags) == 0
    assert warning in capfd.readouterr().err


def test_97_epochs_are_not_a_warning(train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train_tiny(tmp_path, "--check", "--trainer.max_steps", "2500") == 0
    assert "the run has" not in capfd.readouterr().err


@pytest.mark.parametrize("shape", [(64, 3, 4, 48), (128, 2, 2, 96), (96, 6, 6, 32)])
def test_activation_bytes_estimates_what_autograd_saves(shape: tuple[int, int, int, int]) -> None:
    d_model, num_layers, num_heads, context_length = shape
    config = GPTConfig(97, context_length, d_model, num_layers, num_heads, dropout=0.0)
    model = GPT(config)
    reduce_cpu_memory(model, torch.optim.AdamW(model.parameters()))
    created: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    class RecordStorages(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for tensor in pytree.tree_leaves(result):
                if isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    created[storage._cdata] = weakref.ref(storage)
            return result

    with RecordStorages():
        hidden = model.transformer(torch.zeros(4, context_length, dtype=torch.long))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    alive = [storage for reference in created.values() if (storage := reference()) is not None]
    saved = sum(storage.nbytes() for storage in alive if storage.data_ptr() not in weights)
    assert activation_bytes(config, 4, on_cpu=True) == pytest.approx(saved, rel=0.12)
    assert hidden.shape == (4, context_length, d_model)
