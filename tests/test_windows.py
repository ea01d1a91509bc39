import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gpt.data.manifest import Manifest, SplitTokens
from gpt.data.token_files import Split
from gpt.data.windows import (
    IGNORED,
    TokenWindows,
    TrainingBatches,
    TrainingLoader,
    epoch_permutation,
)
from gpt.errors import UserError
from tests.prepared import write_shard


def _split(folder: Path, length: int, shard_sizes: list[int] | None = None) -> SplitTokens:
    """Tokens 0, 1, 2, ... in several shards: each token is its own position."""
    ends = np.cumsum(shard_sizes) if shard_sizes else range(50, length + 50, 50)
    parts = np.split(np.arange(length, dtype="<u2"), [end for end in ends if end < length])
    shards = [write_shard(folder / f"train_{number:06d}.bin", part) for number, part in enumerate(parts)]
    manifest = Manifest(
        tokenizer="none", tokenizer_sha256="", vocab_size=2**16, eot_id=0, dtype="uint16",
        splits={"train": Split(length, 1, length, tuple(shards))}, corpus_sha256="", sources=(), options={},
    )  # fmt: skip
    return SplitTokens(folder, manifest, "train")


@pytest.mark.parametrize("length,context_length", [(11, 10), (101, 10), (102, 10), (110, 10), (237, 64), (12, 1)])
def test_each_token_but_the_first_is_a_target_once(length: int, context_length: int, tmp_path: Path) -> None:
    windows = TokenWindows(_split(tmp_path, length), context_length)
    targets: Counter[int] = Counter()
    for index in range(len(windows)):
        window = windows[index]
        assert window["inputs"].shape == window["targets"].shape == (context_length,)
        counts = window["targets"] != IGNORED
        assert counts.sum() == windows.num_targets(index)
        assert torch.equal(window["inputs"][counts] + 1, window["targets"][counts])
        targets.update(window["targets"][counts].tolist())
    assert targets == Counter(range(1, length))


@pytest.mark.parametrize("length", [11, 12, 15, 30, 101])
@pytest.mark.parametrize("overlap", [0, 1, 5, 9])
def test_overlapping_windows_have_each_target_once_with_overlap_tokens_before_it(
    length: int, overlap: int, tmp_path: Path
) -> None:
    windows = TokenWindows(_split(tmp_path, length), 10, overlap)
    seen: Counter[int] = Counter()
    for index in range(len(windows)):
        window = windows[index]
        counted = (window["targets"] != IGNORED).nonzero()[:, 0].tolist()
        assert len(counted) == windows.num_targets(index) > 0
        assert index == 0 or counted[0] == overlap  # inputs before that of the first target
        assert (window["inputs"][counted] + 1).tolist() == window["targets"][counted].tolist()
        seen.update(window["targets"][counted].tolist())
    assert seen == Counter(range(1, length))


def test_an_overlap_outside_the_window_is_refused(tmp_path: Path) -> None:
    for overlap in (-1, 10):
        with pytest.raises(UserError, match=f"overlap is {overlap}; expected"):
            TokenWindows(_split(tmp_path, 30), 10, overlap)


def test_a_window_index_out_of_range_raises(tmp_path: Path) -> None:
    windows = TokenWindows(_split(tmp_path, 30), 10)
    for index in (-1, 3):
        with pytest.raises(IndexError):
            windows[index]


def test_a_split_shorter_than_a_window_raises_with_both_lengths(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"11 tokens.*'train' has 10"):
        TokenWindows(_split(tmp_path, 10), 10)


@pytest.mark.parametrize("size", [1, 2, 3, 16, 17, 100, 1000, 4097])
def test_the_order_of_an_epoch_is_a_permutation(size: int) -> None:
    orders = [epoch_permutation(np.arange(size), size, seed=1, epoch=epoch) for epoch in range(3)]
    for order in orders:
        assert sorted(order) == list(range(size))
    if size >= 16:
        assert not np.array_equal(orders[0], orders[1])
        assert not np.array_equal(orders[0], epoch_permutation(np.arange(size), size, seed=2, epoch=0))


def test_epoch_orders_are_uniformly_distributed() -> None:
    places = np.stack([epoch_permutation(np.arange(10), 10, seed, 0) for seed in range(2000)])
    counts = np.stack([np.bincount(column, minlength=10) for column in places.T])
    # 2,000 draws into 10 places: 200 each with a standard deviation of 13.4; 5 of them either way.
    assert np.abs(counts - 200).max() < 67


def test_a_huge_permutation_is_evaluated_at_single_points() -> None:
    size = 10**9
    points = epoch_permutation(np.array([0, 1, size - 1]), size, seed=0, epoch=0)
    assert len(set(points.tolist())) == 3
    assert points.min() >= 0
    assert points.max() < size


