"""Block-diagonal causal mask for packed documents (joined in one window): attention and positions stay inside each.

Off by default, as GPT-2 was trained; Llama 3 (2024, section 3.2) masks this way.
Shape letters: B batch, T length.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask


def document_ids(token_ids: Tensor, eot_id: int | None) -> Tensor | None:
    """Number each token's document in its window: (B, T) int64 to the running count of end-of-text tokens, (B, T).

    The data have an end-of-text token in front of each document, so 0 is a document that began before the window.
    None without ``eot_id``.
    """
    return None if eot_id is None else (token_ids == eot_id).cumsum(dim=1)


def document_positions(documents: Tensor) -> Tensor:
    """Position of each token in its document, from 0: (B, T) document ids to (B, T), int64."""
    position = torch.arange(documents.shape[1], device=documents.device)
    is_first = torch.ones_like(documents, dtype=torch.bool)
    is_first[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return position - (position * is_first).cummax(dim=1).values  # minus the position of its document's first token


def document_mask(documents: Tensor) -> Tensor | BlockMask:
    """The mask for (B, T) document ids: (B, 1, T, T), bool, True where a query (row) may attend to a key (column).

    On a GPU, a ``BlockMask`` for FlexAttention (the mask is a function): it lists tiles to compute, not T x T values.
    """
    if documents.is_cuda:
        return block_mask(documents, compiled(create_block_mask))
    is_same = documents[:, :, None] == documents[:, None, :]
    return is_same.tril()[:, None]


def block_mask(documents: Tensor, create: Any = create_block_mask) -> BlockMask:
    """The same mask for FlexAttention; an uncompiled ``create`` materialises all T x T values."""
    B, T = documents.shape

    def may_attend(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (documents[b, query] == documents[b, key])

    return create(may_attend, B, None, T, T, device=documents.device)


@cache
def compiled(function: Any) -> Any:
    """Compile a function of FlexAttention: only the compiled one is a fused kernel."""
    return torch.compile(function, dynamic=False)
