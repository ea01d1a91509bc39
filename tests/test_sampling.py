import pytest
import torch

from gpt.errors import UserError
from gpt.generation.sampling import Sampling

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0])


def _frequencies(sampling: Sampling, samples: int = 4000, history: tuple[int, ...] = ()) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.tensor([sampling.sample(LOGITS, generator, history) for _ in range(samples)])
    return torch.bincount(tokens, minlength=4) / samples


def _renormalised(kept: list[int]) -> torch.Tensor:
    """The softmax of LOGITS restricted to the tokens kept."""
    mask = torch.full((4,), -torch.inf)
    mask[kept] = 0.0
    return (LOGITS + mask).softmax(-1)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_samples_follow_the_softmax_of_logits_divided_by_temperature(temperature: float) -> None:
    expected = (LOGITS.double() / temperature).softmax(-1).float()
    assert (_frequencies(Sampling(temperature)) - expected).abs().max() < 0.03  # 4 standard deviations


def test_top_k_samples_from_the_k_most_likely_tokens() -> None:
    assert (_frequencies(Sampling(top_k=2)) - _renormalised([1, 2])).abs().max() < 0.03


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0), Sampling(top_k=1), Sampling(temperature=1e-46), Sampling(temperature=1e-8)]
)
def test_zero_or_tiny_temperature_and_top_k_1_are_greedy(sampling: Sampling) -> None:
    assert _frequencies(sampling, samples=50)[1] == 1.0


@pytest.mark.parametrize("top_k", [None, 0, 4, 10**6])
def test_top_k_of_none_0_or_at_least_the_vocabulary_size_has_no_effect(top_k: int | None) -> None:
    assert torch.equal(_frequencies(Sampling(top_k=top_k), 100), _frequencies(Sampling(), 100))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_nonfinite_logits_are_reported_as_divergence(bad: float) -> None:
    for temperature in (0, 1):
        with pytest.raises(UserError, match="diverged"):
            Sampling(temperature).sample(torch.tensor([0.0, bad]), torch.Generator())
        assert (
            Sampling(temperature).sample(torch.tensor([0.0, -torch.inf]), torch.Generator()) == 0
        )  # -inf excludes a token


def test_logits_are_not_modified() -> None:
    logits = LOGITS.clone()
    Sampling(0.5, 2).sample(logits, torch.Generator())
    assert torch.equal(logits, LOGITS)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"min_p": -0.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": float("inf")},
    ],
)
def test_invalid_options_are_refused_by_name(options: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(options))} is"):
        Sampling(**options)


def test_top_p_samples_from_the_smallest_set_with_that_probability() -> None:
    # Probabilities of LOGITS: 0.0895, 0.6612, 0.2432, 0.0121.
    for top_p, kept in [(0.0, [1]), (0.5, [1]), (0.67, [1, 2]), (0.95, [0, 1, 2]), (0.999, [0, 1, 2, 3])]:
        assert (_frequencies(Sampling(top_p=top_p)) - _renormalised(kept)).abs().max() < 0.03


def test_min_p_excludes_tokens_below_that_fraction_of_the_highest_probability() -> None:
    p = LOGITS.softmax(-1)
    for min_p, kept in [(0.0, [0, 1, 2, 3]), (0.1, [0, 1, 2]), (0.2, [1, 2]), (0.9, [1]), (1.0, [1])]:
        assert [token for token in range(4) if p[token] >= min_p * p.max()] == kept
        assert (_frequencies(Sampling(min_p=min_p)) - _renormalised(kept)).abs().max() < 0.03


def test_the_repetition_penalty_divides_positive_logits_and_multiplies_others() -> None:
    # CTRL's rule on tokens 1 and 3: 3.0 / 2 and -1.0 * 2.
    expected = torch.tensor([1.0, 1.5, 2.0, -2.0]).softmax(-1)
    assert (_frequencies(Sampling(repetition_penalty=2.0), history=(3, 1, 1)) - expected).abs().max() < 0.03
    assert Sampling(0, repetition_penalty=2.0).sample(LOGITS, torch.Generator(), [1]) == 2


def test_filters_apply_in_sequence() -> None:
    # The two most likely tokens have probabilities 0.73 and 0.27, so that the first alone reaches 0.7.
    assert _frequencies(Sampling(top_k=2, top_p=0.7), 200)[1] == 1.0
    assert _frequencies(Sampling(top_k=3, top_p=0.99, min_p=0.3), 200)[[0, 3]].sum() == 0.0
