"""The printed walk: the notes' tables, copied from them, the answers to their questions, and the two documents."""

import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import gpt
from gpt.attention_maps.capture import causal_attention_logits
from gpt.model import attention_primer as primer
from gpt.model.attention import MultiHeadAttention
from gpt.model.config import GPTConfig
from gpt.model.loss import next_token_loss
from gpt.model.transformer import GPT

ROOT = Path(gpt.__file__).parent.parent
DOCUMENTS = ["docs/primer.md", "docs/primer.zh.md"]
TOKENS = ["Your", "journey", "starts", "with", "one", "step"]
BATCH_ROWS = [f"{sequence} {token}" for sequence in (0, 1) for token in TOKENS]
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
    "weights = softmax(scores / sqrt(2))": [
        [0.1921, 0.1646, 0.1652, 0.1550, 0.1721, 0.1510],
        [0.2041, 0.1659, 0.1662, 0.1496, 0.1665, 0.1477],
        [0.2036, 0.1659, 0.1662, 0.1498, 0.1664, 0.1480],
        [0.1869, 0.1667, 0.1668, 0.1571, 0.1661, 0.1564],
        [0.1830, 0.1669, 0.1670, 0.1588, 0.1658, 0.1585],
        [0.1935, 0.1663, 0.1666, 0.1542, 0.1666, 0.1529],
    ],
    "tril(weights)": [
        [0.1921, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.2041, 0.1659, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.2036, 0.1659, 0.1662, 0.0000, 0.0000, 0.0000],
        [0.1869, 0.1667, 0.1668, 0.1571, 0.0000, 0.0000],
        [0.1830, 0.1669, 0.1670, 0.1588, 0.1658, 0.0000],
        [0.1935, 0.1663, 0.1666, 0.1542, 0.1666, 0.1529],
    ],
    "tril(weights) / row sums": CAUSAL_WEIGHTS,
    "softmax(masked scores / sqrt(2))": CAUSAL_WEIGHTS,
    "Dropout(0.5) of ones": [[2, 2, 0, 2], [2, 0, 0, 0], [0, 2, 0, 2]],
    "Dropout(0.3) of ones": [
        [1.4286, 1.4286, 1.4286, 1.4286],
        [1.4286, 1.4286, 1.4286, 1.4286],
        [0.0000, 1.4286, 0.0000, 1.4286],
    ],
    "Dropout(0.5) of causal weights": [
        [2.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.0000, 0.0000, 0.0000, 0.0000, 0.0000, 0.0000],
        [0.7599, 0.6194, 0.6206, 0.0000, 0.0000, 0.0000],
        [0.0000, 0.4921, 0.4925, 0.0000, 0.0000, 0.0000],
        [0.0000, 0.3966, 0.0000, 0.3775, 0.0000, 0.0000],
        [0.0000, 0.3327, 0.3331, 0.3084, 0.3331, 0.0000],
    ],
    "CausalAttention": CAUSAL_CONTEXT * 2,
    "MultiHeadAttentionWrapper": WRAPPER_CONTEXT * 2,
    "MultiHeadAttention": FUSED_CONTEXT * 2,
    "MultiHeadAttention, the wrapper's weights": WRAPPER_CONTEXT * 2,
}


@pytest.fixture(scope="module")
def walk() -> str:
    start = time.monotonic()
    finished = subprocess.run(
        [sys.executable, "-m", "gpt.model.attention_primer"], capture_output=True, text=True, check=True
    )
    assert time.monotonic() - start < 60  # 4 seconds on 2 cores
    return finished.stdout


def read_table(walk: str, title: str) -> tuple[list[str], list[str], torch.Tensor]:
    """Column names, row names and values of a printed table."""
    match = re.search(rf"^{re.escape(title)}  \(.*\)\n(.+)\n((?:.+\n)+)", walk, re.MULTILINE)
    assert match is not None, title
    columns = match[1].split()
    rows = [line.rsplit(maxsplit=len(columns)) for line in match[2].splitlines()]
    return columns, [name for name, *_ in rows], torch.tensor([[float(x) for x in values] for _, *values in rows])


@pytest.mark.parametrize("title", NOTES_TABLES)
def test_the_walk_prints_every_table_of_the_notes_to_its_four_decimals(walk: str, title: str) -> None:
    columns, _rows, values = read_table(walk, title)
    values = values[:, :-1] if columns[-1] == "sum" else values
    expected = torch.tensor(NOTES_TABLES[title])
    assert values.shape == expected.shape
    assert (values - expected).abs().max() < 1e-6


