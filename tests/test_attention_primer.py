"""The notes' printed tables, copied from them, and the relations between their steps."""

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from gpt.attention_maps.capture import causal_attention_logits
from gpt.model import attention_primer as primer
from gpt.model.attention import MultiHeadAttention

CAUSAL_WEIGHTS = [
    [1.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
    [0.5517, 0.4483, 0.0000, 0.0000, 0.0000, 0.0000],
    [0.3800, 0.3097, 0.3103, 0.0000, 0.0000, 0.0000],
    [0.2758, 0.2460, 0.2462, 0.2319, 0.0000, 0.0000],
    [0.2175, 0.1983, 0.1984, 0.1888, 0.1971, 0.0000],
    [0.1935, 0.1663, 0.1666, 0.1542, 0.1666, 0.1529],
]
CAUSAL_CONTEXT = [
    [-0.4519, 0.2216],
    [-0.5874, 0.0058],
    [-0.6300, -0.0632],
    [-0.5675, -0.0843],
    [-0.5526, -0.0981],
    [-0.5299, -0.1081],
]
WRAPPER_CONTEXT = [
    [-0.4519, 0.2216, 0.4772, 0.1063],
    [-0.5874, 0.0058, 0.5891, 0.3257],
    [-0.6300, -0.0632, 0.6202, 0.3860],
    [-0.5675, -0.0843, 0.5478, 0.3589],
    [-0.5526, -0.0981, 0.5321, 0.3428],
    [-0.5299, -0.1081, 0.5077, 0.3493],
]
FUSED_CONTEXT = [
    [0.3190, 0.4858],
    [0.2943, 0.3897],
    [0.2856, 0.3593],
    [0.2693, 0.3873],
    [0.2639, 0.3928],
    [0.2575, 0.4028],
]
NOTES_TABLES = {
    "self-attention weights": [
        [0.1921, 0.1646, 0.1652, 0.1550, 0.1721, 0.1510],
        [0.2041, 0.1659, 0.1662, 0.1496, 0.1665, 0.1477],
        [0.2036, 0.1659, 0.1662, 0.1498, 0.1664, 0.1480],
        [0.1869, 0.1667, 0.1668, 0.1571, 0.1661, 0.1564],
        [0.1830, 0.1669, 0.1670, 0.1588, 0.1658, 0.1585],
        [0.1935, 0.1663, 0.1666, 0.1542, 0.1666, 0.1529],
    ],
    "lower triangle": [
        [0.1921, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.2041, 0.1659, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.2036, 0.1659, 0.1662, 0.0000, 0.0000, 0.0000],
        [0.1869, 0.1667, 0.1668, 0.1571, 0.0000, 0.0000],
        [0.1830, 0.1669, 0.1670, 0.1588, 0.1658, 0.0000],
        [0.1935, 0.1663, 0.1666, 0.1542, 0.1666, 0.1529],
    ],
    "lower triangle, renormalised": CAUSAL_WEIGHTS,
    "minus infinity before softmax": CAUSAL_WEIGHTS,
    "dropout 0.5 on ones": [[2, 2, 0, 2], [2, 0, 0, 0], [0, 2, 0, 2]],
    "dropout 0.3 on ones": [
        [1.4286, 1.4286, 1.4286, 1.4286],
        [1.4286, 1.4286, 1.4286, 1.4286],
        [0.0000, 1.4286, 0.0000, 1.4286],
    ],
    "dropout 0.5 on causal weights": [
        [2.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.7599, 0.6194, 0.6206, 0.0000, 0.0000, 0.0000],
        [0.0000, 0.4921, 0.4925, 0.0000, 0.0000, 0.0000],
        [0.0000, 0.3966, 0.0000, 0.3775, 0.0000, 0.0000],
        [0.0000, 0.3327, 0.3331, 0.3084, 0.3331, 0.0000],
    ],
    "CausalAttention": [CAUSAL_CONTEXT, CAUSAL_CONTEXT],
    "MultiHeadAttentionWrapper": [WRAPPER_CONTEXT, WRAPPER_CONTEXT],
    "MultiHeadAttention": [FUSED_CONTEXT, FUSED_CONTEXT],
}


@pytest.mark.parametrize("title", NOTES_TABLES)
def test_every_table_of_the_notes_to_its_four_decimals(title: str) -> None:
    table, _sentence = primer.walk_through()[title]
    expected = torch.tensor(NOTES_TABLES[title])
    assert table.shape == expected.shape
    # The notes print four decimals, so half a unit of the last one is all that may differ.
    assert (table - expected).abs().max() <= 0.5e-4 + 1e-7


def test_the_walk_has_no_other_tables() -> None:
    assert list(primer.walk_through()) == list(NOTES_TABLES)


def test_the_module_prints_each_title_and_the_last_table() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "gpt.model.attention_primer"], capture_output=True, text=True, check=True
    ).stdout
    assert all(title in printed for title in NOTES_TABLES)
    assert "[0.2575, 0.4028]" in printed


def test_the_two_maskings_agree() -> None:
    torch.manual_seed(0)
    attention = primer.SelfAttention(5, 4)
    x = torch.randn(9, 5)
    torch.testing.assert_close(
        primer.mask_then_renormalise(attention.weights(x)), primer.mask_before_softmax(attention.scores(x), 4)
    )


def test_a_wrapper_with_one_head_is_causal_attention() -> None:
    x = torch.randn(2, 6, 3)
    torch.manual_seed(7)
    causal = primer.CausalAttention(3, 4, 6, 0.0)
    torch.manual_seed(7)
    wrapper = primer.MultiHeadAttentionWrapper(3, 4, 6, 0.0, num_heads=1)
    assert torch.equal(causal(x), wrapper(x))


@pytest.mark.parametrize("num_heads,qkv_bias", [(1, False), (2, False), (4, True)])
def test_fused_with_stacked_head_weights_is_the_wrapper_then_out_proj(num_heads: int, qkv_bias: bool) -> None:
    torch.manual_seed(1)
    d_in, head_dim, length = 6, 3, 10
    wrapper = primer.MultiHeadAttentionWrapper(d_in, head_dim, length, 0.0, num_heads, qkv_bias)
    fused = MultiHeadAttention(d_in, num_heads * head_dim, length, 0.0, num_heads, qkv_bias)
    with torch.no_grad():
        layers = [[getattr(h, name) for h in wrapper.heads] for name in ("W_query", "W_key", "W_value")]
        fused.qkv.weight.copy_(torch.cat([layer.weight for row in layers for layer in row]))
        if qkv_bias:
            fused.qkv.bias.copy_(torch.cat([layer.bias for row in layers for layer in row]))
    x = torch.randn(2, length, d_in)
    torch.testing.assert_close(fused(x), fused.out_proj(wrapper(x)))


def test_the_fused_weights_are_the_primers() -> None:
    torch.manual_seed(2)
    causal = primer.CausalAttention(3, 2, 6, 0.0)
    x = primer.example_inputs()
    queries, keys = causal.W_query(x)[None, None], causal.W_key(x)[None, None]
    expected: Tensor = primer.mask_before_softmax(causal.W_query(x) @ causal.W_key(x).T, 2)
    torch.testing.assert_close(causal_attention_logits(queries, keys).softmax(-1)[0, 0], expected)


def test_causal_attention_drops_weights_only_while_training() -> None:
    torch.manual_seed(3)
    causal = primer.CausalAttention(3, 2, 6, dropout=0.5)
    x = torch.randn(2, 6, 3)
    assert not torch.equal(causal(x), causal(x))
    causal.eval()
    assert torch.equal(causal(x), causal(x))
