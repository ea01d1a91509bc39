"""The step itself; whole runs are in test_run.py."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from gpt.data.manifest import Manifest, SplitTokens
from gpt.data.windows import IGNORED, TokenWindows, TrainingBatches
from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.transformer import GPT
from gpt.training.module import _mixed_seed


@pytest.mark.parametrize("micro_batch_size,world_size", [(1, 1), (2, 1), (3, 1), (1, 2), (3, 2)])
def test_shares_of_a_ragged_global_batch_add_up_to_its_mean(
    micro_batch_size: int, world_size: int, tiny_data: Path
) -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(257, 32, 32, 2, 2, 0.0))
    windows = TokenWindows(SplitTokens(tiny_data, Manifest.load(tiny_data), "train"), 32)
    ragged = len(windows) - 1
    assert windows.num_targets(ragged) < 32
    make = [TrainingBatches(windows, 1234, 6, micro_batch_size, rank, world_size) for rank in range(world_size)]
    step = next(step for step in range(100) if ragged in make[0].window_indices(step))

    chosen = [windows[index] for index in make[0].window_indices(step)]
    inputs, targets = (torch.stack([window[name] for window in chosen]) for name in ("inputs", "targets"))
    mean = F.cross_entropy(model(inputs).flatten(0, 1).double(), targets.flatten(), ignore_index=IGNORED)
    expected = torch.autograd.grad(mean, list(model.parameters()))

    total = 0.0
    for batches in make:
        for micro in range(batches.accumulation):
            batch = batches[step * batches.accumulation + micro]
            hidden = model.transformer(batch["inputs"])
            share = next_token_loss(hidden, model.lm_head_weight, batch["targets"]) / batch["global_targets"]
            share.backward()
            total += share.item()
    assert total == pytest.approx(mean.item(), rel=1e-6)
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        assert (parameter.grad - gradient).norm() <= 1e-6 * gradient.norm() + 1e-9


def test_seeds_of_micro_batches_differ_in_the_bits_that_a_generator_uses() -> None:
    seeds = {
        _mixed_seed(seed, number, rank) % 2**32 for seed in range(3) for number in range(3000) for rank in range(2)
    }
    assert len(seeds) >= 3 * 3000 * 2 - 2  # one collision is what 18,000 draws of 32 bits may bring
