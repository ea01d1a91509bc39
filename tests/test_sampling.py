import pytest
import torch

from gpt.generation.sampling import Sampling

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0])


def _frequencies(sampling: Sampling, draws: int = 4000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.tensor([sampling.sample(LOGITS, generator) for _ in range(draws)])
    return torch.bincount(tokens, minlength=4) / draws


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_draws_follow_the_softmax_of_the_tempered_logits(temperature: float) -> None:
    expected = (LOGITS.double() / temperature).softmax(-1).float()
    assert (_frequencies(Sampling(temperature)) - expected).abs().max() < 0.03  # 4 standard deviations


def test_top_k_leaves_the_k_likeliest_in_proportion() -> None:
    expected = torch.tensor([0.0, 3.0, 2.0, -torch.inf]).masked_fill(torch.tensor([1, 0, 0, 0]).bool(), -torch.inf)
    assert (_frequencies(Sampling(top_k=2)) - expected.softmax(-1)).abs().max() < 0.03


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0), Sampling(top_k=1), Sampling(temperature=1e-46), Sampling(temperature=1e-8)]
)
def test_greedy_and_what_amounts_to_it(sampling: Sampling) -> None:
    assert _frequencies(sampling, draws=50)[1] == 1.0


@pytest.mark.parametrize("top_k", [None, 0, 4, 10**6])
def test_top_k_that_leaves_all_changes_nothing(top_k: int | None) -> None:
    assert torch.equal(_frequencies(Sampling(top_k=top_k), 100), _frequencies(Sampling(), 100))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_diverged_model_is_said_to_be_one(bad: float) -> None:
    for temperature in (0, 1):
        with pytest.raises(ValueError, match="diverged"):
            Sampling(temperature).sample(torch.tensor([0.0, bad]), torch.Generator())
        assert Sampling(temperature).sample(torch.tensor([0.0, -torch.inf]), torch.Generator()) == 0  # means never


def test_logits_are_not_changed() -> None:
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
def test_impossible_options_are_named(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
        Sampling(**options)


def test_top_p_leaves_the_likeliest_that_make_it_up() -> None:
    # Probabilities of LOGITS: 0.0895, 0.6612, 0.2432, 0.0121.
    p = LOGITS.softmax(-1)
    for top_p, kept in [(0.0, [1]), (0.5, [1]), (0.67, [1, 2]), (0.95, [0, 1, 2]), (0.999, [0, 1, 2, 3])]:
        expected = torch.zeros(4)
        expected[kept] = p[kept] / p[kept].sum()
        assert (_frequencies(Sampling(top_p=top_p)) - expected).abs().max() < 0.03


def test_min_p_leaves_out_what_is_far_less_likely_than_the_likeliest() -> None:
    p = LOGITS.softmax(-1)
    for min_p, kept in [(0.0, [0, 1, 2, 3]), (0.1, [0, 1, 2]), (0.2, [1, 2]), (0.9, [1]), (1.0, [1])]:
        assert [token for token in range(4) if p[token] >= min_p * p.max()] == kept  # so by its definition
        expected = torch.zeros(4)
        expected[kept] = p[kept] / p[kept].sum()
        assert (_frequencies(Sampling(min_p=min_p)) - expected).abs().max() < 0.03


def test_a_penalty_divides_what_is_positive_and_multiplies_what_is_not() -> None:
    # CTRL's rule on tokens 1 and 3: 3.0 / 2 and -1.0 * 2.
    expected = torch.tensor([1.0, 1.5, 2.0, -2.0]).softmax(-1)
    generator = torch.Generator().manual_seed(0)
    sampling = Sampling(repetition_penalty=2.0)
    tokens = torch.tensor([sampling.sample(LOGITS, generator, [3, 1, 1]) for _ in range(4000)])
    assert (torch.bincount(tokens, minlength=4) / 4000 - expected).abs().max() < 0.03
    assert Sampling(0, repetition_penalty=2.0).sample(LOGITS, generator, [1]) == 2


def test_filters_apply_one_after_the_other() -> None:
    # Of the two likeliest, in proportion 0.73 to 0.27, the first alone makes up 0.7.
    assert _frequencies(Sampling(top_k=2, top_p=0.7), 200)[1] == 1.0
    assert _frequencies(Sampling(top_k=3, top_p=0.99, min_p=0.3), 200)[[0, 3]].sum() == 0.0
