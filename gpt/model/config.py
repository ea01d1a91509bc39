"""Shape of a GPT-2. Does not import torch, so that the command line can show and check it at once."""

from dataclasses import dataclass

from gpt.errors import UserError


@dataclass(frozen=True)
class GPTConfig:
    """Shape of a GPT-2; the defaults are GPT-2 small, 124,439,808 parameters."""

    vocab_size: int = 50257
    context_length: int = 1024
    """Longest sequence, in tokens."""
    d_model: int = 768
    """Width of the residual stream."""
    num_layers: int = 12
    """Number of transformer blocks."""
    num_heads: int = 12
    """Attention heads per block; d_model must be a multiple of it."""
    dropout: float = 0.1
    """Probability on embeddings, attention weights and residual branches, in training only."""
    qkv_bias: bool = True
    """Whether the query, key and value projections have a bias, as in GPT-2."""

    def __post_init__(self) -> None:
        for name in ("vocab_size", "context_length", "d_model", "num_layers", "num_heads"):
            value = getattr(self, name)
            if type(value) is not int:  # True is an instance of int
                raise UserError(f"model.{name} is {value!r}; it must be an integer")
            if not 1 <= value < 2**31:
                raise UserError(f"model.{name} is {value}; it must be {'at least 1' if value < 1 else 'below 2**31'}")
        if self.d_model % self.num_heads != 0:
            raise UserError(f"model.d_model ({self.d_model}) must be a multiple of model.num_heads ({self.num_heads})")
        if type(self.dropout) not in (int, float) or not 0.0 <= self.dropout < 1.0:
            raise UserError(f"model.dropout is {self.dropout!r}; it must be at least 0 and below 1")
        if type(self.qkv_bias) is not bool:
            raise UserError(f"model.qkv_bias is {self.qkv_bias!r}; it must be true or false")