def _targets(batch: dict) -> list[int]:
    targets = batch["targets"]
    return targets[targets != IGNORED].tolist()


def test_an_epoch_has_each_target_once_and_batches_span_epochs(tmp_path: Path) -> None:
    windows = TokenWindows(_split(tmp_path, 96), 10)  # 10 windows, the last one shorter
    batches = TrainingBatches(windows, seed=3, global_batch_size=4, micro_batch_size=2)
    seen = [target for number in range(10) for target in _targets(batches[number])]  # 20 windows: two epochs
    assert Counter(seen) == Counter(dict.fromkeys(range(1, 96), 2))
    assert Counter(seen[:95]) == Counter(range(1, 96))


def test_a_batch_depends_on_its_number_and_the_seed_alone(tmp_path: Path) -> None:
    windows = TokenWindows(_split(tmp_path, 1000), 10)
    first, second = (TrainingBatches(windows, 3, global_batch_size=4, micro_batch_size=2) for _ in range(2))
    second[17]
    for number in (0, 5, 17, 123_456_789):
        assert torch.equal(first[number]["inputs"], second[number]["inputs"])
        assert first[number]["number"] == number
    other_seed = TrainingBatches(windows, 4, global_batch_size=4, micro_batch_size=2)
    assert not torch.equal(first[0]["inputs"], other_seed[0]["inputs"])


@pytest.mark.parametrize("world_size,micro_batch_size", [(1, 6), (2, 3), (3, 2), (2, 1), (6, 1)])
def test_ranks_and_micro_batches_together_see_the_global_batch(
    world_size: int, micro_batch_size: int, tmp_path: Path
) -> None:
    windows = TokenWindows(_split(tmp_path, 175), 10)  # 18 windows; batches of 6 end with the epoch
    whole = TrainingBatches(windows, seed=5, global_batch_size=6, micro_batch_size=6)
    ranks = [TrainingBatches(windows, 5, 6, micro_batch_size, rank, world_size) for rank in range(world_size)]
    for step in range(7):
        parts = [rank[step * rank.accumulation + micro] for micro in range(ranks[0].accumulation) for rank in ranks]
        assert [t for part in parts for t in _targets(part)] == _targets(whole[step])
        assert {part["global_targets"] for part in parts} == {len(_targets(whole[step]))}


@given(
    shard_sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    context_length=st.integers(1, 20),
    micro_batch_size=st.integers(1, 3),
    world_size=st.integers(1, 3),
    accumulation=st.integers(1, 3),
    resumed_at=st.integers(0, 30),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=60, deadline=None)
def test_every_target_is_seen_once_per_epoch_in_an_order_independent_of_ranks(
    shard_sizes: list[int],
    context_length: int,
    micro_batch_size: int,
    world_size: int,
    accumulation: int,
    resumed_at: int,
    seed: int,
) -> None:
    assume(sum(shard_sizes) > context_length)
    with tempfile.TemporaryDirectory() as folder:
        windows = TokenWindows(_split(Path(folder), sum(shard_sizes), shard_sizes), context_length)
        batch_size = micro_batch_size * world_size * accumulation
        whole = TrainingBatches(windows, seed, batch_size, batch_size)
        ranks = [TrainingBatches(windows, seed, batch_size, micro_batch_size, r, world_size) for r in range(world_size)]
        # Two epochs, and the batch that spans into the third, step by step, by all ranks in turn.
        steps = -(-2 * len(windows) // batch_size)
        seen: list[int] = []
        for step in range(steps):
            parts = [rank[step * accumulation + micro] for micro in range(accumulation) for rank in ranks]
            targets = [target for part in parts for target in _targets(part)]
            assert targets == _targets(whole[step])
            assert {part["global_targets"] for part in parts} == {len(targets)}
            seen += targets
        per_epoch = sum(shard_sizes) - 1
        assert Counter(seen[:per_epoch]) == Counter(range(1, per_epoch + 1))
        assert Counter(seen[per_epoch : 2 * per_epoch]) == Counter(range(1, per_epoch + 1))
        # A resumed run counts on from its last batch, and sees those of an uninterrupted one.
        continued = iter(TrainingLoader(TrainingBatches(windows, seed, batch_size, batch_size), start=resumed_at))
        for step in range(resumed_at, resumed_at + 3):
            assert _targets(next(continued)) == _targets(whole[step])


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_batches_do_not_depend_on_the_number_of_loader_workers(num_workers: int, tmp_path: Path) -> None:
    windows = TokenWindows(_split(tmp_path, 500), 10)
    batches = TrainingBatches(windows, 5, 6, 3)
    loader = iter(TrainingLoader(batches, start=7, num_workers=num_workers))
    for number in range(7, 27):
        batch = next(loader)
        assert batch["number"] == number
        for name in ("inputs", "targets"):
            assert torch.equal(batch[name], batches[number][name])
