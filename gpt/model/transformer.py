"""GPT-2: token and position embeddings, pre-norm transformer blocks, a head tied to the token embedding.

Shape letters: B batch, T length, E d_model, V vocab_size, L layers.
Source: Radford et al. 2019 (GPT-2), section 2.3; initialisation as in OpenAI's release.
"""

from contextlib import AbstractContextManager, nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from gpt.model.attention import MultiHeadAttention
from gpt.model.config import GPTConfig
from gpt.model.document_mask import document_mask, document_positions
from gpt.model.feed_forward import FeedForward
from gpt.model.kv_cache import KVCache
from gpt.model.recompute import recomputed, trains_on_cpu


class TransformerBlock(nn.Module):
    """Attention, then feed-forward, each on a normalised copy and added back: (B, T, E) to (B, T, E)."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        E = config.d_model
        self.attention_norm = nn.LayerNorm(E)
        self.attention = MultiHeadAttention(
            E, E, config.context_length, config.dropout, config.num_heads, config.qkv_bias
        )
        self.feed_forward_norm = nn.LayerNorm(E)
        self.feed_forward = FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, mask: Tensor | BlockMask | None = None, cache: KVCache | None = None, layer: int = 0
    ) -> Tensor:
        """(B, T, E) to (B, T, E), with mask, cache and layer as ``MultiHeadAttention`` takes them.

        Read it as x + attention(norm(x)), then x + feed_forward(norm(x)): the two helpers change what a CPU keeps for
        the way back, never what is computed.
        """
        normed = self.attention_norm(x)
        with _kept_as_recipe(normed, self.attention_norm, x):
            x = _add(x, self.dropout(self.attention(normed, mask, cache, layer)))
        normed = self.feed_forward_norm(x)
        with _kept_as_recipe(normed, self.feed_forward_norm, x):
            return _add(x, self.dropout(self.feed_forward(normed)))


def _add(x: Tensor, branch: Tensor) -> Tensor:
    """The residual stream with a branch added; where a CPU trains, in the branch's own memory: nobody else needs it."""
    return branch.add_(x) if trains_on_cpu(x) else x + branch


def _kept_as_recipe(normed: Tensor, norm: nn.Module, x: Tensor) -> AbstractContextManager[None]:
    """Where a CPU trains, a normalised copy is made again on the way back instead of kept: it is cheap, and large."""
    return recomputed(normed, partial(norm, x.detach())) if trains_on_cpu(x) else nullcontext()


class Transformer(nn.Module):
    """Everything but the head. Training calls this module itself, since its loss never wants all logits."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.position_embedding = nn.Embedding(config.context_length, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.num_layers))
        self.final_norm = nn.LayerNorm(config.d_model)

    def forward(self, token_ids: Tensor, documents: Tensor | None = None, cache: KVCache | None = None) -> Tensor:
        """Hidden states from which the head predicts.

        Args:
            token_ids: (B, T), int64, T at most ``context_length``.
            documents: (B, T), int64, each token's document, to keep them apart; None for one text throughout.
            cache: holds the tokens before these, and is given these; its owner then says how many count.

        Returns:
            (B, T, E).

        Raises:
            ValueError: T is larger than ``context_length``.
        """
        T = token_ids.shape[1]
        if self.config.context_length < T:
            raise ValueError(f"a sequence of {T} tokens is longer than context_length ({self.config.context_length})")
        mask: Tensor | BlockMask | None
        if cache is not None:
            mask = cache.mask(T)
            positions = self.position_embedding(cache.positions(T))  # (B, T, E)
        elif documents is None:
            positions, mask = self.position_embedding.weight[:T], None  # (T, E)
        else:
            positions = self.position_embedding(document_positions(documents))  # (B, T, E)
            mask = document_mask(documents)
        x = self.dropout(self.token_embedding(token_ids) + positions)  # (B, T, E)
        for layer, block in enumerate(self.blocks):
            x = block(x, mask, cache, layer)
        return self.final_norm(x)


class GPT(nn.Module):
    """A GPT-2: the transformer, and a head that is its token embedding once more (so no weights of its own).

    At initialisation the loss is ``ln(vocab_size) + d_model * 0.02**2 / 2`` nats, 10.98 for GPT-2 small: the
    final norm gives the hidden state a norm of sqrt(d_model), so the logits have a variance of d_model * 0.02².
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        self.decoding_head: nn.Module | None = None  # the head once more, laid out for one token at a time
        self._initialise()

    @property
    def head_weight(self) -> Tensor:
        """(V, E): the token embedding, shared with the input."""
        return self.transformer.token_embedding.weight

    @property
    def num_parameters(self) -> int:
        """Number of weights, the tied head counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, token_ids: Tensor) -> Tensor:
        """Logits of the next token at every position.

        Args:
            token_ids: (B, T), int64, T at most ``context_length``.

        Returns:
            (B, T, V).

        Raises:
            ValueError: T is larger than ``context_length``.
        """
        return self.logits(self.transformer(token_ids))

    def logits(self, hidden: Tensor) -> Tensor:
        """What the head predicts from hidden states: (..., E) to (..., V)."""
        return F.linear(hidden, self.head_weight) if self.decoding_head is None else self.decoding_head(hidden)

    @torch.no_grad()
    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        # Each block adds two branches to the residual stream; this keeps the sum's variance from growing with L.
        residual_std = 0.02 / (2 * self.config.num_layers) ** 0.5
        for block in self.transformer.blocks:
            assert isinstance(block, TransformerBlock)
            nn.init.normal_(block.attention.out_proj.weight, std=residual_std)
            nn.init.normal_(block.feed_forward.project.weight, std=residual_std)
