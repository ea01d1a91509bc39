import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpt.checkpoint import load_model, read_checkpoint
from tests.runs import TrainTiny


@pytest.fixture
def full_disk() -> Iterator[Callable[[], None]]:
    """Limit files to 200 KB when called: simulates a full disk without root (EFBIG instead of ENOSPC)."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_a_one_line_error_and_keeps_the_previous_checkpoint(
    train_tiny: TrainTiny, tiny_copy: Path, full_disk: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    before = (tiny_copy / "last.ckpt").read_bytes()
    assert len(before) > 200_000
    full_disk()
    assert train_tiny(tiny_copy.parent, "--resume", "--trainer.max_steps", "40") == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: cannot save {tiny_copy / 'last.ckpt'}: File too large")
    assert (tiny_copy / "last.ckpt").read_bytes() == before
    assert not list(tiny_copy.glob("*.tmp"))
    load_model(tiny_copy)


def test_keep_last_keeps_that_many_checkpoints(train_tiny: TrainTiny, tmp_path: Path) -> None:
    assert train_tiny(tmp_path, "--checkpoint.keep_last", "3") == 0
    names = sorted(path.name for path in (tmp_path / "tiny").glob("step_*"))
    assert names == ["step_00000024.ckpt", "step_00000025.ckpt", "step_00000030.ckpt"]
    for name in names:
        assert read_checkpoint(tmp_path / "tiny" / name)["global_step"] == int(name[5:13])
