import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpt.checkpoint import load_model, read_checkpoint

TrainTiny = Callable[..., int]


@pytest.fixture
def full_disk() -> Iterator[Callable[[], None]]:
    """Call it, and no file can grow beyond 200 KB: a stand-in for a full disk (EFBIG for ENOSPC) that needs no root."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limits[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_full_disk_is_one_line_and_leaves_the_checkpoint_before(
    train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, full_disk: Callable[[], None],
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shutil.copytree(tiny_run.parent, tmp_path, dirs_exist_ok=True)
    before = (tmp_path / "tiny" / "last.ckpt").read_bytes()
    assert len(before) > 200_000
    full_disk()
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "40") == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: cannot save {tmp_path / 'tiny' / 'last.ckpt'}: File too large")
    assert (tmp_path / "tiny" / "last.ckpt").read_bytes() == before
    assert not list((tmp_path / "tiny").glob("*.tmp"))
    load_model(tmp_path / "tiny")


def test_older_saves_are_kept_as_many_as_asked(train_tiny: TrainTiny, tmp_path: Path) -> None:
    assert train_tiny(tmp_path, "--checkpoint.keep_last", "3") == 0
    names = sorted(path.name for path in (tmp_path / "tiny").glob("step_*"))
    assert names == ["step_00000024.ckpt", "step_00000025.ckpt", "step_00000030.ckpt"]
    for name in names:
        assert read_checkpoint(tmp_path / "tiny" / name)["global_step"] == int(name[5:13])
