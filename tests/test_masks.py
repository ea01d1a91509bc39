import itertools

import pytest
import torch
import torch.nn.functional as F

from gpt.model.attention import MultiHeadAttention
from gpt.model.config import GPTConfig
from gpt.model.masks import block_mask, document_ids, document_mask, document_positions
from gpt.model.transformer import GPT

EOT = 99


def test_document_ids_positions_and_mask_of_small_examples() -> None:
    ids = torch.tensor([[5, 6, EOT, 1, 2, EOT, EOT, 3], [EOT, 1, 2, 3, 4, 5, 6, EOT]])
    documents = document_ids(ids, EOT)
    assert documents.tolist() == [[0, 0, 1, 1, 1, 2, 3, 3], [1, 1, 1, 1, 1, 1, 1, 2]]
    assert document_positions(documents).tolist() == [[0, 1, 0, 1, 2, 0, 0, 1], [0, 1, 2, 3, 4, 5, 6, 0]]
    mask = document_mask(documents)
    assert isinstance(mask, torch.Tensor)
    for b, q, k in torch.cartesian_prod(torch.arange(2), torch.arange(8), torch.arange(8)).tolist():
        assert mask[b, 0, q, k] == (k <= q and documents[b, q] == documents[b, k])


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=100, context_length=64, d_model=32, num_layers=3, num_heads=4, dropout=0.0)
    return GPT(config).eval()


def _logits(model: GPT, ids: torch.Tensor) -> torch.Tensor:
    return F.linear(model.transformer(ids, document_ids(ids, EOT)), model.lm_head_weight)


def test_each_packed_document_has_the_same_logits_as_alone(model: GPT) -> None:
    generator = torch.Generator().manual_seed(1)
    parts = [torch.randint(0, 99, (size,), generator=generator) for size in (10, 1, 25, 20)]
    for part in parts[1:]:
        part[0] = EOT
    together = _logits(model, torch.cat(parts)[None])[0]
    alone = torch.cat([model(part[None])[0] for part in parts])
    torch.testing.assert_close(together, alone)


def test_changing_a_document_leaves_the_logits_of_all_others_bit_equal(model: GPT) -> None:
    generator = torch.Generator().manual_seed(2)
    starts = [0, 13, 30, 31, 64]
    ids = torch.randint(0, 99, (3, 64), generator=generator)
    ids[:, starts[1:-1]] = EOT
    before = _logits(model, ids)
    for start, stop in itertools.pairwise(starts):
        changed = ids.clone()
        changed[:, stop - 1] = (ids[:, stop - 1] + 1) % 99 if stop - 1 not in starts else EOT
        changed[:, start + 1 : stop] = (ids[:, start + 1 : stop] + 7) % 99
        after = _logits(model, changed)
        others = torch.ones(64, dtype=torch.bool)
        others[start:stop] = False
        assert torch.equal(after[:, others], before[:, others])
        if stop - start > 1:
            assert not torch.equal(after[:, ~others], before[:, ~others])


def test_without_the_mask_attention_crosses_document_boundaries(model: GPT) -> None:
    ids = torch.tensor([[1, 2, EOT, 3, 4]])
    changed = torch.tensor([[1, 7, EOT, 3, 4]])
    assert not torch.equal(model(ids)[:, 2:], model(changed)[:, 2:])
    assert torch.equal(_logits(model, ids)[:, 2:], _logits(model, changed)[:, 2:])


def test_flex_attention_with_the_block_mask_equals_the_dense_mask() -> None:
    ids = torch.randint(0, 100, (2, 256), generator=torch.Generator().manual_seed(3))
    ids[:, [40, 130, 200]] = EOT
    documents = document_ids(ids, EOT)
    flex = torch.nn.attention.flex_attention.flex_attention
    heads = [torch.randn(2, 4, 256, 16, generator=torch.Generator().manual_seed(n)) for n in range(3)]
    dense = F.scaled_dot_product_attention(*heads, attn_mask=document_mask(documents))
    torch.testing.assert_close(flex(*heads, block_mask=block_mask(documents)), dense)


@pytest.mark.gpu
def test_masked_logits_and_gradients_on_a_gpu_equal_those_on_a_cpu(model: GPT) -> None:
    ids = torch.randint(0, 99, (2, 64), generator=torch.Generator().manual_seed(4))
    ids[:, [13, 30]] = EOT
    results = []
    for device in ("cpu", "cuda"):
        model.zero_grad()
        logits = _logits(model.to(device), ids.to(device))
        logits.square().mean().backward()
        results.append((logits.detach().cpu(), model.lm_head_weight.grad.cpu()))
    torch.testing.assert_close(*results, rtol=1e-2, atol=1e-3)


def test_a_block_mask_is_refused_where_dropout_would_be_lost() -> None:
    mask = block_mask(torch.zeros(1, 4, dtype=torch.int64))
    attention = MultiHeadAttention(8, 8, context_length=4, dropout=0.1, num_heads=2)
    with pytest.raises(ValueError, match="no dropout"):
        attention(torch.randn(1, 4, 8), mask)
