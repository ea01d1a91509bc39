import copy

import pytest
import torch
import torch.nn.functional as F

from gpt.errors import UserError
from gpt.generation import packed
from gpt.generation.generate import Request, generate
from gpt.generation.packed import Int8Linear, PackedGPT, PackedLinear, _bound, _norm
from gpt.generation.sampling import Sampling
from gpt.model.config import GPTConfig
from gpt.model.kv_cache import KVCache
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer
from tests.runs import same_tensors


@pytest.mark.parametrize("shape", [(1,), (2,), (3, 2), (64,), (65,), (2, 50), (1, 1)])
@pytest.mark.parametrize("fan_out", [257, 64, 1])
@pytest.mark.parametrize("fan_in", [24, 7])
@pytest.mark.parametrize("with_bias", [True, False])
def test_packed_linear_equals_float64(shape: tuple[int, ...], fan_out: int, fan_in: int, with_bias: bool) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(fan_out, fan_in), torch.randn(*shape, fan_in)
    bias = torch.randn(fan_out) if with_bias else None
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(PackedLinear(weight, bias)(x).double(), expected, rtol=1e-5, atol=1e-5)


def _rounded(weight: torch.Tensor) -> torch.Tensor:
    """Round the weights of each output to 127 steps of its largest, in float64."""
    steps = weight.double().abs().amax(dim=1, keepdim=True) / 127
    return (weight / steps).round() * steps


def _relative_error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("bound", [None, 5.0])
@pytest.mark.parametrize("shape", [(1,), (7,), (3, 1), (2, 5), (1, 1)])
def test_int8_rounds_weights_to_8_bits_and_inputs_to_13(shape: tuple[int, ...], bound: float | None) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(300, 400), torch.randn(300), torch.randn(*shape, 400).clamp(-5, 5)
    layer = Int8Linear(weight, bias, bound)
    got = layer(x)
    assert got.shape == (*shape, 300)
    # Two digits of 63 and 126 steps: rounding is uniform within 1 / 7938 of the largest, here 5 at most.
    assert _relative_error(got - bias, x.double() @ _rounded(weight).T) < 5 / 7938 * 0.29 * 1.3
    # The steps of the weights are 1 / 127 of the largest of 400, about 3 standard deviations.
    assert _relative_error(got - bias, x.double() @ weight.double().T) == pytest.approx(0.29 * 3 / 127, rel=0.1)


def test_int8_represents_outlier_features() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(300, 400), torch.randn(5, 400)
    x[:, [3, 77]] = torch.tensor([100.0, -50.0])  # with one digit the rounding step would be 1.6
    got, rounded = Int8Linear(weight, None)(x), _rounded(weight)
    # Each of the five inputs is rounded to steps of 100 / 7938.
    assert (got.double() - x.double() @ rounded.T).norm() < 100 / 7938 * 0.29 * 5**0.5 * rounded.norm() * 1.3


def test_int8_sequences_do_not_affect_each_other() -> None:
    torch.manual_seed(0)
    bias = torch.randn(300)
    layer = Int8Linear(torch.randn(300, 40), bias)
    x = torch.randn(6, 40) * torch.tensor([1e-3, 1.0, 1e3, 5.0, 0.0, 1e-42])[:, None]
    together = layer(x)
    assert torch.equal(together, torch.cat([layer(sequence[None]) for sequence in x]))
    assert torch.equal(together[4], bias)
    torch.testing.assert_close(together[5], bias)


def test_values_next_to_a_half_are_rounded_consistently() -> None:
    # If the two digits rounded a value next to a half differently, the error would be a whole first digit.
    halves = torch.arange(-62.5, 63)
    x = torch.cat([halves, *(halves.nextafter(halves + side) for side in (1, -1))])
    layer = Int8Linear(torch.eye(1), None, bound=63.0)
    torch.testing.assert_close(layer(x[:, None])[:, 0], x, rtol=0, atol=0.51 / 126)


def test_int8_outputs_do_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    layer, x = Int8Linear(torch.randn(30, 40), torch.randn(30)), torch.randn(3, 7, 40)
    at_once = layer(x)
    monkeypatch.setattr(packed, "_MAX_INT8_TOKENS", 4)
    assert torch.equal(layer(x), at_once)


