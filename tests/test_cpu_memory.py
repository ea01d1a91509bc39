"""CPU training with less memory has the same loss and gradients and saves fewer activations."""

import copy
import platform
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.transformer import GPT, TransformerBlock
from gpt.training.config import OptimConfig
from gpt.training.cpu_memory import LeanBlock, _RecomputedMLP, reduce_cpu_memory
from gpt.training.optim import build_optimizer

CONFIG = GPTConfig(vocab_size=11, context_length=8, d_model=12, num_layers=2, num_heads=2, dropout=0.0)


def _models(config: GPTConfig = CONFIG) -> tuple[GPT, GPT]:
    """A plain model and a lean model with the same weights."""
    torch.manual_seed(0)
    plain = GPT(config)
    lean = copy.deepcopy(plain)
    reduce_cpu_memory(lean, build_optimizer(lean, OptimConfig()))
    assert all(type(block) is LeanBlock for block in lean.transformer.blocks)
    return plain, lean


def _loss_and_gradients(model: GPT) -> list[Tensor]:
    torch.manual_seed(3)  # dropout
    ids = torch.arange(22).view(2, 11) % 11
    loss = next_token_loss(model.transformer(ids[:, :8]), model.lm_head_weight, ids[:, 1:9])
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_loss_and_gradients_equal_those_of_the_plain_model(dropout: float) -> None:
    plain, lean = _models(GPTConfig(11, 8, 12, 2, 2, dropout))
    torch.testing.assert_close(_loss_and_gradients(lean), _loss_and_gradients(plain), rtol=1e-5, atol=1e-6)


def test_losses_of_three_optimizer_steps_equal_those_of_the_plain_model() -> None:
    losses = []
    for model in _models():
        optimizer = build_optimizer(model, OptimConfig(learning_rate=1e-2))
        losses.append([])
        for _ in range(3):
            loss, *gradients = _loss_and_gradients(model)
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


def test_only_float32_training_uses_recomputation(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, lean = _models()
    ids = torch.arange(8)[None]
    calls: list[bool] = []
    apply = _RecomputedMLP.apply
    monkeypatch.setattr(_RecomputedMLP, "apply", lambda *args: (calls.append(True), apply(*args))[1])
    with torch.no_grad():
        assert torch.equal(lean(ids), plain(ids))
    with torch.autocast("cpu"):
        assert torch.equal(lean(ids), plain(ids))
    assert torch.equal(lean.bfloat16()(ids), plain.bfloat16()(ids))
    assert not calls
    _models()[1](ids)
    assert len(calls) == 2


@pytest.mark.parametrize("chunk", [1, 48, 150, 10**6])
@pytest.mark.parametrize("scale", [0.1, 1.0, 30.0])
def test_the_recomputed_mlp_equals_float64_for_any_chunk_size(
    scale: float, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpt.training.cpu_memory._CHUNK_ACTIVATIONS", chunk)
    torch.manual_seed(0)
    mlp = GPT(CONFIG).transformer.blocks[0].mlp
    exact = copy.deepcopy(mlp).double()
    x = (torch.randn(2, 5, 12) * scale).requires_grad_()
    x64 = x.detach().double().requires_grad_()
    output, expected = _RecomputedMLP.apply(x, *mlp.parameters()), exact(x64)
    torch.testing.assert_close(output.double(), expected, rtol=1e-5, atol=1e-5 * scale)
    weights = torch.linspace(-2, 3, output.numel()).view(output.shape)
    gradients = torch.autograd.grad((output * weights).sum(), [x, *mlp.parameters()])
    expected_gradients = torch.autograd.grad((expected * weights.double()).sum(), [x64, *exact.parameters()])
    tolerances = {"rtol": 1e-5, "atol": 2e-5 * max(1.0, scale), "check_dtype": False}
    torch.testing.assert_close(gradients, expected_gradients, **tolerances)


def _num_saved(run: Callable[[], Tensor], weights: set[int]) -> int:
    """The number of elements that autograd saves, without weights."""
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            saved[tensor.data_ptr()] = tensor.numel()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        run()
    return sum(saved.values())


def test_the_recomputed_mlp_saves_five_vectors_per_token_and_autograd_nine() -> None:
    mlp, x = GPT(CONFIG).transformer.blocks[0].mlp, torch.randn(4, 8, 12, requires_grad=True)
    weights = {parameter.data_ptr() for parameter in mlp.parameters()}
    vectors = 4 * 8 * 12
    assert _num_saved(lambda: _RecomputedMLP.apply(x, *mlp.parameters()), weights) == 5 * vectors
    assert _num_saved(lambda: mlp(x), weights) == 9 * vectors


def test_the_preallocated_optimizer_state_equals_that_of_adamw() -> None:
    model, expected = GPT(CONFIG), GPT(CONFIG)
    optimizer = build_optimizer(model, OptimConfig())
    reduce_cpu_memory(model, optimizer)
    plain = torch.optim.AdamW(expected.parameters(), fused=True)
    for parameter in expected.parameters():
        parameter.grad = torch.zeros_like(parameter)
    plain.step()
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        assert optimizer.state[ours].keys() == plain.state[theirs].keys()
        for name, value in plain.state[theirs].items():
            allocated = optimizer.state[ours][name]
            assert (allocated.dtype, allocated.shape) == (value.dtype, value.shape)
            assert not allocated.any()


def test_state_dict_keys_are_unchanged() -> None:
    plain, lean = _models()
    assert list(lean.state_dict()) == list(plain.state_dict())
    assert all(type(block) is TransformerBlock for block in plain.transformer.blocks)


# In a separate process, since the setting applies until the process ends.
SCRIPT = """
import resource, sys
import torch
from gpt.training.cpu_memory import disable_malloc_trim
if sys.argv[1] == "untrimmed":
    assert disable_malloc_trim()
def faults():
    torch.empty(10_000_000).fill_(1.0)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):  # until freed blocks are reused
    before = faults()
for _ in range(5):
    after = faults()
print(after - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_without_malloc_trim_memory_is_reused_without_page_faults() -> None:
    faults = {
        mode: int(subprocess.check_output([sys.executable, "-c", SCRIPT, mode])) for mode in ("untrimmed", "default")
    }
    # 40 MB are 9,765 pages (fewer faults with large pages), five times.
    assert faults["untrimmed"] < 100
    assert faults["default"] > 10 * faults["untrimmed"] + 100
