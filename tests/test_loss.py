from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from gpt.data.windows import IGNORED
from gpt.model import loss as loss_module
from gpt.model.loss import next_token_loss
from gpt.training.trainer import compiler_error


def _plain(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    logits = (hidden @ weight.T).flatten(0, -2)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")


@pytest.mark.parametrize("chunk_logits", [1, 7 * 101, 10**9])
def test_loss_and_gradients_equal_cross_entropy_for_any_chunk_size(
    chunk_logits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_LOGITS", chunk_logits)
    torch.manual_seed(0)
    hidden = torch.randn(3, 10, 16, requires_grad=True)
    weight = torch.randn(101, 16, requires_grad=True)
    targets = torch.randint(0, 101, (3, 10))
    targets[0, :4] = IGNORED
    ours = next_token_loss(hidden, weight, targets)
    theirs = _plain(hidden.double(), weight.double(), targets)
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=0)
    scale = 0.37  # the backward pass must use the incoming gradient
    gradients = [torch.autograd.grad(value * scale, (hidden, weight)) for value in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-6)


def test_the_loss_without_gradients_has_the_same_value() -> None:
    torch.manual_seed(1)
    hidden, weight = torch.randn(8, 16), torch.randn(50, 16, requires_grad=True)
    targets = torch.randint(0, 50, (8,))
    with torch.no_grad():
        value = next_token_loss(hidden, weight, targets)
    assert not value.requires_grad
    torch.testing.assert_close(value, next_token_loss(hidden, weight, targets).detach())


def test_uniform_logits_have_a_loss_of_log_vocab_size() -> None:
    value = next_token_loss(torch.zeros(5, 4), torch.randn(64, 4), torch.arange(5))
    torch.testing.assert_close(value, 5 * torch.tensor(64.0).log())


def test_ignored_targets_add_no_loss_and_no_gradient() -> None:
    torch.manual_seed(2)
    hidden = torch.randn(6, 4, requires_grad=True)
    weight = torch.randn(9, 4)
    value = next_token_loss(hidden, weight, torch.full((6,), IGNORED))
    assert value == 0
    value.backward()
    assert torch.equal(hidden.grad, torch.zeros_like(hidden))


def _padded(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, compiled: bool = False) -> torch.Tensor:
    """The loss as CUDA computes it, on the CPU."""
    chunks = loss_module._cuda_chunks(hidden, weight, len(targets), compiled)
    loss: torch.Tensor = loss_module._ChunkedCrossEntropy.apply(hidden, weight, targets, *chunks)  # type: ignore[no-untyped-call]
    return loss


@pytest.mark.parametrize("chunk_logits", [1, 7 * 128, 10**9])
@pytest.mark.parametrize("vocab_size", [101, 128])
def test_the_cuda_loss_equals_the_plain_loss_and_gradients(
    chunk_logits: int, vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "CUDA_CHUNK_LOGITS", chunk_logits)
    shapes: list[tuple[int, ...]] = []
    original = loss_module._loss_and_gradients
    monkeypatch.setattr(
        loss_module, "_loss_and_gradients", lambda *args: (shapes.extend(x.shape for x in args[:2]), original(*args))[1]
    )
    torch.manual_seed(0)
    # Far from 0, so that including the logits of padded ids would change the loss.
    hidden = (torch.randn(30, 16) - 3).requires_grad_()
    weight = (torch.randn(vocab_size, 16) + 1).requires_grad_()
    targets = torch.randint(0, vocab_size, (30,))
    targets[:4] = IGNORED
    ours, theirs = _padded(hidden, weight, targets), _plain(hidden.double(), weight.double(), targets)
    torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=0)
    tokens = {1: 1, 7 * 128: 1, 10**9: 30}[chunk_logits]  # uncompiled: a power of two, a quarter of the logits
    assert shapes == [(tokens, 16), (128, 16)] * (30 // tokens)
    gradients = [torch.autograd.grad(value * 0.37, (hidden, weight)) for value in (ours, theirs)]
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", [next_token_loss, _padded])
def test_bfloat16_autocast_is_close_to_float64(form: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(3)
    hidden, weight = torch.randn(40, 32, requires_grad=True), (torch.randn(200, 32) / 6).requires_grad_()
    targets = torch.randint(0, 200, (40,))
    with torch.autocast("cpu", torch.bfloat16):
        value = form(hidden, weight, targets)
    assert value.dtype == torch.float32
    exact = _plain(hidden.double(), weight.double(), targets)
    torch.testing.assert_close(value.double(), exact, rtol=5e-3, atol=0)
    for got, expected in zip(*(torch.autograd.grad(v, (hidden, weight)) for v in (value, exact)), strict=True):
        assert got.dtype == torch.float32
        assert (got - expected).norm() < 0.01 * expected.norm()


def test_the_cuda_loss_compiles_to_one_graph() -> None:
    if error := compiler_error(torch.device("cpu")):
        pytest.skip(f"torch cannot compile here: {error}")
    torch.manual_seed(0)
    hidden, weight = torch.randn(30, 16, requires_grad=True), torch.randn(101, 16, requires_grad=True)
    targets = torch.randint(0, 101, (30,))
    torch._dynamo.utils.counters.clear()
    values = [_padded(hidden, weight, targets, compiled) for compiled in (False, True)]
    assert not torch._dynamo.utils.counters["graph_break"]
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    torch.testing.assert_close(values[1], values[0])
    torch.testing.assert_close(*(torch.autograd.grad(value, (hidden, weight)) for value in values))


def test_only_cuda_pads_the_lm_head(monkeypatch: pytest.MonkeyPatch) -> None:
    class OnCuda(torch.Tensor):
        device = torch.device("cuda")

    monkeypatch.setattr(loss_module, "_cuda_chunks", lambda *args: ("cuda", []))
    monkeypatch.setattr(loss_module._ChunkedCrossEntropy, "apply", lambda *args: args[3])
    hidden, weight, targets = torch.randn(3, 4), torch.randn(5, 4, requires_grad=True), torch.arange(3)
    assert next_token_loss(hidden.as_subclass(OnCuda), weight, targets) == "cuda"  # type: ignore[comparison-overlap]
    assert next_token_loss(hidden, weight, targets) != "cuda"  # type: ignore[comparison-overlap]


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_loss_and_gradients_on_a_gpu_equal_those_on_a_cpu(compiled: bool) -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(300, 64), torch.randn(1001, 64)
    targets = torch.randint(0, 1001, (300,))
    results = []
    for device in ("cpu", "cuda"):
        x, w = hidden.to(device).requires_grad_(), weight.to(device).requires_grad_()
        value = next_token_loss(x, w, targets.to(device), compiled)
        results.append([value, *torch.autograd.grad(value, (x, w))])
    for got, expected in zip(results[1], results[0], strict=True):
        assert (got.cpu() - expected).norm() < 2e-3 * expected.norm()  # matrix products in TF32


class _LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that an operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return result


@pytest.mark.parametrize("num_tokens,vocab_size", [(64, 1000), (512, 1000), (64, 8000), (512, 8000)])
def test_memory_does_not_grow_with_tokens_times_vocab_size(
    num_tokens: int, vocab_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss_module, "CHUNK_LOGITS", 16_000)
    hidden = torch.randn(num_tokens, 8, requires_grad=True)
    weight = torch.randn(vocab_size, 8, requires_grad=True)
    with _LargestTensor() as largest:
        next_token_loss(hidden, weight, torch.zeros(num_tokens, dtype=torch.int64)).backward()
    assert largest.numel <= max(16_000, weight.numel())
