"""GPT-2: token and position embeddings, pre-norm transformer blocks, an LM head tied to the token embedding.

Shape letters: B batch, T length, E d_model, V vocab_size, L layers.
Source: Radford et al. 2019 (GPT-2), section 2.3, also for the scale of the residual projections at initialisation.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

from gpt.model.attention import MultiHeadAttention
from gpt.model.config import GPTConfig
from gpt.model.kv_cache import KVCache
from gpt.model.masks import document_mask, document_positions


class MLP(nn.Module):
    """Expand 4x, tanh GELU, project back.

    Source: Radford et al. 2018 (GPT), section 4.1; GELU of Hendrycks & Gimpel 2016, section 2.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.fc_in = nn.Linear(config.d_model, 4 * config.d_model)
        self.fc_out = nn.Linear(4 * config.d_model, config.d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, E) to (B, T, E)."""
        return self.fc_out(F.gelu(self.fc_in(x), approximate="tanh"))


class TransformerBlock(nn.Module):
    """Attention, then MLP, each on a layer norm of the residual stream and added back to it.

    Training on a CPU computes the same in less memory: ``gpt.training.cpu_memory.LeanBlock``.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        E = config.d_model
        self.attention_norm = nn.LayerNorm(E)
        self.attention = MultiHeadAttention(
            E, E, config.context_length, config.dropout, config.num_heads, config.qkv_bias
        )
        self.mlp_norm = nn.LayerNorm(E)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, mask: Tensor | BlockMask | None = None, cache: KVCache | None = None, layer: int = 0
    ) -> Tensor:
        """(B, T, E) to (B, T, E); mask, cache and layer as ``MultiHeadAttention`` takes them."""
        x = x + self.dropout(self.attention(self.attention_norm(x), mask, cache, layer))
        x = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return x


class Transformer(nn.Module):
    """The model without its LM head: token ids to hidden states.

    Training calls it by itself, since the loss takes hidden states (``gpt.model.loss``); it is also what is compiled.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.token_embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.position_embedding = nn.Embedding(config.context_length, config.d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(TransformerBlock(config) for _ in range(config.num_layers))
        self.final_norm = nn.LayerNorm(config.d_model)

    def forward(self, token_ids: Tensor, documents: Tensor | None = None, cache: KVCache | None = None) -> Tensor:
        """Hidden states after the final norm: (B, T) int64 to (B, T, E).

        Args:
            token_ids: T at most ``context_length``, else ValueError.
            documents: (B, T), int64: document ids for the block-diagonal mask; None is the plain causal mask.
            cache: keys and values of the tokens before these, instead of documents; the caller then advances it.
        """
        T = token_ids.shape[1]
        if self.config.context_length < T:
            raise ValueError(f"a sequence of {T} tokens is longer than context_length ({self.config.context_length})")
        mask: Tensor | BlockMask | None = None
        position_embeddings = self.position_embedding.weight[:T]  # (T, E)
        if cache is not None:
            mask = cache.mask(T)
            position_embeddings = self.position_embedding(cache.positions(T))  # (B, T, E)
        elif documents is not None:
            mask = document_mask(documents)
            position_embeddings = self.position_embedding(document_positions(documents))  # (B, T, E)
        x = self.dropout(self.token_embedding(token_ids) + position_embeddings)  # (B, T, E)
        for layer, block in enumerate(self.blocks):
            x = block(x, mask, cache, layer)
        return self.final_norm(x)


class GPT(nn.Module):
    """GPT-2: the transformer and an LM head that shares the token embedding's weight.

    At initialisation the loss is ``ln(V) + d_model * 0.02**2 / 2`` nats, 10.98 for GPT-2 small: hidden states have norm
    sqrt(d_model), so logits are normal with variance d_model * 0.02², and the mean of exp(logit) is exp(variance / 2).
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        self._initialise()

    @property
    def lm_head_weight(self) -> Tensor:
        """(V, E): the token embedding."""
        return self.transformer.token_embedding.weight

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.lm_head_weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.lm_head_weight.dtype

    @property
    def num_parameters(self) -> int:
        """Number of weights; the tied LM head is counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, token_ids: Tensor) -> Tensor:
        """Next-token logits at every position: (B, T) int64, T at most ``context_length``, to (B, T, V)."""
        return self.logits(self.transformer(token_ids))

    def logits(self, hidden: Tensor) -> Tensor:
        """LM head: (..., E) to (..., V)."""
        return F.linear(hidden, self.lm_head_weight)

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        # Each block adds two branches to the residual stream; this keeps the sum's variance from growing with L.
        residual_std = 0.02 / (2 * self.config.num_layers) ** 0.5
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.out_proj.weight", "mlp.fc_out.weight")):
                nn.init.normal_(parameter, std=residual_std)
