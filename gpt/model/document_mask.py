"""Keeping the documents of a window apart: attention stays inside each, and its positions count from 0.

Off by default, as GPT-2 was trained; Llama 3 (2024, section 3.2) masks so.
Shape letters: B batch, T length.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask


def document_ids(token_ids: Tensor, eot_id: int | None) -> Tensor | None:
    """Number each token's document within its window; end-of-text begins one.

    Args:
        token_ids: (B, T), int64.
        eot_id: of the end-of-text token; None to keep no documents apart.

    Returns:
        (B, T), int64: how many ends of text have been read. A window that starts inside a document counts from 0.
        None without ``eot_id``.
    """
    return None if eot_id is None else (token_ids == eot_id).cumsum(dim=1)


def document_positions(documents: Tensor) -> Tensor:
    """Position of each token in its document: (B, T) ids to (B, T), int64, from 0 on."""
    T = documents.shape[1]
    position = torch.arange(T, device=documents.device)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return position - (position * begins).cummax(dim=1).values


def document_mask(documents: Tensor) -> Tensor | BlockMask:
    """Who may look at whom: nobody ahead, and nobody into another document.

    Args:
        documents: (B, T), int64.

    Returns:
        On a CPU (B, 1, T, T), bool, true where a query (row) may look; on a GPU FlexAttention's mask in blocks,
        which never holds T x T values.
    """
    if documents.device.type == "cuda":
        return block_mask(documents, compiled("create_block_mask"))
    T = documents.shape[1]
    causal = torch.ones(T, T, dtype=torch.bool, device=documents.device).tril()
    return (causal & (documents[:, :, None] == documents[:, None, :]))[:, None]


def block_mask(documents: Tensor, create: Any = create_block_mask) -> BlockMask:
    """The same mask in FlexAttention's form; uncompiled, ``create`` builds it from all T x T values."""
    B, T = documents.shape

    def may_look(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (documents[b, query] == documents[b, key])

    return create(may_look, B, None, T, T, device=documents.device)


@cache
def compiled(name: str) -> Any:
    """A function of ``torch.nn.attention.flex_attention``, compiled: only so does it fuse; made on first use."""
    from torch.nn.attention import flex_attention

    return torch.compile(getattr(flex_attention, name), dynamic=False)
