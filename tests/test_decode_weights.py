import pytest
import torch
import torch.nn.functional as F

from gpt.generation import decode_weights
from gpt.generation.decode_weights import (
    DecodingLinear,
    Int8Linear,
    _bound,
    lay_out_for_decoding,
    one_token_step,
)
from gpt.generation.generate import Request, generate
from gpt.generation.sampling import Sampling
from gpt.model.config import GPTConfig
from gpt.model.kv_cache import KVCache
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer


@pytest.mark.parametrize("shape", [(1,), (2,), (3, 2), (64,), (65,), (2, 50), (1, 1)])
@pytest.mark.parametrize("fan_out", [257, 64, 1])
@pytest.mark.parametrize("fan_in", [24, 7])
@pytest.mark.parametrize("with_bias", [True, False])
def test_the_layout_changes_no_number(shape: tuple[int, ...], fan_out: int, fan_in: int, with_bias: bool) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(fan_out, fan_in), torch.randn(*shape, fan_in)
    bias = torch.randn(fan_out) if with_bias else None
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(DecodingLinear(weight, bias)(x).double(), expected, rtol=1e-5, atol=1e-5)


def _rounded(weight: torch.Tensor) -> torch.Tensor:
    """Each output's weights to the nearest of 127 steps up to the largest, in float64."""
    steps = weight.double().abs().amax(dim=1, keepdim=True) / 127
    return (weight / steps).round() * steps


def _distance(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("bound", [None, 5.0])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 1), (2, 5), (1, 1)])
def test_int8_rounds_weights_and_hardly_inputs(shape: tuple[int, ...], bound: float | None) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(300, 400), torch.randn(300), torch.randn(*shape, 400).clamp(-5, 5)
    layer = Int8Linear(weight, bias, bound)
    got = layer(x)
    assert got.shape == (*shape, 300)
    # Two digits of 63 and 126 steps: rounding is uniform within 1 / 7938 of the largest, here 5 at most.
    assert _distance(got - bias, x.double() @ _rounded(weight).T) < 5 / 7938 * 0.29 * 1.3
    # The weights' own steps are 1 / 127 of the largest of 400, about 3 standard deviations.
    assert _distance(got - bias, x.double() @ weight.double().T) == pytest.approx(0.29 * 3 / 127, rel=0.1)


def test_int8_takes_features_that_dwarf_all_others() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(300, 400), torch.randn(5, 400)
    x[:, [3, 77]] = torch.tensor([100.0, -50.0])  # as transformers have them; the step of one digit would be 1.6
    got, rounded = Int8Linear(weight, None)(x), _rounded(weight)
    # Each of the five rows is rounded to steps of 100 / 7938.
    assert (got.double() - x.double() @ rounded.T).norm() < 100 / 7938 * 0.29 * 5**0.5 * rounded.norm() * 1.3


def test_int8_rows_do_not_affect_each_other() -> None:
    torch.manual_seed(0)
    bias = torch.randn(300)
    layer = Int8Linear(torch.randn(300, 40), bias)
    x = torch.randn(6, 40) * torch.tensor([1e-3, 1.0, 1e3, 5.0, 0.0, 1e-42])[:, None]
    together = layer(x)
    assert torch.equal(together, torch.cat([layer(row[None]) for row in x]))
    assert torch.equal(together[4], bias)
    torch.testing.assert_close(together[5], bias)


def test_first_digits_are_rounded_once() -> None:
    # Just beside a half, two ways of rounding may differ, and then a whole digit is lost.
    halves = torch.arange(-62.5, 63)
    x = torch.cat([halves, *(halves.nextafter(halves + side) for side in (1, -1))])
    layer = Int8Linear(torch.eye(1), None, bound=63.0)
    torch.testing.assert_close(layer(x[:, None])[:, 0], x, rtol=0, atol=0.51 / 126)


def test_many_rows_are_the_rows_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, x = Int8Linear(torch.randn(30, 40), torch.randn(30)), torch.randn(3, 7, 40)
    at_once = layer(x)
    monkeypatch.setattr(decode_weights, "_MOST", 4)
    assert torch.equal(layer(x), at_once)


