"""Multi-head causal attention: the one module that trains, generates and is watched.

Shape letters: B batch, T query length, H heads, D head_dim.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from gpt.model.document_mask import compiled
from gpt.model.kv_cache import KVCache


class MultiHeadAttention(nn.Module):
    """All heads at once: one matrix for every head's queries, keys and values, one fused kernel.

    The signature and the initialisation are the notes': ``torch.manual_seed(123)`` and
    ``MultiHeadAttention(3, 2, 6, 0.0, num_heads=2)`` give the table that the notes print, because the
    rows of ``qkv`` are drawn in the order query, key, value and with the bound of three separate layers.
    ``gpt.model.attention_primer`` walks there step by step.

    Args:
        d_in: width of the input vectors.
        d_out: width of the output, over all heads together; a head has ``d_out // num_heads``.
        context_length: longest sequence that may be attended over, in tokens.
        dropout: probability of dropping an attention weight, while training only.
        num_heads: number of heads.
        qkv_bias: whether the query, key and value projections have a bias.

    Raises:
        ValueError: ``d_out`` is not a multiple of ``num_heads``.

    Source: the notes' MultiHeadAttention; Vaswani et al. 2017, section 3.2.
    """

    def __init__(
        self,
        d_in: int,
        d_out: int,
        context_length: int,
        dropout: float,
        num_heads: int,
        qkv_bias: bool = False,
    ) -> None:
        super().__init__()
        if num_heads < 1 or d_out % num_heads != 0:
            raise ValueError(f"d_out ({d_out}) must be a multiple of num_heads ({num_heads})")
        self.context_length = context_length
        self.dropout = dropout
        self.num_heads = num_heads
        self.qkv = nn.Linear(d_in, 3 * d_out, bias=qkv_bias)
        self.out_proj = nn.Linear(d_out, d_out)

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of every head.

        Args:
            x: (B, T, d_in).

        Returns:
            Three tensors (B, H, T, D).
        """
        return self.split(self.qkv(x))

    def split(self, projected: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What ``qkv`` puts out, (B, T, 3 d_out), as queries, keys and values, (B, H, T, D) each."""
        B, T, _ = projected.shape
        queries, keys, values = projected.view(B, T, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        return queries, keys, values

    def forward(
        self, x: Tensor, mask: Tensor | BlockMask | None = None, cache: KVCache | None = None, layer: int = 0
    ) -> Tensor:
        """Let every token gather from itself and the tokens before it.

        Args:
            x: (B, T, d_in), T at most ``context_length``.
            mask: as ``document_mask`` or ``KVCache.mask`` makes it, to look at some of those tokens only.
            cache: holds the tokens before x, and is given those of x.
            layer: whose keys and values these are in the cache.

        Returns:
            (B, T, d_out).

        Raises:
            ValueError: T is larger than ``context_length``.
        """
        B, T, _ = x.shape
        if self.context_length < T:
            raise ValueError(f"a sequence of {T} tokens is longer than context_length ({self.context_length})")
        queries, keys, values = self.heads(x)  # (B, H, T, D) each
        if cache is not None:
            keys, values = cache.append(layer, keys, values)  # (B, H, S, D)
        if isinstance(mask, BlockMask):
            context = compiled("flex_attention")(queries, keys, values, block_mask=mask)
        else:
            context = F.scaled_dot_product_attention(
                queries,
                keys,
                values,
                attn_mask=mask,
                # The function knows nothing of train() and eval(), so this line is what keeps dropout to training.
                dropout_p=self.dropout if self.training else 0.0,
                # The kernel's causal mask is for equally many keys; a single query may look at all of them.
                is_causal=mask is None and keys.shape[2] == T,
            )  # (B, H, T, D)
        return self.out_proj(context.transpose(1, 2).reshape(B, T, -1))  # (B, T, d_out)


def causal_attention_logits(queries: Tensor, keys: Tensor) -> Tensor:
    """What the fused kernel takes the softmax of, and keeps to itself.

    Args:
        queries: (B, H, T, D), any float dtype.
        keys: (B, H, T, D).

    Returns:
        (B, H, T, T) float32: a row per query, -inf for the future. ``softmax(dim=-1)`` makes the attention weights.
    """
    T = queries.shape[-2]
    logits = queries.float() @ keys.float().transpose(-2, -1) / queries.shape[-1] ** 0.5  # (B, H, T, T)
    future = torch.ones(T, T, dtype=torch.bool, device=logits.device).triu(diagonal=1)
    return logits.masked_fill(future, -torch.inf)
