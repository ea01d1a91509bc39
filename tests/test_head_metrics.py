import pytest
import torch

from gpt.attention_maps.head_metrics import previous_token

T = 12


def test_an_ideal_previous_token_head_scores_one() -> None:
    ideal = torch.diag(torch.ones(T - 1), -1)
    ideal[0, 0] = 1
    assert previous_token(ideal) == 1


def test_a_head_that_looks_at_the_first_token_scores_once() -> None:
    sink = torch.zeros(T, T)
    sink[:, 0] = 1
    assert previous_token(sink) == pytest.approx(1 / (T - 1))


def test_an_even_head_scores_the_mean_of_its_weights() -> None:
    even = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]
    expected = sum(1 / (i + 1) for i in range(1, T)) / (T - 1)
    assert previous_token(even).item() == pytest.approx(expected)
    assert previous_token(even.expand(3, 2, T, T)).shape == (3, 2)
