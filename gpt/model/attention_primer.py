"""From one attention head to a GPT: every step of the notes as code, with its numbers.

Read it from top to bottom, beside what ``python -m gpt.model.attention_primer`` prints; docs/primer.md and
docs/primer.zh.md are the same walk in prose. Signatures and the order of random draws are the notes', so that their
seeds give their numbers. Shape letters: B batch, T length, H heads, D head_dim, V vocab_size.
"""

import inspect
import math
import signal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpt.model.attention import MultiHeadAttention
from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.transformer import GPT

EMBEDDINGS = {
    "Your": [0.43, 0.15, 0.89],
    "journey": [0.55, 0.87, 0.66],
    "starts": [0.57, 0.85, 0.64],
    "with": [0.22, 0.58, 0.33],
    "one": [0.77, 0.25, 0.10],
    "step": [0.05, 0.80, 0.55],
}
TOKENS = list(EMBEDDINGS)
INPUTS = torch.tensor(list(EMBEDDINGS.values()))  # (6, 3)
BATCH = torch.stack([INPUTS, INPUTS])  # (2, 6, 3)
FUTURE = torch.ones(6, 6, dtype=torch.bool).triu(diagonal=1)  # (6, 6), True where the column comes after the row
TEXT = "Your journey starts with one step, and every step after it starts where the last one ended."


def show(title: str, table: Tensor, columns: list[str], rows: list[str] = TOKENS, sums: bool = False) -> Tensor:
    """Print a table under its title and shape, and return it; rows of a 3-D table are numbered by its first index."""
    print(f"\n{title}  {tuple(table.shape)}")
    rows = [f"{index} {row}" for index in range(len(table)) for row in rows] if table.dim() == 3 else rows
    columns = [*columns, "sum"] if sums else columns
    cells = torch.cat([table, table.sum(dim=-1, keepdim=True)], dim=-1) if sums else table
    width = max(map(len, rows))
    print(" " * width + "".join(f"{column:>9}" for column in columns))
    for row, values in zip(rows, cells.flatten(0, -2).tolist(), strict=True):
        print(f"{row:{width}}" + "".join(f"{value:9.4f}" for value in values))
    return table


def show_shape(step: str, result: Tensor, axes: str) -> Tensor:
    """Print the shape of a step's result, and return the result."""
    print(f"{step:28}{tuple(result.shape)!s:18}{axes}")
    return result


