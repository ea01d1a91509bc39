import pytest
import torch
from torch import nn

from gpt.model.attention import MultiHeadAttention


@pytest.mark.parametrize("qkv_bias", [False, True])
def test_output_equals_torch_multihead_attention(qkv_bias: bool) -> None:
    torch.manual_seed(0)
    ours = MultiHeadAttention(16, 16, 12, 0.0, num_heads=4, qkv_bias=qkv_bias)
    theirs = nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.qkv.weight)
        theirs.in_proj_bias.copy_(ours.qkv.bias if qkv_bias else torch.zeros(48))
        theirs.out_proj.load_state_dict(ours.out_proj.state_dict())
    x = torch.randn(3, 12, 16)
    future = torch.ones(12, 12, dtype=torch.bool).triu(1)
    expected, _ = theirs(x, x, x, attn_mask=future, need_weights=False)
    torch.testing.assert_close(ours(x), expected)


def test_changing_a_token_leaves_earlier_outputs_bit_equal() -> None:
    torch.manual_seed(1)
    attention = MultiHeadAttention(8, 8, 10, 0.0, num_heads=2)
    x = torch.randn(2, 10, 8)
    before = attention(x)
    for t in range(10):
        changed = x.clone()
        changed[:, t] += 1.0
        after = attention(changed)
        assert torch.equal(after[:, :t], before[:, :t])
        assert not torch.equal(after[:, t], before[:, t])


def test_dropout_applies_to_attention_weights_in_training_only() -> None:
    torch.manual_seed(2)
    attention = MultiHeadAttention(8, 8, 32, dropout=0.5, num_heads=2)
    with torch.no_grad():
        attention.out_proj.weight.copy_(torch.eye(8))
    x = torch.randn(1, 32, 8)
    attention.eval()
    plain = attention(x)
    assert torch.equal(plain, attention(x))
    attention.train()
    first, second = attention(x), attention(x)
    assert not torch.equal(first, second)
    # Inverted dropout preserves the expectation: the mean of many samples approaches the output without dropout.
    mean = attention(x.expand(4000, 32, 8)).mean(0)
    assert (mean - plain).abs().max() < 0.05


def test_d_out_not_divisible_by_num_heads_is_refused() -> None:
    with pytest.raises(ValueError, match=r"10.*3"):
        MultiHeadAttention(4, 10, 6, 0.0, num_heads=3)


def test_a_sequence_longer_than_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match=r"7.*6"):
        MultiHeadAttention(4, 4, 6, 0.0, num_heads=2)(torch.zeros(1, 7, 4))


@pytest.mark.gpu
def test_output_on_a_gpu_equals_output_on_a_cpu() -> None:
    torch.manual_seed(4)
    attention = MultiHeadAttention(64, 64, 128, 0.0, num_heads=4)
    x = torch.randn(2, 128, 64)
    torch.testing.assert_close(attention.cuda()(x.cuda()).cpu(), attention.cpu()(x), atol=1e-3, rtol=1e-3)
