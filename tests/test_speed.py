import re
import time
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.transformer import GPT
from gpt.training import speed
from gpt.training.speed import flops_per_token, peak_share
from tests.runs import TrainTiny


def test_flops_are_those_that_pytorch_counts() -> None:
    """PaLM's formula counts the whole attention matrix, as PyTorch's counter does."""
    config = GPTConfig(64, context_length=32, d_model=32, num_layers=2, num_heads=2, qkv_bias=False)
    model = GPT(config)
    ids = torch.zeros(2, 33, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter:
        next_token_loss(model.transformer(ids[:, :-1]), model.lm_head_weight, ids[:, 1:]).backward()
    per_token = counter.get_total_flops() / (2 * 32)
    # The fused kernel's backward pass recomputes the scores: five products of queries and keys instead of four.
    assert flops_per_token(config, model.num_parameters) == pytest.approx(per_token, rel=0.06)


class _Module:
    def __init__(self) -> None:
        self.model = GPT(GPTConfig(50257, context_length=1024, d_model=768, num_layers=12, num_heads=12))


@pytest.mark.parametrize(
    "name,precision,share",
    [
        ("NVIDIA A100-SXM4-40GB", "bf16-mixed", 107_000 * 854e6 / 312e12),  # nanoGPT's figure: about 0.29
        ("NVIDIA A100-SXM4-40GB", "32-true", None),
        ("NVIDIA H100 PCIe", "bf16-mixed", 107_000 * 854e6 / 756e12),
        ("NVIDIA GeForce RTX 2060", "bf16-mixed", None),
        ("cpu", "32-true", None),
    ],
)
def test_the_share_of_the_peak_is_known_for_listed_devices_only(name: str, precision: str, share: float | None) -> None:
    with torch.device("meta"):
        module = _Module()
    found = peak_share(107_000, module, name, precision)
    assert found == (share if share is None else pytest.approx(share, rel=0.01))


def test_check_says_what_a_run_will_cost_and_writes_nothing(
    train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(tmp_path / "none", "--check", "--trainer.max_steps", "100000") == 0
    line = next(line for line in capfd.readouterr().err.splitlines() if line.startswith("cost: "))
    rate, amount, unit = re.search(r"cost: ([\d,]+) tokens/s .* about ([\d.]+) (minutes|hours)", line).groups()
    seconds = 100_000 * 128 / int(rate.replace(",", ""))
    assert float(amount) == pytest.approx(seconds / (60 if unit == "minutes" else 3600), rel=0.1, abs=0.06)
    assert "peak" not in line
    assert not (tmp_path / "none").exists()


def test_the_training_log_says_the_utilisation_once(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(speed._PEAKS, ("cpu", "32-true"), 1e12)
    assert train_tiny(tmp_path, "--attention_maps.enabled", "false") == 0
    said = re.findall(r"runs at ([\d,]+) tokens/s per device, (\d+)% of the dense peak of cpu", capfd.readouterr().err)
    assert len(said) == 1
    rate, percent = float(said[0][0].replace(",", "")), int(said[0][1])
    model = GPT(GPTConfig(257, context_length=32, d_model=32, num_layers=2, num_heads=2))
    assert percent == pytest.approx(100 * rate * flops_per_token(model.config, model.num_parameters) / 1e12, abs=0.51)


def test_the_forecast_is_near_the_run(train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    flags = ("--model.d_model", "128", "--attention_maps.enabled", "false", "--trainer.max_steps", "60")
    assert train_tiny(tmp_path, "--check", *flags) == 0
    rate = float(re.search(r"cost: ([\d,]+) tokens/s", capfd.readouterr().err)[1].replace(",", ""))
    started = time.monotonic()
    assert train_tiny(tmp_path, *flags) == 0
    assert 60 * 128 / rate < 3 * (time.monotonic() - started)  # a busy machine may be slower, by any factor
