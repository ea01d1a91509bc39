"""Contenders, in this process and in their own, on a model that takes a moment."""

from pathlib import Path

import pytest
import torch

from gpt.errors import UserError
from gpt.model.config import GPTConfig
from scripts.benchmarks.contenders import Task, build
from scripts.benchmarks.isolated import Isolated, check_equal_losses, fastest_variant
from scripts.benchmarks.train import flops_per_token, matmul_rate, step_rows

TINY = GPTConfig(vocab_size=257, context_length=16, d_model=16, num_layers=2, num_heads=2, dropout=0.0)
TASK = Task(TINY, batch_size=2, length=16, device="cpu")


@pytest.mark.parametrize("name", ["transformers", "transformers:fused"])
def test_a_peer_has_equal_losses_step_after_step(name: str) -> None:
    mini_gpt, peer = build("mini-gpt", TASK), build(name, TASK)
    for number in range(3):
        batch = TASK.batch(number)
        torch.testing.assert_close(mini_gpt.step(*batch), peer.step(*batch), rtol=1e-5, atol=1e-5)


def test_contenders_run_in_their_own_processes() -> None:
    mini_gpt = Isolated("mini-gpt", TASK)
    peer = Isolated(fastest_variant(["transformers", "transformers:fused"], TASK), TASK)
    check_equal_losses(mini_gpt, peer)
    assert 0 < mini_gpt.seconds(2) < 60
    assert mini_gpt.close() > 50e6
    other = Isolated("mini-gpt", Task(TINY, 2, 8, "cpu"))
    with pytest.raises(UserError, match="expected equal losses"):
        check_equal_losses(peer, other, tolerance=1e-9)
    for contender in (peer, other):
        contender.close()


def test_a_contender_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nanogpt cannot be measured: .*model\.py"):
        Isolated("nanogpt", Task(TINY, 2, 16, "cpu", tmp_path))


def test_steps_are_measured_against_a_peer_and_against_matrix_products() -> None:
    rows = step_rows(TASK, ["transformers"], pairs=1)
    assert [row.unit for row in rows] == ["times as fast", "tokens/s", "times as much", "tokens/s", "of it"]
    assert all(row.value > 0 for row in rows)


def test_floating_point_operations_are_counted_as_published() -> None:
    # GPT-2 small at T 1024: 6 N with N = 124,439,808 - 1024 * 768, and 12 L H D T.
    assert flops_per_token(GPTConfig(), 1024) == 6 * 123_653_376 + 12 * 12 * 768 * 1024
    assert matmul_rate(TINY, 32, "cpu", seconds=0.05) > 0
