"""The notes, step by step: from self-attention to the fused multi-head attention, each printing its table.

    python -m gpt.model.attention_primer

Nothing imports this module: it is the way up to ``gpt.model.attention``, for reading. The classes are the
notes' own, with their names and their order of random draws, so that their seeds give their numbers.
"""

import torch
from torch import Tensor, nn

from gpt.model.attention import MultiHeadAttention


class SelfAttention(nn.Module):
    """One head that sees every token, past and future (the notes' SelfAttentionV2).

    Args:
        d_in: width of the input vectors.
        d_out: width of queries, keys, values and of the output.
        qkv_bias: whether the three projections have a bias.
    """

    def __init__(self, d_in: int, d_out: int, qkv_bias: bool = False) -> None:
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def scores(self, x: Tensor) -> Tensor:
        """How well each query fits each key: (T, d_in) to (T, T), unscaled."""
        return self.W_query(x) @ self.W_key(x).T

    def weights(self, x: Tensor) -> Tensor:
        """Attention weights: (T, d_in) to (T, T), each row sums to 1."""
        return scaled_softmax(self.scores(x), self.W_key.out_features)

    def forward(self, x: Tensor) -> Tensor:
        """Context vectors: (T, d_in) to (T, d_out)."""
        return self.weights(x) @ self.W_value(x)


class CausalAttention(nn.Module):
    """One head that sees only itself and the past, over a batch, with dropout on its weights.

    Args:
        d_in: width of the input vectors.
        d_out: width of the output.
        context_length: longest sequence, in tokens.
        dropout: probability of dropping an attention weight, while training only.
        qkv_bias: whether the three projections have a bias.
    """

    mask: Tensor

    def __init__(self, d_in: int, d_out: int, context_length: int, dropout: float, qkv_bias: bool = False) -> None:
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.dropout = nn.Dropout(dropout)
        # A buffer follows the module to its device; True marks the future.
        self.register_buffer("mask", torch.ones(context_length, context_length, dtype=torch.bool).triu(diagonal=1))

    def forward(self, x: Tensor) -> Tensor:
        """Context vectors: (B, T, d_in) to (B, T, d_out)."""
        T = x.shape[1]
        scores = self.W_query(x) @ self.W_key(x).transpose(1, 2)  # (B, T, T)
        scores = scores.masked_fill(self.mask[:T, :T], -torch.inf)
        weights = self.dropout(scaled_softmax(scores, self.W_key.out_features))
        return weights @ self.W_value(x)


class MultiHeadAttentionWrapper(nn.Module):
    """Several causal heads side by side, their outputs concatenated; here ``d_out`` is the width of one head.

    Args:
        d_in: width of the input vectors.
        d_out: width of the output of one head; the output has ``num_heads * d_out``.
        context_length: longest sequence, in tokens.
        dropout: probability of dropping an attention weight, while training only.
        num_heads: number of heads.
        qkv_bias: whether the projections have a bias.
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
        self.heads = nn.ModuleList(
            CausalAttention(d_in, d_out, context_length, dropout, qkv_bias) for _ in range(num_heads)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Context vectors: (B, T, d_in) to (B, T, num_heads * d_out)."""
        return torch.cat([head(x) for head in self.heads], dim=-1)


def scaled_softmax(scores: Tensor, key_width: int) -> Tensor:
    """Softmax over the keys of ``scores / sqrt(key_width)``; the division keeps its slope from vanishing."""
    return torch.softmax(scores / key_width**0.5, dim=-1)


def mask_then_renormalise(weights: Tensor) -> Tensor:
    """First way to hide the future: (T, T) weights, cut to the lower triangle, rows divided by their sums."""
    lower = torch.tril(weights)
    return lower / lower.sum(dim=-1, keepdim=True)


def mask_before_softmax(scores: Tensor, key_width: int) -> Tensor:
    """Second way, and the one to use: (T, T) scores, the future set to minus infinity, one softmax."""
    future = torch.ones_like(scores, dtype=torch.bool).triu(diagonal=1)
    return scaled_softmax(scores.masked_fill(future, -torch.inf), key_width)


