"""Keeping a recipe: the same gradients to the last bit, and less is kept."""

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from gpt.model.config import GPTConfig
from gpt.model.recompute import recomputed, trains_on_cpu
from gpt.model.transformer import TransformerBlock

CONFIG = GPTConfig(vocab_size=10, context_length=8, d_model=16, num_layers=1, num_heads=2, dropout=0.1, qkv_bias=True)


def _plain(block: TransformerBlock, x: Tensor) -> Tensor:
    x = x + block.dropout(block.attention(block.attention_norm(x)))
    return x + block.dropout(block.feed_forward(block.feed_forward_norm(x)))


def _gradients(block: TransformerBlock, forward: object, x: Tensor) -> list[Tensor]:
    torch.manual_seed(3)  # dropout
    output = forward(x)  # type: ignore[operator]
    return [output, *torch.autograd.grad(output.square().sum(), [x, *block.parameters()])]


def test_a_block_has_the_same_gradients_to_the_last_bit() -> None:
    torch.manual_seed(0)
    block, x = TransformerBlock(CONFIG), torch.randn(3, 8, 16, requires_grad=True)
    ours = _gradients(block, block, x)
    plain = _gradients(block, lambda x: _plain(block, x), x)
    assert all(torch.equal(one, other) for one, other in zip(ours, plain, strict=True))


def test_the_normalised_copies_are_not_kept() -> None:
    block, x = TransformerBlock(CONFIG), torch.randn(3, 8, 16, requires_grad=True)
    copies: list[weakref.ref[Tensor]] = []
    hooks = [
        norm.register_forward_hook(lambda _, inputs, output: copies.append(weakref.ref(output.untyped_storage())))
        for norm in (block.attention_norm, block.feed_forward_norm)
    ]
    output = block(x)
    gc.collect()
    assert [copy() for copy in copies] == [None, None]
    for hook in hooks:
        hook.remove()
    output.sum().backward()


def test_other_tensors_are_kept_as_they_are() -> None:
    linear, x = nn.Linear(4, 4), torch.randn(2, 4, requires_grad=True)
    calls = []

    def recipe() -> Tensor:
        calls.append(1)
        return x.detach() * 2

    doubled = x * 2
    with recomputed(doubled, recipe):
        other = linear(torch.relu(x))  # never sees the tensor
    other.sum().backward()
    assert not calls
    with recomputed(doubled, recipe):
        used = linear(doubled.view(1, 2, 4))
    used.sum().backward()
    assert len(calls) == 1
    assert linear.weight.grad is not None


def test_nothing_stays_behind_after_a_backward_pass() -> None:
    block = TransformerBlock(CONFIG)
    x = torch.randn(3, 8, 16, requires_grad=True)
    hidden = x * 1
    gone = weakref.ref(hidden)
    block(hidden).sum().backward()
    del hidden
    gc.disable()  # a cycle would have to wait for it
    try:
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("dtype,expected", [(torch.float32, True), (torch.bfloat16, False)])
def test_where_it_applies(dtype: torch.dtype, expected: bool) -> None:
    x = torch.zeros(1, dtype=dtype)
    assert trains_on_cpu(x) is expected
    with torch.no_grad():
        assert not trains_on_cpu(x)
    with torch.autocast("cpu"):
        assert not trains_on_cpu(x)