def test_a_norms_bound_holds_and_is_reached() -> None:
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(256)
    with torch.no_grad():
        norm.weight.uniform_(-2, 2)
        norm.bias.normal_()
        spikes = torch.cat([torch.eye(256), -torch.eye(256)]) * 1e3  # one feature, and nothing else
        largest, bound = norm(spikes).abs().max(), _bound(norm)
        assert bound is not None
        assert 0.95 * bound < largest <= bound
        norm.weight[3] = 60.0  # a gain that would leave all others a coarse step
        assert _bound(norm) is None
        norm.weight.zero_()
        norm.bias.zero_()
        assert _bound(norm) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_diverged_model_does_not_pass_for_a_sound_one(quantize: str | None, bad: float) -> None:
    for place in ("blocks.1.feed_forward.project.weight", "blocks.0.attention.out_proj.weight", "final_norm.bias"):
        model = _model()
        model.transformer.get_parameter(place).view(-1)[0] = bad
        lay_out_for_decoding(model, quantize)
        with pytest.raises(ValueError, match="diverged"):
            generate(model, Tokenizer("bytes"), [[1, 2, 3]], Request(5, Sampling(0)), [0])
        assert not model(torch.tensor([[1, 2, 3]])).isfinite().all()


def _model() -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=257, context_length=32, d_model=64, num_layers=3, num_heads=4, dropout=0.0)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model.requires_grad_(False)


def test_a_model_laid_out_has_its_logits_and_writes_its_texts() -> None:
    tokenizer, ids = Tokenizer("bytes"), torch.randint(257, (3, 32), generator=torch.Generator().manual_seed(1))
    plain, laid_out = _model(), _model()
    lay_out_for_decoding(laid_out)
    torch.testing.assert_close(laid_out(ids), plain(ids), rtol=1e-4, atol=1e-4)
    request = Request(50, Sampling())
    prompts, seeds = [[1, 2, 3], [], [4] * 20], [0, 1, 2]
    texts = [generate(model, tokenizer, prompts, request, seeds) for model in (plain, laid_out)]
    assert texts[0] == texts[1]
    assert [generate(laid_out, tokenizer, [p], request, [s])[0] for p, s in zip(prompts, seeds, strict=True)] == texts[
        0
    ]


def test_int8_predicts_nearly_the_same() -> None:
    ids = torch.randint(257, (2, 32), generator=torch.Generator().manual_seed(1))
    plain, rounded = _model(), _model()
    lay_out_for_decoding(rounded, "int8")
    step, cache, parts = one_token_step(rounded), KVCache(rounded.config, 2), []
    for token in ids.T:
        parts.append(rounded.logits(step(token[:, None], cache)))
        cache.advance([1, 1])
    torch.testing.assert_close(torch.stack(parts, dim=1), rounded(ids), rtol=1e-5, atol=5e-3)  # a second digit flips
    expected, got = plain(ids).log_softmax(-1), rounded(ids).log_softmax(-1)
    divergence = (expected.exp() * (expected - got)).sum(-1).mean()
    entropy = -(expected.exp() * expected).sum(-1).mean()
    assert 0 < divergence < 0.01 * entropy


def test_int8_rows_of_a_batch_are_what_they_are_alone() -> None:
    tokenizer, model = Tokenizer("bytes"), _model()
    lay_out_for_decoding(model, "int8")
    prompts = [[5] * 20, [], [1, 2, 3] * 9, [7]]
    request = Request(40, Sampling(temperature=0))
    together = generate(model, tokenizer, prompts, request, [0] * 4)
    assert together == [generate(model, tokenizer, [prompt], request, [0])[0] for prompt in prompts]


def test_int8_is_refused_where_it_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--quantize int8 is for CPUs"):
        lay_out_for_decoding(_model().to("meta"), "int8")
    lay_out_for_decoding(_model().to("meta"))