def test_the_bound_of_a_layer_norm_is_tight() -> None:
    torch.manual_seed(0)
    norm = torch.nn.LayerNorm(256)
    with torch.no_grad():
        norm.weight.uniform_(-2, 2)
        norm.bias.normal_()
        spikes = torch.cat([torch.eye(256), -torch.eye(256)]) * 1e3  # a single feature
        largest, bound = norm(spikes).abs().max(), _bound(*_norm(norm))
        assert bound is not None
        assert 0.95 * bound < largest <= bound
        norm.weight[3] = 60.0  # a bound from this gain would make the steps of all other features too coarse
        assert _bound(*_norm(norm)) is None
        norm.weight.zero_()
        norm.bias.zero_()
        assert _bound(*_norm(norm)) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("quantize", [None, "int8"])
def test_a_diverged_model_is_detected(quantize: str | None, bad: float) -> None:
    for place in ("blocks.1.mlp.fc_out.weight", "blocks.0.attention.out_proj.weight", "final_norm.bias"):
        model = _model()
        model.transformer.get_parameter(place).view(-1)[0] = bad
        decoder = PackedGPT(model, quantize)
        with pytest.raises(UserError, match="diverged"):
            generate(decoder, Tokenizer("bytes"), [[1, 2, 3]], Request(5, Sampling(0)), [0])
        assert not decoder(torch.tensor([[1, 2, 3]])).isfinite().all()


def _model() -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=257, context_length=32, d_model=64, num_layers=3, num_heads=4, dropout=0.0)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    return model.requires_grad_(False)


def test_a_packed_model_has_the_same_logits_and_texts() -> None:
    tokenizer, ids = Tokenizer("bytes"), torch.randint(257, (3, 32), generator=torch.Generator().manual_seed(1))
    plain = _model()
    packed = PackedGPT(plain)
    torch.testing.assert_close(packed(ids), plain(ids), rtol=1e-4, atol=1e-4)
    request = Request(50, Sampling())
    prompts, seeds = [[1, 2, 3], [], [4] * 20], [0, 1, 2]
    texts = [generate(model, tokenizer, prompts, request, seeds) for model in (plain, packed)]
    assert texts[0] == texts[1]
    assert [generate(packed, tokenizer, [p], request, [s])[0] for p, s in zip(prompts, seeds, strict=True)] == texts[0]


def test_the_kl_divergence_of_int8_is_below_a_hundredth_of_the_entropy() -> None:
    ids = torch.randint(257, (2, 32), generator=torch.Generator().manual_seed(1))
    plain = _model()
    rounded = PackedGPT(plain, "int8")
    cache, parts = KVCache(rounded.config, 2), []
    for token in ids.T:
        parts.append(rounded.logits(rounded.transformer(token[:, None], cache=cache))[:, 0])
        cache.advance([1, 1])
    torch.testing.assert_close(torch.stack(parts, dim=1), rounded(ids), rtol=1e-5, atol=5e-3)  # a second digit flips
    expected, got = plain(ids).log_softmax(-1), rounded(ids).log_softmax(-1)
    divergence = (expected.exp() * (expected - got)).sum(-1).mean()
    entropy = -(expected.exp() * expected).sum(-1).mean()
    assert 0 < divergence < 0.01 * entropy


def test_int8_text_does_not_depend_on_the_batch() -> None:
    tokenizer, model = Tokenizer("bytes"), PackedGPT(_model(), "int8")
    prompts = [[5] * 20, [], [1, 2, 3] * 9, [7]]
    request = Request(40, Sampling(temperature=0))
    together = generate(model, tokenizer, prompts, request, [0] * 4)
    assert together == [generate(model, tokenizer, [prompt], request, [0])[0] for prompt in prompts]


def test_packing_does_not_modify_the_model_which_can_be_trained_further() -> None:
    model = GPT(GPTConfig(vocab_size=257, context_length=8, d_model=8, num_layers=1, num_heads=2, dropout=0.0))
    before = copy.deepcopy(model.state_dict())
    packed, ids = PackedGPT(model), torch.arange(8)[None]
    expected = packed(ids).clone()
    assert same_tensors(model.state_dict(), before)
    assert model.training
    model(ids).square().sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= parameter.grad
    assert torch.equal(packed(ids), expected)  # a copy of every weight
    assert not torch.allclose(model(ids), expected)


def test_documents_are_masked_as_in_the_unpacked_model() -> None:
    model, ids = _model(), torch.tensor([[1, 256, 5, 6, 256, 7]])
    documents = (ids == 256).cumsum(dim=1)
    packed = PackedGPT(model)
    expected = model.transformer(ids, documents)
    torch.testing.assert_close(packed.transformer(ids, documents), expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(packed.transformer(ids), expected, rtol=1e-2)


def test_packing_on_another_device_is_refused() -> None:
    with pytest.raises(UserError, match="choose device cpu"):
        PackedGPT(_model().to("meta"), "int8")
