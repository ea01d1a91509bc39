import pytest
import torch

from gpt.attention_maps.head_metrics import previous_token, sink

T = 12
UNIFORM = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]


def test_an_ideal_previous_token_head_scores_one() -> None:
    ideal = torch.diag(torch.ones(T - 1), -1)
    ideal[0, 0] = 1
    assert previous_token(ideal) == 1
    assert sink(ideal) == pytest.approx(1 / (T - 1))  # only the second token's previous one is the first


def test_an_ideal_sink_scores_one() -> None:
    ideal = torch.zeros(T, T)
    ideal[:, 0] = 1
    assert sink(ideal) == 1
    assert previous_token(ideal) == pytest.approx(1 / (T - 1))


@pytest.mark.parametrize("metric", [previous_token, sink])
def test_an_even_head_scores_the_mean_of_its_weights(metric) -> None:
    expected = sum(1 / (i + 1) for i in range(1, T)) / (T - 1)
    assert metric(UNIFORM).item() == pytest.approx(expected)
    assert metric(UNIFORM.expand(3, 2, T, T)).shape == (3, 2)
