"""Multi-head causal attention.

Shape letters: B batch, T query length, S key length, H heads, D head_dim.
"""

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from gpt.model.kv_cache import KVCache
from gpt.model.masks import compiled


class MultiHeadAttention(nn.Module):
    """Causal self-attention with all heads in one projection and one fused kernel.

    ``qkv`` draws the weights that three layers without bias (query, key, value) would draw in turn, so that
    ``MultiHeadAttention(3, 2, 6, 0.0, num_heads=2)`` under ``torch.manual_seed(123)`` gives the last table of the
    reading notes named in docs/primer.md. ``GPT`` initialises its weights afterwards.

    Args:
        d_in: width of the input.
        d_out: width of the output, a multiple of ``num_heads``.
        context_length: longest sequence, in tokens.
        dropout: probability of dropping an attention weight in training.

    Source: the last class of those notes; Vaswani et al. 2017, section 3.2.
    """

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, num_heads: int, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_out % num_heads != 0:
            raise ValueError(f"d_out ({d_out}) must be a multiple of num_heads ({num_heads})")
        self.context_length = context_length
        self.dropout = dropout
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)

    def split_qkv(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Split the output of ``qkv``, (B, T, 3 d_out), into queries, keys and values, (B, H, T, D) each."""
        B, T, _ = qkv.shape
        queries, keys, values = qkv.view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)  # (3, B, H, T, D)
        return queries, keys, values

    def forward(
        self, x: Tensor, mask: Tensor | BlockMask | None = None, cache: KVCache | None = None, layer: int = 0
    ) -> Tensor:
        """Attend from every token to itself and the tokens before it: (B, T, d_in) to (B, T, d_out).

        Args:
            x: T at most ``context_length``, else ValueError.
            mask: True where a query may attend, from ``document_mask`` or ``KVCache.mask``; None is the causal mask;
                after cached tokens, none (for T = 1). With a ``BlockMask``, dropout in training is a ValueError.
            cache: keys and values of the tokens before x; those of x are appended.
            layer: index of this layer in the cache.
        """
        B, T, _ = x.shape
        if self.context_length < T:
            raise ValueError(f"a sequence of {T} tokens is longer than context_length ({self.context_length})")
        queries, keys, values = self.split_qkv(self.qkv(x))  # (B, H, T, D) each
        if cache is not None:
            keys, values = cache.append(layer, keys, values)  # (B, H, S, D)
        if isinstance(mask, BlockMask):
            if self.training and self.dropout > 0:
                raise ValueError("FlexAttention has no dropout: set dropout to 0, or train without document masks")
            context = compiled(flex_attention)(queries, keys, values, block_mask=mask)  # (B, H, T, D)
        else:
            dropout = self.dropout if self.training else 0.0  # the function does not know train() and eval()
            is_causal = mask is None and keys.shape[2] == T  # with more keys, None is for one query, which sees all
            # dropout(softmax(queries @ keys.mT / sqrt(D), masked)) @ values, without storing the (T, S) weights.
            context = F.scaled_dot_product_attention(queries, keys, values, mask, dropout, is_causal)  # (B, H, T, D)
        return self.out_proj(context.transpose(1, 2).reshape(B, T, -1))  # (B, T, d_out)
