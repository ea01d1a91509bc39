import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from gpt.model.config import GPTConfig
from gpt.model.feed_forward import FeedForward

CONFIG = GPTConfig(vocab_size=10, context_length=8, d_model=12, num_layers=1, num_heads=1)


def _plain(module: FeedForward, x: Tensor) -> Tensor:
    return module.project(F.gelu(module.expand(x), approximate="tanh"))


def _gradients(module: FeedForward, output: Tensor, x: Tensor) -> list[Tensor]:
    weighted = (output * torch.linspace(-2, 3, output.numel(), dtype=output.dtype).view(output.shape)).sum()
    return list(torch.autograd.grad(weighted, [x, *module.parameters()]))


@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_value_and_gradients_are_those_of_the_plain_form_in_float64(scale: float) -> None:
    torch.manual_seed(0)
    module = FeedForward(CONFIG)
    exact = FeedForward(CONFIG).double()
    exact.load_state_dict(module.state_dict())
    x = (torch.randn(2, 5, 12) * scale).requires_grad_()
    x64 = x.detach().double().requires_grad_()
    output, expected = module(x), _plain(exact, x64)
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5 * scale)
    for ours, theirs in zip(_gradients(module, output, x), _gradients(exact, expected, x64), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=2e-5 * max(1.0, scale))


def test_without_gradients_and_in_other_dtypes_it_is_the_plain_form() -> None:
    torch.manual_seed(0)
    module, x = FeedForward(CONFIG), torch.randn(2, 5, 12)
    with torch.no_grad():
        assert torch.equal(module(x), _plain(module, x))
    module.bfloat16()
    x = x.bfloat16().requires_grad_()
    assert torch.equal(module(x), _plain(module, x))


def test_it_keeps_a_third_of_what_autograd_would() -> None:
    module, x = FeedForward(CONFIG), torch.randn(4, 8, 12, requires_grad=True)
    kept: dict[int, int] = {}

    def count(run: object) -> int:
        kept.clear()
        weights = {parameter.data_ptr() for parameter in module.parameters()}

        def pack(tensor: Tensor) -> Tensor:
            if tensor.data_ptr() not in weights:
                kept[tensor.data_ptr()] = tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            run(module, x)  # type: ignore[operator]
        return sum(kept.values())

    tokens = 4 * 8 * 12
    assert count(lambda module, x: module(x)) == 5 * tokens  # x, and the expanded vectors
    assert count(_plain) == 9 * tokens  # and the activated ones


@pytest.mark.parametrize("numbers", [1, 48, 150, 10**6])
def test_the_size_of_the_chunks_changes_nothing(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    module, x = FeedForward(CONFIG), torch.randn(2, 5, 12, requires_grad=True)
    expected = _plain(module, x)
    monkeypatch.setattr("gpt.model.feed_forward._CHUNK_NUMBERS", numbers)
    output = module(x)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-6)
    for ours, theirs in zip(_gradients(module, output, x), _gradients(module, expected, x), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
