"""Contenders on a model that takes a moment; nanoGPT is written here as far as the benchmark uses it."""

from pathlib import Path

import pytest
import torch

from gpt.benchmark.isolated import Isolated, Work, build, check_equal_losses, fastest
from gpt.benchmark.train import flops_per_token, matmul_rate
from gpt.model.config import GPTConfig

TINY = GPTConfig(vocab_size=257, context_length=16, d_model=16, num_layers=2, num_heads=2, dropout=0.0)
WORK = Work(TINY, batch_size=2, length=16, device="cpu")


@pytest.mark.parametrize("theirs", ["transformers", "transformers:fused"])
def test_a_peer_takes_our_steps(theirs: str) -> None:
    ours, peer = build("mini-gpt", WORK), build(theirs, WORK)
    for number in range(3):
        batch = WORK.batch(number)
        # Same weights, same batches, same optimizer: the same losses, step after step.
        torch.testing.assert_close(ours.step(*batch), peer.step(*batch), rtol=1e-5, atol=1e-5)


def test_they_work_in_their_own_processes() -> None:
    ours = Isolated("mini-gpt", WORK)
    peer = fastest(["transformers", "transformers:fused"], WORK, lambda line: None)
    check_equal_losses([ours, peer])
    assert 0 < ours.seconds(2) < 60
    assert ours.close() > 50e6
    other = Isolated("mini-gpt", Work(TINY, 2, 8, "cpu"))
    with pytest.raises(ValueError, match="not the same"):
        check_equal_losses([peer, other], tolerance=1e-9)
    for contender in (peer, other):
        contender.close()


def test_a_contender_that_cannot_be_made_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nanogpt cannot be measured: .* is no checkout of nanoGPT"):
        Isolated("nanogpt", Work(TINY, 2, 16, "cpu", tmp_path))


def test_operations_are_counted_as_published() -> None:
    # GPT-2 small at T 1024: 6 N with N = 124,439,808 - 1024 * 768, and 12 L H D T.
    assert flops_per_token(GPTConfig(), 1024) == 6 * 123_653_376 + 12 * 12 * 768 * 1024
    assert matmul_rate(TINY, 32, "cpu", seconds=0.05) > 0
