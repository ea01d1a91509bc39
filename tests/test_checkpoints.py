import errno
import resource
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpt.checkpoint import load_model, read_checkpoint
from tests.runs import TrainTiny, at_step


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


def test_event_files_on_a_full_disk_cost_the_run_nothing(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.compat.tensorflow_stub.io.gfile import GFile

    def full(self: GFile, content: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        at_step(7, lambda: patch.setattr(GFile, "write", full), monkeypatch)
        assert train_tiny(tmp_path) == 0
    error = capfd.readouterr().err
    assert error.count("cannot write") == 1
    assert f"{tmp_path / 'tiny' / 'events.out.tfevents'}" in error
    assert "Traceback" not in error
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == 30


def test_keep_last_keeps_that_many_checkpoints(train_tiny: TrainTiny, tmp_path: Path) -> None:
    assert train_tiny(tmp_path, "--checkpoint.keep_last", "3") == 0
    names = sorted(path.name for path in (tmp_path / "tiny").glob("step_*"))
    assert names == ["step_00000024.ckpt", "step_00000025.ckpt", "step_00000030.ckpt"]
    for name in names:
        assert read_checkpoint(tmp_path / "tiny" / name)["global_step"] == int(name[5:13])