@pytest.mark.parametrize("title", [title for title, table in NOTES_TABLES.items() if len(table[0]) == 6])
def test_weight_tables_name_a_token_at_each_row_and_column(walk: str, title: str) -> None:
    columns, rows, values = read_table(walk, title)
    assert columns == [*TOKENS, "sum"]
    assert rows == TOKENS
    torch.testing.assert_close(values[:, :-1].sum(dim=-1), values[:, -1], atol=4e-4, rtol=0)


def test_rows_of_a_batch_name_their_sequence_and_token(walk: str) -> None:
    for title in ("CausalAttention", "MultiHeadAttentionWrapper", "MultiHeadAttention"):
        assert read_table(walk, title)[1] == BATCH_ROWS


def test_scores_and_weights_follow_from_the_printed_queries_and_keys(walk: str) -> None:
    Q, K, V = (read_table(walk, title)[2] for title in ("Q = W_query(x)", "K = W_key(x)", "V = W_value(x)"))
    weights = read_table(walk, "weights = softmax(scores / sqrt(2))")[2][:, :-1]
    context = read_table(walk, "context = weights @ V")[2]
    torch.testing.assert_close(read_table(walk, "scores = Q @ K.T")[2], Q @ K.T, atol=2e-4, rtol=0)
    torch.testing.assert_close(read_table(walk, "scores / sqrt(2)")[2], Q @ K.T / 2**0.5, atol=2e-4, rtol=0)
    torch.testing.assert_close(torch.softmax(Q @ K.T / 2**0.5, dim=-1), weights, atol=2e-4, rtol=0)
    torch.testing.assert_close(context, weights @ V, atol=2e-4, rtol=0)


def test_rows_are_not_renormalised_after_dropout_because_that_changes_the_mean(walk: str) -> None:
    _columns, rows, means = read_table(walk, "journey, mean of 1,000,000 draws")
    a, b = 0.5517, 0.4483
    # A draw keeps both, the first only, the second only, or none, each with probability 1/4; none has no mean.
    expected = torch.tensor([[a, b, 1], [a, b, 1], [(a + 1) / 3, (b + 1) / 3, 1]])
    assert rows == ["no dropout", "dropout", "renormalised"]
    assert (means - expected).abs().max() < 0.003  # five standard errors
    dropped = re.search(r"0 / 0 = nan: (.+)%", walk)
    assert dropped is not None
    assert float(dropped[1]) == pytest.approx(25, abs=0.3)


def test_a_change_of_the_last_token_changes_only_its_own_causal_output() -> None:
    torch.manual_seed(0)
    causal, unmasked = primer.CausalAttention(3, 2, 6, 0.0), primer.SelfAttention(3, 2)
    x = primer.INPUTS
    changed = torch.cat([x[:-1], x[-1:] + 1])
    for layer in (causal, causal.W_query, causal.W_key, causal.W_value):
        assert torch.equal(layer(changed)[:-1], layer(x)[:-1])
        assert not torch.equal(layer(changed)[-1], layer(x)[-1])
    assert not torch.isclose(unmasked(changed), unmasked(x), rtol=1e-3).any()


def test_the_walk_shows_that_the_future_does_not_leak_and_the_prompt_is_read(walk: str) -> None:
    columns, rows, differences = read_table(walk, "largest change per row when step changes")
    assert (columns, rows) == (["Q", "K", "V", "unmasked", "causal"], TOKENS)
    changes = differences > 0
    assert changes[-1].all()
    assert changes[:-1].any(dim=0).tolist() == [False, False, False, True, False]
    columns, _rows, weights = read_table(walk, "weights of the next token")
    assert columns == [*TOKENS, "next", "sum"]
    assert weights.min() > 0  # it reads every token of the prompt


def test_the_walk_confirms_every_equality(walk: str) -> None:
    assert len(re.findall(r": True$", walk, re.MULTILINE)) == 6
    assert "False" not in walk


def test_the_walk_prints_each_reshape_of_the_fused_module_with_its_shape(walk: str) -> None:
    assert re.findall(r"^\S.+?  +(\(\d.*?\)) +[3B], ", walk, re.MULTILINE) == [
        "(2, 6, 6)",
        "(2, 6, 3, 2, 1)",
        "(3, 2, 2, 6, 1)",
        "(2, 2, 6, 6)",
        "(2, 2, 6, 1)",
        "(2, 6, 2, 1)",
        "(2, 6, 2)",
        "(2, 6, 2)",
    ]


