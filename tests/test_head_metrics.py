"""Ideal heads and uniform attention, on the probe of the notes' table: end-of-text, r1..r32, r1..r32."""

import math

import pytest
import torch
from torch import Tensor

from gpt.attention_maps.capture import Capture
from gpt.attention_maps.head_metrics import head_metrics
from gpt.attention_maps.probes import Probe

P = 32
T = 2 * P + 1
IDS = torch.tensor([99, *range(P), *range(P)])
RANDOM = Probe("random", tuple(IDS.tolist()), ("",) * T, ("",) * T, is_repeated_random=True)
UNIFORM = torch.ones(T, T).tril() / torch.arange(1, T + 1)[:, None]


def attending_to(target: list[int]) -> Tensor:
    """A head whose query i attends to key target[i] alone."""
    return torch.nn.functional.one_hot(torch.tensor(target), T).float()


PREVIOUS = attending_to([max(i - 1, 0) for i in range(T)])
SINK = attending_to([0] * T)
INDUCTION = attending_to([i - P + 1 if i > P else 0 for i in range(T)])
DUPLICATE = attending_to([i - P if i > P else 0 for i in range(T)])
SELF = attending_to(list(range(T)))


def metrics(maps: Tensor) -> dict[str, float]:
    capture = Capture(RANDOM, maps[None, None], max_logits=torch.zeros(1, 1))
    return {name: value.item() for name, value in head_metrics(capture).items()}


@pytest.mark.parametrize(
    "name,maps",
    [("previous_token", PREVIOUS), ("sink", SINK), ("induction", INDUCTION), ("duplicate_token", DUPLICATE)],
)
def test_an_ideal_head_scores_one_and_almost_zero_on_other_patterns(name: str, maps: Tensor) -> None:
    scores = metrics(maps)
    assert scores[name] == pytest.approx(1)
    others = {"previous_token", "induction", "duplicate_token"} - {name}
    assert all(scores[other] <= 1 / P for other in others)  # the first queries attend to token 0 instead


def test_uniform_attention_has_the_closed_forms() -> None:
    # The fractions that the notes' table rounds: 3.22, 1, 16.25, 0.059, 0.059, 0.021, 0.021.
    expected = {
        "entropy": sum(math.log(i + 1) for i in range(T)) / T,
        "normalised_entropy": 1.0,
        "distance": sum(i / 2 for i in range(1, T)) / (T - 1),
        "previous_token": sum(1 / (i + 1) for i in range(1, T)) / (T - 1),
        "sink": sum(1 / (i + 1) for i in range(1, T)) / (T - 1),
        "induction": sum(1 / (i + 1) for i in range(P + 1, T)) / P,
        "duplicate_token": sum(1 / (i + 1) for i in range(P + 1, T)) / P,
        "max_logit": 0.0,
    }
    assert metrics(UNIFORM) == pytest.approx(expected, rel=1e-5)
    table = {"entropy": 3.22, "distance": 16.25, "previous_token": 0.059, "sink": 0.059, "induction": 0.021}
    assert {name: round(expected[name], 3 if value < 1 else 2) for name, value in table.items()} == table


@pytest.mark.parametrize("maps,expected", [(PREVIOUS, 1.0), (SINK, (1 + T - 1) / 2), (SELF, 0.0)])
def test_distance_is_the_mean_offset_of_the_key(maps: Tensor, expected: float) -> None:
    assert metrics(maps)["distance"] == pytest.approx(expected)


def test_entropy_of_one_hot_attention_is_zero() -> None:
    assert metrics(SELF)["entropy"] == 0
    assert metrics(SELF)["normalised_entropy"] == 0


def test_every_score_equals_a_loop_over_random_maps() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 3, T, T, generator=generator).masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
    maps = logits.double().softmax(-1)
    got = head_metrics(Capture(RANDOM, maps, max_logits=logits.amax((-2, -1))))
    ids = IDS.tolist()
    for layer in range(2):
        for head in range(3):
            A = maps[layer, head].tolist()
            entropies = [-sum(a * math.log(a) for a in row[: i + 1]) for i, row in enumerate(A)]
            later = range(1, T)
            twice = [i for i in range(T) if ids[i] in ids[:i]]
            expected = {
                "entropy": sum(entropies) / T,
                "normalised_entropy": sum(entropies[i] / math.log(i + 1) for i in later) / (T - 1),
                "distance": sum(A[i][j] * (i - j) for i in later for j in range(i)) / (T - 1),
                "previous_token": sum(A[i][i - 1] for i in later) / (T - 1),
                "sink": sum(A[i][0] for i in later) / (T - 1),
                "induction": sum(A[i][i - P + 1] for i in range(P + 1, 2 * P + 1)) / P,
                "duplicate_token": sum(A[i][j] for i in twice for j in range(i) if ids[j] == ids[i]) / len(twice),
                "max_logit": max(logits[layer, head, i, j].item() for i in range(T) for j in range(i + 1)),
            }
            assert {name: value[layer, head].item() for name, value in got.items()} == pytest.approx(expected)


def test_prose_has_no_induction_score() -> None:
    prose = Probe("text", RANDOM.token_ids, RANDOM.labels, RANDOM.characters)
    names = head_metrics(Capture(prose, UNIFORM[None, None], torch.zeros(1, 1)))
    assert not {"induction", "duplicate_token"} & set(names)
    assert len(names) == 6
