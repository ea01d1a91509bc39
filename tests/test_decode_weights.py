import pytest
import torch
import torch.nn.functional as F

from gpt.generation.decode_weights import DecodingLinear, Int8Linear, lay_out_for_decoding, one_token_step
from gpt.generation.generate import Request, generate
from gpt.generation.sampling import Sampling
from gpt.model.config import GPTConfig
from gpt.model.kv_cache import KVCache
from gpt.model.transformer import GPT
from gpt.tokenizer import Tokenizer


@pytest.mark.parametrize("shape", [(1,), (2,), (3, 2), (64,), (65,), (2, 50), (1, 1)])
@pytest.mark.parametrize("fan_out", [257, 64, 1])
@pytest.mark.parametrize("with_bias", [True, False])
def test_the_layout_changes_no_number(shape: tuple[int, ...], fan_out: int, with_bias: bool) -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(fan_out, 24), torch.randn(*shape, 24)
    bias = torch.randn(fan_out) if with_bias else None
    expected = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    torch.testing.assert_close(DecodingLinear(weight, bias)(x).double(), expected, rtol=1e-5, atol=1e-5)


def _error(layer: Int8Linear, weight: torch.Tensor, x: torch.Tensor) -> float:
    exact = x.double() @ weight.double().T
    return float((layer(x).double() - exact).norm() / exact.norm())


def test_int8_is_off_by_what_rounding_explains() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(300, 400), torch.randn(5, 400)
    layer = Int8Linear(weight, None)
    # Weights have 127 steps to their largest (about 3 standard deviations), inputs 64: a step is 0.03 and 0.05 of
    # one, and rounding is uniform within it, that is a standard deviation of 0.29 of a step.
    expected = 0.29 * (0.025**2 + 0.045**2) ** 0.5
    assert _error(layer, weight, x) == pytest.approx(expected, rel=0.4)
    # A few features that dwarf all others, as transformers have them, cost nothing.
    x[:, [3, 77]] *= 1000
    assert _error(layer, weight, x) < expected


def test_int8_rows_do_not_affect_each_other() -> None:
    torch.manual_seed(0)
    layer = Int8Linear(torch.randn(300, 40), torch.randn(300))
    x = torch.randn(6, 40) * torch.tensor([1e-3, 1.0, 1e3, 5.0, 0.0, 2.0])[:, None]
    together = layer(x)
    for row, alone in zip(together, x, strict=True):
        torch.testing.assert_close(row, layer(alone[None])[0], rtol=1e-6, atol=1e-6)


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
    assert torch.equal(rounded(ids).argmax(-1), plain(ids).argmax(-1))  # a prompt is not rounded
    step, cache, parts = one_token_step(rounded), KVCache(rounded.config, 2), []
    for token in ids.T:
        parts.append(rounded.logits(step(token[:, None], cache)))
        cache.advance([1, 1])
    expected, got = plain(ids).log_softmax(-1), torch.stack(parts, dim=1).log_softmax(-1)
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