def test_the_tiny_gpt_learns_its_sentence_with_equal_losses(walk: str) -> None:
    losses = torch.tensor(
        [[float(x) for x in row] for row in re.findall(r"^ *\d+ +(\d\.\d\d) +(\d\.\d\d)$", walk, re.M)]
    )
    assert losses.shape == (6, 2)
    assert torch.equal(losses[:, 0], losses[:, 1])
    assert (losses.diff(dim=0) < 0).all()
    assert losses[0, 0] == pytest.approx(5.55, abs=0.05)
    assert losses[-1, 0] < 0.1
    assert f"after 'Your': {primer.TEXT[4:]}\n" in walk


def test_next_token_loss_is_the_cross_entropy_in_value_and_gradient() -> None:
    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab_size=256, context_length=32, d_model=32, num_layers=2, num_heads=2, dropout=0.0))
    inputs, targets = torch.randint(256, (2, 3, 32))
    plain = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    plain_gradients = torch.autograd.grad(plain, list(model.parameters()))
    fast = next_token_loss(model.transformer(inputs), model.lm_head_weight, targets) / targets.numel()
    torch.testing.assert_close(fast, plain, rtol=1e-6, atol=0)
    torch.testing.assert_close(torch.autograd.grad(fast, list(model.parameters())), plain_gradients)


def test_masking_before_and_after_the_softmax_agree() -> None:
    torch.manual_seed(0)
    causal = primer.CausalAttention(5, 4, 9, 0.0)
    x = torch.randn(9, 5)
    lower = torch.tril(primer.SelfAttention.weights(causal, x))
    torch.testing.assert_close(lower / lower.sum(dim=-1, keepdim=True), causal.weights(x))


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


def test_the_captured_weights_are_the_primers() -> None:
    torch.manual_seed(2)
    causal = primer.CausalAttention(3, 2, 6, 0.0)
    queries, keys = causal.W_query(primer.INPUTS)[None, None], causal.W_key(primer.INPUTS)[None, None]
    weights = causal_attention_logits(queries, keys).softmax(-1)[0, 0]
    torch.testing.assert_close(weights, causal.weights(primer.INPUTS))


def test_causal_attention_drops_weights_only_in_training() -> None:
    torch.manual_seed(3)
    causal = primer.CausalAttention(3, 2, 6, dropout=0.5)
    x = torch.randn(2, 6, 3)
    assert not torch.equal(causal(x), causal(x))
    causal.eval()
    assert torch.equal(causal(x), causal(x))


def fenced_blocks(document: str) -> list[str]:
    """The program's output, as a document quotes it."""
    return re.findall(r"^```\n(.*?)^```$", (ROOT / document).read_text("utf-8"), re.MULTILINE | re.DOTALL)


def is_same(word: str, other: str) -> bool:
    """Equal words; numbers may differ by one unit of their last decimal, as they do between CPUs."""
    if word == other or not all(re.fullmatch(r"-?\d+\.\d+", x) for x in (word, other)):
        return word == other
    decimals = len(word.partition(".")[2])
    return decimals == len(other.partition(".")[2]) and abs(float(word) - float(other)) < 1.5 * 10**-decimals


@pytest.mark.parametrize("document", DOCUMENTS)
def test_tables_of_the_documents_are_printed_by_the_program(walk: str, document: str) -> None:
    printed = [line.split() for line in walk.splitlines()]
    tables = fenced_blocks(document)
    assert len(tables) >= 8
    for table in tables:
        lines = [line.split() for line in table.splitlines()]
        assert any(
            all(
                len(line) == len(words) and all(map(is_same, line, words))
                for line, words in zip(lines, printed[start:], strict=False)
            )
            for start in range(len(printed) - len(lines) + 1)
        ), table


@pytest.mark.parametrize("document", DOCUMENTS)
def test_numbers_in_the_prose_of_the_documents_are_printed_by_the_program(walk: str, document: str) -> None:
    numbers = re.findall(r"\d\.\d{4}", (ROOT / document).read_text("utf-8"))
    assert [number for number in numbers if number not in walk] == []


def test_both_documents_quote_the_same_tables() -> None:
    english, chinese = map(fenced_blocks, DOCUMENTS)
    assert english == chinese
