import pytest
import torch
import torch.nn.functional as F

from gpt.model.gelu import gelu

X = torch.cat([torch.linspace(-12, 12, 10_001), torch.tensor([0.0, -1e4, 1e4])])


def test_value_and_slope_are_those_of_the_tanh_gelu_in_float64() -> None:
    exact = X.double().requires_grad_()
    value = F.gelu(exact, approximate="tanh")
    (slope,) = torch.autograd.grad(value.sum(), exact)
    ours = X.clone().requires_grad_()
    (our_slope,) = torch.autograd.grad((gelu(ours) * 3).sum(), ours)  # times 3: backward honours what it is given
    torch.testing.assert_close(gelu(ours).double(), value, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(our_slope.double(), 3 * slope, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes_are_kept(dtype: torch.dtype) -> None:
    x = X.to(dtype).requires_grad_()
    assert torch.equal(gelu(x), F.gelu(x, approximate="tanh"))


def test_without_gradients_it_is_torchs() -> None:
    assert torch.equal(gelu(X), F.gelu(X, approximate="tanh"))


def test_gradients_of_any_shape_and_layout() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, dtype=torch.float32).T.requires_grad_()
    expected = x.detach().clone().requires_grad_()
    gelu(x).square().sum().backward()
    F.gelu(expected, approximate="tanh").square().sum().backward()
    torch.testing.assert_close(x.grad, expected.grad)