class SelfAttention(nn.Module):
    """One head that sees every token, past and future (the notes' SelfAttentionV2)."""

    def __init__(self, d_in: int, d_out: int, qkv_bias: bool = False) -> None:
        super().__init__()
        self.W_query = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_key = nn.Linear(d_in, d_out, bias=qkv_bias)
        self.W_value = nn.Linear(d_in, d_out, bias=qkv_bias)

    def weights(self, x: Tensor) -> Tensor:
        """Attention weights, each row with sum 1: (..., T, d_in) to (..., T, T)."""
        scores = self.W_query(x) @ self.W_key(x).mT  # mT transposes the last two axes
        return torch.softmax(scores / self.W_key.out_features**0.5, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        """Context vectors: (..., T, d_in) to (..., T, d_out)."""
        return self.weights(x) @ self.W_value(x)


def one_head() -> None:
    """One head: each token attends to all tokens.

    Each token is projected to a query, a key and a value of width 2. A score is the dot product of the row's query and
    the column's key; softmax of the scores / sqrt(2) gives each row weights with sum 1, which weight the values.
    """
    torch.manual_seed(789)
    head = SelfAttention(3, 2)
    x = show("x", INPUTS, ["x0", "x1", "x2"])
    Q = show("Q = W_query(x)", head.W_query(x), ["q0", "q1"])
    K = show("K = W_key(x)", head.W_key(x), ["k0", "k1"])
    V = show("V = W_value(x)", head.W_value(x), ["v0", "v1"])
    scores = show("scores = Q @ K.T", Q @ K.T, TOKENS)
    print(f"\njourney, Your: {Q[1, 0]:.4f} * {K[0, 0]:.4f} + {Q[1, 1]:.4f} * {K[0, 1]:.4f} = {scores[1, 0]:.4f}")
    scaled = show("scores / sqrt(2)", scores / 2**0.5, TOKENS)
    weights = show("weights = softmax(scores / sqrt(2))", torch.softmax(scaled, dim=-1), TOKENS, sums=True)
    show("context = weights @ V", weights @ V, ["d0", "d1"])


def causal_mask() -> None:
    """The causal mask: each token attends to itself and the tokens before it.

    torch.tril removes the future, after which the rows no longer sum to 1; dividing by their sums repairs that. Scores
    of minus infinity do both in one softmax, because exp(-inf) = 0. The classes below use the second way.
    """
    torch.manual_seed(789)
    head = SelfAttention(3, 2)
    lower = show("tril(weights)", torch.tril(head.weights(INPUTS)), TOKENS, sums=True)
    renormalised = show("tril(weights) / row sums", lower / lower.sum(dim=-1, keepdim=True), TOKENS, sums=True)
    scores = head.W_query(INPUTS) @ head.W_key(INPUTS).T
    masked = show("masked scores", scores.masked_fill(FUTURE, -torch.inf), TOKENS)
    weights = show("softmax(masked scores / sqrt(2))", torch.softmax(masked / 2**0.5, dim=-1), TOKENS, sums=True)
    print(f"\nboth ways give the same weights: {torch.allclose(renormalised, weights)}")


class CausalAttention(SelfAttention):
    """One head with a causal mask, and dropout on its weights in training."""

    def __init__(self, d_in: int, d_out: int, context_length: int, dropout: float, qkv_bias: bool = False) -> None:
        super().__init__(d_in, d_out, qkv_bias)
        self.dropout = nn.Dropout(dropout)
        # A buffer moves to the module's device, like a weight, but is not trained; True marks the future.
        self.mask = nn.Buffer(torch.ones(context_length, context_length, dtype=torch.bool).triu(diagonal=1))

    def weights(self, x: Tensor) -> Tensor:
        """Causal attention weights: (..., T, d_in) to (..., T, T)."""
        T = x.shape[-2]
        scores = (self.W_query(x) @ self.W_key(x).mT).masked_fill(self.mask[:T, :T], -torch.inf)
        return self.dropout(torch.softmax(scores / self.W_key.out_features**0.5, dim=-1))


def dropout() -> None:
    """Dropout on attention weights, and why rows are not renormalised after it.

    nn.Dropout(p) zeroes each entry with probability p and multiplies the others by 1/(1-p), so that the mean of a
    weight over many draws is the weight without dropout. Renormalising each draw would change that mean, and is
    impossible where a whole row is dropped. Outside training nothing is dropped, and each row sums to 1.
    """
    torch.manual_seed(789)
    weights = CausalAttention(3, 2, context_length=6, dropout=0.0).weights(INPUTS)
    for p in (0.5, 0.3):
        torch.manual_seed(123)
        show(f"Dropout({p}) of ones", nn.Dropout(p)(torch.ones(3, 4)), ["c0", "c1", "c2", "c3"], ["r0", "r1", "r2"])
    torch.manual_seed(123)
    show("Dropout(0.5) of causal weights", nn.Dropout(0.5)(weights), TOKENS, sums=True)
    journey = weights[1, :2]
    draws = nn.Dropout(0.5)(journey.expand(1_000_000, 2))
    renormalised = draws / draws.sum(dim=-1, keepdim=True)
    means = torch.stack([journey, draws.mean(dim=0), renormalised.nanmean(dim=0)])
    show("journey, mean of 1,000,000 draws", means, TOKENS[:2], ["no dropout", "dropout", "renormalised"], sums=True)
    print(f"\ndraws with both weights dropped, 0 / 0 = nan: {renormalised[:, 0].isnan().float().mean():.1%}")


def future_tokens() -> None:
    """The future does not leak, although Q, K and V are computed from the whole input.

    A row of Q, K and V depends on its own row of x only, and the mask gives later tokens the weight 0: a change of the
    last token leaves the outputs before it bit-equal. For a token generated after a prompt, all of it is the past.
    """
    changed = torch.cat([INPUTS[:-1], torch.tensor([[0.90, 0.10, 0.40]])])
    torch.manual_seed(123)
    causal = CausalAttention(3, 2, context_length=7, dropout=0.0)
    torch.manual_seed(123)
    unmasked = SelfAttention(3, 2)
    layers = [causal.W_query, causal.W_key, causal.W_value, unmasked, causal]
    differences = torch.stack([(layer(changed) - layer(INPUTS)).abs().amax(dim=-1) for layer in layers], dim=-1)
    show("largest change per row when step changes", differences, ["Q", "K", "V", "unmasked", "causal"])
    print(f"\ncausal outputs before step are bit-equal: {torch.equal(causal(changed)[:-1], causal(INPUTS)[:-1])}")
    longer = torch.cat([INPUTS, torch.tensor([[0.35, 0.60, 0.20]])])
    show("weights of the next token", causal.weights(longer)[-1:], [*TOKENS, "next"], ["next"], sums=True)


class MultiHeadAttentionWrapper(nn.Module):
    """Causal heads side by side, their outputs concatenated; ``d_out`` is the width of one head."""

    def __init__(
        self, d_in: int, d_out: int, context_length: int, dropout: float, num_heads: int, qkv_bias: bool = False
    ) -> None:
        super().__init__()
        heads = [CausalAttention(d_in, d_out, context_length, dropout, qkv_bias) for _ in range(num_heads)]
        self.heads = nn.ModuleList(heads)

    def forward(self, x: Tensor) -> Tensor:
        """Context vectors: (B, T, d_in) to (B, T, num_heads * d_out)."""
        return torch.cat([head(x) for head in self.heads], dim=-1)


def separate_heads() -> None:
    """A batch, and two heads side by side.

    The batch is the sentence twice, (2, 6, 3); the number before a token is its sequence. The wrapper's first head
    draws the single head's weights, so its columns are the same. Two heads of width 2, concatenated, have width 4.
    """
    torch.manual_seed(123)
    show("CausalAttention", CausalAttention(3, 2, context_length=6, dropout=0.0)(BATCH), ["d0", "d1"])
    torch.manual_seed(123)
    wrapper = MultiHeadAttentionWrapper(3, 2, context_length=6, dropout=0.0, num_heads=2)
    show("MultiHeadAttentionWrapper", wrapper(BATCH), ["h0.d0", "h0.d1", "h1.d0", "h1.d1"])


def fused_heads() -> None:
    """All heads in one module: one projection, which reshaping divides among the heads.

    view splits an axis and permute reorders axes; no number changes. @ multiplies matrices in the last two axes, so
    T and D go there, and the axis of length 3 goes first, to unpack into queries, keys and values. reshape puts the
    heads' contexts side by side, as torch.cat does, and out_proj mixes them. d_out is the width of one head in the
    wrapper, hence (2, 6, 4), and of all heads together here, hence (2, 6, 2).
    """
    torch.manual_seed(123)
    fused = MultiHeadAttention(3, 2, context_length=6, dropout=0.0, num_heads=2)
    B, T, H, D = 2, 6, 2, 1
    print()
    projected = show_shape("qkv(x)", fused.qkv(BATCH), "B, T, 3 d_out")
    split = show_shape(".view(B, T, 3, H, D)", projected.view(B, T, 3, H, D), "B, T, 3, H, D")
    queries, keys, values = show_shape(".permute(2, 0, 3, 1, 4)", split.permute(2, 0, 3, 1, 4), "3, B, H, T, D")
    scores = show_shape("scores = queries @ keys.mT", queries @ keys.mT, "B, H, T, T")
    weights = torch.softmax(scores.masked_fill(FUTURE, -torch.inf) / D**0.5, dim=-1)
    context = show_shape("context = weights @ values", weights @ values, "B, H, T, D")
    by_token = show_shape(".transpose(1, 2)", context.transpose(1, 2), "B, T, H, D")
    joined = show_shape(".reshape(B, T, H * D)", by_token.reshape(B, T, H * D), "B, T, d_out")
    output = show_shape("out_proj(context)", fused.out_proj(joined), "B, T, d_out")
    show("qkv(x), sequence 0", projected[0], ["q.h0", "q.h1", "k.h0", "k.h1", "v.h0", "v.h1"])
    show("weights, sequence 0, head 0 and head 1", weights[0], TOKENS, sums=True)
    show("context, sequence 0", joined[0], ["h0", "h1"])
    show("MultiHeadAttention", output, ["d0", "d1"])
    print(f"\nthe module's own output is the same: {torch.allclose(fused(BATCH), output, atol=1e-6)}")


def copied_weights() -> None:
    """The wrapper's weights, copied into the fused module, give the wrapper's table.

    d_out is 4 for two heads of width 2. The rows of qkv are the queries of both heads, then the keys, then the values;
    out_proj is the identity. One matrix product gives what six separate ones give.
    """
    torch.manual_seed(123)
    wrapper = MultiHeadAttentionWrapper(3, 2, context_length=6, dropout=0.0, num_heads=2)
    fused = MultiHeadAttention(3, 4, context_length=6, dropout=0.0, num_heads=2)
    layers = [getattr(head, name) for name in ("W_query", "W_key", "W_value") for head in wrapper.heads]
    fused.qkv.weight = nn.Parameter(torch.cat([layer.weight for layer in layers]))  # (12, 3)
    fused.out_proj = nn.Identity()  # type: ignore[assignment]
    show("MultiHeadAttention, the wrapper's weights", fused(BATCH), ["h0.d0", "h0.d1", "h1.d0", "h1.d1"])
    separate = torch.cat([layer(BATCH) for layer in layers], dim=-1)  # (2, 6, 12)
    print(f"\none product equals six: {torch.allclose(fused.qkv(BATCH), separate, atol=1e-6)}")
    print(f"equal to the wrapper's output: {torch.allclose(fused(BATCH), wrapper(BATCH), atol=1e-6)}")


def tiny_gpt() -> None:
    """A GPT of two blocks, trained on one sentence.

    The logits of each position predict the next byte, and training lowers their cross-entropy; before it, the loss is
    near that of a guess among 256 bytes, ln(256). gpt.model.loss gives the same loss in less memory.
    """
    torch.manual_seed(123)
    token_ids = torch.tensor([list(TEXT.encode())])
    inputs, targets = token_ids[:, :-1], token_ids[:, 1:]  # (B, T) each
    model = GPT(GPTConfig(vocab_size=256, context_length=128, d_model=32, num_layers=2, num_heads=2, dropout=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    print(f"\nlogits {tuple(model(inputs).shape)}, ln(256) = {math.log(256):.2f}")
    print("\nstep  F.cross_entropy  next_token_loss")
    for step in range(101):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())  # logits are (B, T, V)
        if step % 20 == 0:
            chunked = next_token_loss(model.transformer(inputs), model.lm_head_weight, targets) / targets.numel()
            print(f"{step:4}{loss.item():17.2f}{chunked.item():17.2f}")
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    print(f"\nrelative difference at step {step} below 1e-6: {torch.allclose(chunked, loss, rtol=1e-6, atol=0.0)}")
    written = token_ids[:, :4]
    while written.shape[1] < len(TEXT):
        written = torch.cat([written, model(written)[:, -1:].argmax(dim=-1)], dim=1)
    print(f"most likely bytes after 'Your': {bytes(written[0, 4:].tolist()).decode(errors='replace')}")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # ends without a traceback in `... | head`
    sections = (one_head, causal_mask, dropout, future_tokens, separate_heads, fused_heads, copied_weights, tiny_gpt)
    for number, section in enumerate(sections, start=1):
        print(f"\n\n{number}. {inspect.getdoc(section)}")
        section()
