import pytest
import torch

from gpt.generation.generate import prefill
from gpt.model.config import GPTConfig
from gpt.model.kv_cache import KVCache
from gpt.model.transformer import GPT


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    config = GPTConfig(vocab_size=97, context_length=32, d_model=32, num_layers=3, num_heads=4, dropout=0.3)
    model = GPT(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(3)
    return model


def _ids(*shape: int) -> torch.Tensor:
    return torch.randint(0, 97, shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("chunks", [[32], [1] * 32, [5, 1, 7, 1, 18], [31, 1], [1, 31], [16, 16]])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_cached_logits_equal_uncached_logits_for_any_chunk_sizes(
    chunks: list[int], batch_size: int, model: GPT
) -> None:
    ids = _ids(batch_size, 32)
    cache, parts = KVCache(model.config, batch_size), []
    for chunk in ids.split(chunks, dim=1):
        parts.append(model.logits(model.transformer(chunk, cache=cache)))
        cache.advance([chunk.shape[1]] * batch_size)
    torch.testing.assert_close(torch.cat(parts, dim=1), model(ids), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("T", [1, 3])
def test_sequences_of_unequal_lengths_have_the_same_logits_as_alone(T: int, model: GPT) -> None:
    lengths = [4, 1, 9, 29]
    ids = _ids(4, 32)
    cache = KVCache(model.config, 4)
    hidden = prefill(model, cache, [sequence[:n].tolist() for sequence, n in zip(ids, lengths, strict=True)])
    alone = torch.stack([model(sequence[None, :n])[0, -1] for sequence, n in zip(ids, lengths, strict=True)])
    torch.testing.assert_close(model.logits(hidden), alone, rtol=1e-5, atol=1e-5)
    new = torch.stack([sequence[n : n + T] for sequence, n in zip(ids, lengths, strict=True)])
    together = model.logits(model.transformer(new, cache=cache))
    cache.advance([T] * 4)
    for logits, sequence, n in zip(together, ids, lengths, strict=True):
        torch.testing.assert_close(logits, model(sequence[None, : n + T])[0, -T:], rtol=1e-5, atol=1e-5)
    assert cache.lengths == [n + T for n in lengths]
    # A subset of the sequences continues.
    cache.compact([0, 2])
    subset = model.logits(model.transformer(ids[[0, 2], 20:21], cache=cache))
    expected = [torch.cat([ids[i, : lengths[i] + T], ids[i, 20:21]]) for i in (0, 2)]
    for logits, sequence in zip(subset, expected, strict=True):
        torch.testing.assert_close(logits[-1], model(sequence[None])[0, -1], rtol=1e-5, atol=1e-5)


def test_compact_moves_sequences_within_the_same_memory(model: GPT) -> None:
    cache = KVCache(model.config, 5)
    memory = cache.keys.data_ptr()
    cache.lengths = [3, 9, 32, 1, 7]
    for number in range(5):
        cache.sequence(number).keys.fill_(number)
        cache.sequence(number).values.fill_(-number)
    cache.compact([1, 2, 4])
    assert cache.lengths == [9, 32, 7]
    for place, (number, length) in enumerate(((1, 9), (2, 32), (4, 7))):
        assert (cache.keys[:, place, :, :length] == number).all()
        assert (cache.values[:, place, :, :length] == -number).all()
    assert (len(cache.keys[0]), cache.keys.data_ptr()) == (3, memory)


def test_more_tokens_than_the_cache_holds_fail_an_assertion(model: GPT) -> None:
    cache = KVCache(model.config, 1)
    model.transformer(_ids(1, 32), cache=cache)
    cache.advance([32])
    with pytest.raises(AssertionError, match=r"33 tokens.*32"):
        model.transformer(_ids(1, 1), cache=cache)
