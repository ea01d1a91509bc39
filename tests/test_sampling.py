import pytest
import torch

from gpt.generation.sampling import Sampling

LOGITS = torch.tensor([1.0, 3.0, 2.0, -1.0])


def _frequencies(sampling: Sampling, draws: int = 4000) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.tensor([sampling.draw(LOGITS, generator) for _ in range(draws)])
    return torch.bincount(tokens, minlength=4) / draws


@pytest.mark.parametrize("temperature", [1.0, 0.5, 3.0])
def test_draws_follow_the_softmax_of_the_tempered_logits(temperature: float) -> None:
    expected = (LOGITS.double() / temperature).softmax(-1).float()
    assert (_frequencies(Sampling(temperature)) - expected).abs().max() < 0.03  # 4 standard deviations


def test_top_k_leaves_the_k_likeliest_in_proportion() -> None:
    expected = torch.tensor([0.0, 3.0, 2.0, -torch.inf]).masked_fill(torch.tensor([1, 0, 0, 0]).bool(), -torch.inf)
    assert (_frequencies(Sampling(top_k=2)) - expected.softmax(-1)).abs().max() < 0.03


@pytest.mark.parametrize(
    "sampling", [Sampling(temperature=0), Sampling(top_k=1), Sampling(temperature=1e-30), Sampling(temperature=1e-8)]
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
            Sampling(temperature).draw(torch.tensor([0.0, bad]), torch.Generator())


def test_logits_are_not_changed() -> None:
    logits = LOGITS.clone()
    Sampling(0.5, 2).draw(logits, torch.Generator())
    assert torch.equal(logits, LOGITS)


@pytest.mark.parametrize(
    "options", [{"temperature": -1}, {"temperature": float("nan")}, {"temperature": float("inf")}, {"top_k": -1}]
)
def test_impossible_options_are_named(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"--{next(iter(options)).replace('_', '-')} is"):
        Sampling(**options)