def example_inputs() -> Tensor:
    """The notes' six token vectors, "Your journey starts with one step": (6, 3)."""
    return torch.tensor(
        [
            [0.43, 0.15, 0.89],  # Your
            [0.55, 0.87, 0.66],  # journey
            [0.57, 0.85, 0.64],  # starts
            [0.22, 0.58, 0.33],  # with
            [0.77, 0.25, 0.10],  # one
            [0.05, 0.80, 0.55],  # step
        ]
    )


Tables = dict[str, tuple[Tensor, str]]  # from a title to (the table, one sentence on what the step adds)


def walk_through() -> Tables:
    """Every table of the notes, in their order."""
    x = example_inputs()  # (6, 3)
    return {**_one_head(x), **_dropout(x), **_many_heads(torch.stack([x, x]))}


def _one_head(x: Tensor) -> Tables:
    torch.manual_seed(789)
    attention = SelfAttention(3, 2)
    weights = attention.weights(x)
    return {
        "self-attention weights": (
            weights,
            "SelfAttention: each of the six tokens (a row) spreads a weight of 1 over all six, the future included.",
        ),
        "lower triangle": (
            torch.tril(weights),
            "torch.tril removes the future, but the rows no longer sum to 1.",
        ),
        "lower triangle, renormalised": (
            mask_then_renormalise(weights),
            "Dividing each row by its sum repairs that: causal weights, in two steps.",
        ),
        "minus infinity before softmax": (
            mask_before_softmax(attention.scores(x), key_width=2),
            "Scores of the future set to -inf give the same weights in one softmax, since exp(-inf) = 0.",
        ),
    }


def _dropout(x: Tensor) -> Tables:
    def dropped(p: float, values: Tensor) -> Tensor:
        torch.manual_seed(123)
        return nn.Dropout(p)(values)

    causal_weights, _ = _one_head(x)["minus infinity before softmax"]
    return {
        "dropout 0.5 on ones": (
            dropped(0.5, torch.ones(3, 4)),
            "nn.Dropout zeroes each entry with probability p and scales the others by 1/(1-p): here 1 becomes 2.",
        ),
        "dropout 0.3 on ones": (
            dropped(0.3, torch.ones(3, 4)),
            "Each entry is dropped on its own, so 2 of 12 is as possible as the expected 3.6; 1/(1-0.3) = 1.4286.",
        ),
        "dropout 0.5 on causal weights": (
            dropped(0.5, causal_weights),
            "Applied to attention weights while training, it keeps a head from relying on any one token.",
        ),
    }


def _many_heads(batch: Tensor) -> Tables:
    torch.manual_seed(123)
    causal = CausalAttention(3, 2, context_length=6, dropout=0.0)
    torch.manual_seed(123)
    wrapper = MultiHeadAttentionWrapper(3, 2, context_length=6, dropout=0.0, num_heads=2)
    torch.manual_seed(123)
    fused = MultiHeadAttention(3, 2, context_length=6, dropout=0.0, num_heads=2)
    return {
        "CausalAttention": (
            causal(batch),
            "Mask, softmax and dropout in one module, over a batch of two equal sequences.",
        ),
        "MultiHeadAttentionWrapper": (
            wrapper(batch),
            "Two such heads side by side: the first two columns are the table above, the others a second head's.",
        ),
        "MultiHeadAttention": (
            fused(batch),
            "The fused module: one matrix for all heads' projections, heads split by reshaping, then out_proj.",
        ),
    }


def main() -> None:
    """Print the walk."""
    torch.set_printoptions(precision=4, sci_mode=False)  # type: ignore[no-untyped-call]
    for number, (title, (table, sentence)) in enumerate(walk_through().items(), start=1):
        print(f"{number}. {title}\n   {sentence}\n{table.detach()}\n")


if __name__ == "__main__":
    main()
