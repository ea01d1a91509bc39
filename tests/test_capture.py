import pytest
import torch
from torch import nn

from gpt.attention_maps.capture import attention_maps, capture_attention, causal_attention_logits
from gpt.attention_maps.probes import Probe
from gpt.model.attention import MultiHeadAttention
from gpt.model.config import GPTConfig
from gpt.model.transformer import GPT


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=50, context_length=20, d_model=32, num_layers=3, num_heads=4, dropout=0.5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


TOKEN_IDS = torch.randint(0, 50, (2, 17), generator=torch.Generator().manual_seed(1))


def _probe(token_ids: list[int]) -> Probe:
    return Probe("text", tuple(token_ids), ("",) * len(token_ids), ("",) * len(token_ids))


def test_rows_sum_to_one_and_future_keys_are_exactly_zero(model: GPT) -> None:
    maps = attention_maps(model, TOKEN_IDS)
    assert maps.shape == (3, 2, 4, 17, 17)
    torch.testing.assert_close(maps.sum(-1), torch.ones(3, 2, 4, 17))
    assert torch.equal(maps.triu(1), torch.zeros_like(maps))


def test_maps_times_values_is_the_fused_output(model: GPT) -> None:
    model.eval()
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []

    def record(module: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        seen.append((inputs[0], output))

    modules = [module for module in model.modules() if isinstance(module, MultiHeadAttention)]
    hooks = [module.register_forward_hook(record) for module in modules]
    with torch.no_grad():
        model(TOKEN_IDS)
    for hook in hooks:
        hook.remove()
    for module, (x, output), weights in zip(modules, seen, attention_maps(model, TOKEN_IDS), strict=True):
        context = weights @ module.split_qkv(module.qkv(x))[2]
        torch.testing.assert_close(module.out_proj(context.transpose(1, 2).flatten(2)), output, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_restored(model: GPT, training: bool) -> None:
    model.train(training)
    state = torch.get_rng_state()
    first, second = attention_maps(model, TOKEN_IDS), attention_maps(model, TOKEN_IDS)
    assert torch.equal(first, second)  # dropout is off
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training is training for module in model.modules())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_the_model_is_restored_after_an_error(model: GPT) -> None:
    model.train()
    with pytest.raises(ValueError, match=r"21.*20"):
        attention_maps(model, torch.zeros(1, 21, dtype=torch.long))
    assert model.training
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_maps_equal_those_of_transformers(model: GPT) -> None:
    from tests.huggingface_twin import huggingface_twin

    ours, theirs = huggingface_twin(
        GPTConfig(vocab_size=97, context_length=24, d_model=32, num_layers=3, num_heads=4, dropout=0.0)
    )
    theirs.set_attn_implementation("eager")
    token_ids = torch.randint(0, 97, (2, 24))
    with torch.no_grad():
        expected = torch.stack(theirs.eval()(token_ids, output_attentions=True).attentions)
    torch.testing.assert_close(attention_maps(ours, token_ids), expected, atol=1e-5, rtol=1e-4)


def test_probes_of_different_lengths_do_not_affect_each_other(model: GPT) -> None:
    texts = [[1, 2, 3], list(range(17)), [4, 5]]
    probes = [_probe(text) for text in texts]
    for text, probe, capture in zip(texts, probes, capture_attention(model, probes), strict=True):
        alone = attention_maps(model, torch.tensor([text]))[:, 0]
        torch.testing.assert_close(capture.maps, alone, atol=1e-6, rtol=1e-5)
        assert capture.maps.shape == (3, 4, len(text), len(text))
        assert capture.probe is probe


def test_the_largest_logit_ignores_future_keys(model: GPT) -> None:
    model.eval()
    seen: list[torch.Tensor] = []
    hook = model.transformer.blocks[0].attention.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    ids = TOKEN_IDS[0].tolist()
    with torch.no_grad():
        model(TOKEN_IDS[:1])
    hook.remove()
    with torch.no_grad():
        attention = model.transformer.blocks[0].attention
        queries, keys, _ = attention.split_qkv(attention.qkv(seen[0]))  # (1, 4, 17, 8)
    expected = [
        max(float(queries[0, h, i] @ keys[0, h, j]) / 8**0.5 for i in range(17) for j in range(i + 1)) for h in range(4)
    ]
    assert capture_attention(model, [_probe(ids)])[0].max_logits[0].tolist() == pytest.approx(expected, abs=1e-5)


def test_softmax_of_the_logits_times_values_is_the_fused_output() -> None:
    torch.manual_seed(3)
    attention = MultiHeadAttention(12, 12, 20, 0.0, num_heads=3, qkv_bias=True)
    x = torch.randn(2, 20, 12)
    queries, keys, values = attention.split_qkv(attention.qkv(x))
    assert queries.shape == keys.shape == values.shape == (2, 3, 20, 4)
    weights = causal_attention_logits(queries, keys).softmax(-1)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 20))
    assert torch.equal(weights.triu(1), torch.zeros_like(weights))
    context = (weights @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(attention.out_proj(context), attention(x))


def test_predictions_are_those_of_the_model_on_each_probe_alone(model: GPT) -> None:
    texts = [TOKEN_IDS[0].tolist(), TOKEN_IDS[1, :9].tolist()]
    for text, capture in zip(
        texts, capture_attention(model, [_probe(ids) for ids in texts], "<{}>".format), strict=True
    ):
        with torch.no_grad():
            log_probabilities = model.eval()(torch.tensor([text]))[0].double().log_softmax(-1)
        assert capture.predictions is not None
        expected = [-log_probabilities[i, text[i + 1]].item() for i in range(len(text) - 1)]
        assert capture.predictions.losses.tolist() == pytest.approx(expected, abs=1e-5)
        for i, row in enumerate(log_probabilities.exp()):
            best = sorted(range(50), key=lambda token: -float(row[token]))[:5]
            assert capture.predictions.likeliest[i] == [f"<{token}>" for token in best]
            assert capture.predictions.probabilities[i].tolist() == pytest.approx(row[best].tolist(), abs=1e-6)
        assert capture.ablation is None
