"""Continuing a run: the same losses, weights and events as if nothing had happened."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.checkpoint import read_checkpoint
from gpt.files import exclusive
from gpt.training.step import StepCallback
from gpt.training.training_log import TrainingLog
from tests.test_run import events, same_weights, scalars, weights

TrainTiny = Callable[..., int]
TAGS = ("train/loss_nats", "train/learning_rate", "train/gradient_norm", "val/loss_nats", "val/perplexity")


class CrashError(Exception):
    """What a kill looks like from inside: nothing of ours runs any more."""


def _at(
    step: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch, hook: str = "after_step",
    owner: type = TrainingLog,
) -> None:  # fmt: skip
    """Do something once, when so many steps are done, before anything else that follows a step or a validation."""
    original = getattr(owner, hook)
    done = []

    def patched(self: Any, trainer: Any, *rest: Any) -> None:
        original(self, trainer, *rest)
        if trainer.global_step == step and not done:
            done.append(True)
            act()

    monkeypatch.setattr(owner, hook, patched)


def _crash() -> None:
    raise CrashError


def _same_run(first: Path, second: Path) -> None:
    assert same_weights(first, second)
    for tag in TAGS:
        assert scalars(first, tag) == scalars(second, tag), tag  # bit-equal, each step once
    best = [read_checkpoint(path / "best.ckpt") for path in (first, second)]
    assert best[0]["global_step"] == best[1]["global_step"]
    ours, theirs = (read_checkpoint(path / "last.ckpt")["optimizer_states"][0]["state"] for path in (first, second))
    for key in ours:
        assert all(torch.equal(ours[key][name], theirs[key][name]) for name in ours[key])


# Saves are at 5, 10, 12 (validated), 15, 20, 24 (validated), 25, 30; the tiny run has dropout and accumulation.
@pytest.mark.parametrize(
    "step,hook",
    [(3, "after_step"), (7, "after_step"), (12, "after_step"), (12, "after_validation"),
     (13, "after_step"), (20, "after_step"), (24, "before_validation"), (30, "after_step")],
)  # fmt: skip
def test_a_crash_at_any_point_is_continued_exactly(
    step: int, hook: str, train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(CrashError):
        _at(step, _crash, patch, hook)
        train_tiny(tmp_path)
    assert train_tiny(tmp_path, "--resume") == 0
    _same_run(tmp_path / "tiny", tiny_run)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_several_crashes_in_a_row_with_loader_workers_and_muon(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--optim.name", "muon", "--optim.schedule", "wsd"]
    assert train_tiny(tmp_path / "whole", *flags) == 0
    for number, step in enumerate((8, 14, 17, 27)):
        with monkeypatch.context() as patch, pytest.raises(CrashError):
            _at(step, _crash, patch)
            train_tiny(tmp_path / "cut", *flags, "--data.num_workers", "2", *(["--resume"] if number else []))
    assert train_tiny(tmp_path / "cut", "--resume") == 0  # the flags of the first start are remembered
    _same_run(tmp_path / "cut" / "tiny", tmp_path / "whole" / "tiny")


def test_images_and_texts_are_one_series(
    train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(CrashError):
        _at(14, _crash, patch)
        train_tiny(tmp_path)
    assert train_tiny(tmp_path, "--resume") == 0
    whole, cut = events(tiny_run), events(tmp_path / "tiny")
    images = [[(e.step, e.encoded_image_string) for e in run.Images("attention/all_heads")] for run in (whole, cut)]
    assert images[0] == images[1]
    texts = [
        [(e.step, e.tensor_proto.string_val[0]) for e in run.Tensors("sample/text_summary")] for run in (whole, cut)
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("number,status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("step", [7, 12])
def test_a_signal_finishes_the_step_saves_and_says_where(
    number: signal.Signals, status: int, step: int, train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        _at(step, lambda: os.kill(os.getpid(), number), patch)
        with pytest.raises(SystemExit) as stopped:
            train_tiny(tmp_path)
    assert stopped.value.code == status
    assert read_checkpoint(tmp_path / "tiny")["global_step"] <= step
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == step
    error = capfd.readouterr().err
    assert f"{number.name}: step {step} is saved in {tmp_path / 'tiny' / 'last.ckpt'}" in error
    assert "--resume --run_name tiny" in error
    if step == 12:  # a validation was due, and is not lost
        assert list(scalars(tmp_path / "tiny", "val/loss_nats")) == [12]
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    assert train_tiny(tmp_path, "--resume") == 0
    _same_run(tmp_path / "tiny", tiny_run)


def test_max_time_ends_a_run_in_good_order(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        _at(9, lambda: time.sleep(1.2), patch)
        assert train_tiny(tmp_path, "--trainer.max_time", "00:00:01", "--trainer.max_steps", "5000", "--json") == 0
    result = json.loads(capfd.readouterr().out)
    assert result["steps"] <= 9
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == result["steps"]
    assert max(scalars(tmp_path / "tiny", "val/loss_nats")) == result["steps"]


def test_another_division_of_the_batch_continues_the_same_data(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train_tiny(tmp_path / "whole", "--model.dropout", "0") == 0
    with monkeypatch.context() as patch, pytest.raises(CrashError):
        _at(14, _crash, patch)
        train_tiny(tmp_path / "cut", "--model.dropout", "0")
    assert train_tiny(tmp_path / "cut", "--resume", "--data.micro_batch_size", "1") == 0
    for tag in TAGS:
        whole, cut = scalars(tmp_path / "whole" / "tiny", tag), scalars(tmp_path / "cut" / "tiny", tag)
        assert cut == pytest.approx(whole, rel=1e-3), tag
        assert list(cut) == list(whole)


def test_a_finished_run_goes_on_with_more_steps(
    train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shutil.copytree(tiny_run.parent, tmp_path, dirs_exist_ok=True)
    assert train_tiny(tmp_path, "--resume", "--json") == 0  # so that a loop of restarts ends
    captured = capfd.readouterr()
    assert "has completed its 30 steps; a larger --trainer.max_steps continues it" in captured.err
    result = json.loads(captured.out)
    assert (result["steps"], result["train_loss_nats"]) == (30, None)
    assert result["val_loss_nats"] == pytest.approx(scalars(tiny_run, "val/loss_nats")[30])
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "36") == 0
    assert "trainer.max_steps: 36 instead of 30 from now on" in capfd.readouterr().err
    assert list(scalars(tmp_path / "tiny", "train/loss_nats")) == list(range(1, 37))
    rates = scalars(tmp_path / "tiny", "train/learning_rate")
    progress = (30 - 5) / (36 - 1 - 5)  # the first new step has the rate of the longer schedule
    assert rates[31] == pytest.approx(3e-4 + 0.5 * (1 + math.cos(math.pi * progress)) * 2.7e-3)
    # Of processes that torchrun started, the first speaks for all.
    monkeypatch.setenv("RANK", "1")
    assert train_tiny(tmp_path, "--resume", "--json") == 0
    assert capfd.readouterr().out == ""
    monkeypatch.delenv("RANK")
    # The changed length is remembered: nothing is left to do, without naming it again.
    assert train_tiny(tmp_path, "--resume") == 0
    assert "has completed its 36 steps" in capfd.readouterr().err


def test_the_first_step_of_a_longer_run_uses_the_rate_that_is_logged(
    train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(tiny_run.parent, tmp_path, dirs_exist_ok=True)
    used = []
    original = torch.optim.AdamW.step

    def spy(self: torch.optim.AdamW, *args: Any, **options: Any) -> Any:
        used.append(self.param_groups[0]["lr"])
        return original(self, *args, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "33") == 0
    assert used == pytest.approx([scalars(tmp_path / "tiny", "train/learning_rate")[step] for step in (31, 32, 33)])


@pytest.mark.parametrize(
    "flags,words",
    [
        (["--optim.learning_rate", "2e-3"], "optim.learning_rate was 0.003"),
        (["--model.d_model", "64"], "model.d_model was 32"),
        (["--seed", "9"], "seed was 1234"),
        (["--data.global_batch_size", "8"], "data.global_batch_size was 4"),
        (["--trainer.precision", "bf16-mixed"], "trainer.precision was 32-true"),
        (["--run_name", "other", "--model.d_modle", "64"], "did you mean model.d_model?"),
    ],
)
def test_what_would_make_it_another_run_is_refused_by_name(
    flags: list[str],
    words: str,
    train_tiny: TrainTiny,
    tiny_run: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(tiny_run.parent, tmp_path, dirs_exist_ok=True)
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "tiny").iterdir()}
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "40", *flags) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert words in error
    assert {path.name: path.stat().st_mtime_ns for path in (tmp_path / "tiny").iterdir()} == before


def test_a_changed_config_file_is_refused_too(
    train_tiny: TrainTiny, tiny_run: Path, tiny_config: Path, tiny_data: Path, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from scripts import train

    shutil.copytree(tiny_run.parent, tmp_path / "checkpoints")
    changed = tmp_path / "tiny.yaml"
    changed.write_text(tiny_config.read_text().replace("warmup_steps: 5", "warmup_steps: 6"))
    where = ["--checkpoints_dir", str(tmp_path / "checkpoints"), "--data.path", str(tiny_data)]
    assert train.main(["--config", str(changed), *where, "--resume"]) == 2
    assert "optim.warmup_steps was 5" in capfd.readouterr().err


def test_other_data_is_refused(
    train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from gpt.data.prepare import prepare

    shutil.copytree(tiny_run.parent, tmp_path / "checkpoints")
    (tmp_path / "other.txt").write_text("other text\n" * 100)
    prepare([str(tmp_path / "other.txt")], tmp_path / "other", "bytes")
    flags = ["--resume", "--trainer.max_steps", "40", "--data.path", str(tmp_path / "other")]
    assert train_tiny(tmp_path / "checkpoints", *flags) == 2
    assert "is not the data that" in capfd.readouterr().err


def test_with_no_run_yet_it_starts_one_and_says_so(
    train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "3") == 0
    assert "no run to continue yet" in capfd.readouterr().err
    assert (tmp_path / "tiny" / "last.ckpt").exists()


def test_the_latest_of_counted_runs_is_meant(
    train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert train_tiny(tmp_path, "--trainer.max_steps", "3") == 0
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "5") == 0
    assert read_checkpoint(tmp_path / "tiny-2" / "last.ckpt")["global_step"] == 5
    assert train_tiny(tmp_path, "--resume", "--run_name", "tiny", "--trainer.max_steps", "4") == 0
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == 4


def test_counted_names_are_read_after_the_whole_stem(tmp_path: Path) -> None:
    from gpt.training.run_folder import _latest

    for name in ("wiki-103", "wiki-103-2", "wiki-103-10", "wiki", "wiki-9"):
        (tmp_path / name).mkdir()
    assert _latest(tmp_path, None, "wiki-103").name == "wiki-103-10"
    (tmp_path / "wiki-103").rmdir()  # a gap does not hide what follows
    assert _latest(tmp_path, None, "wiki-103").name == "wiki-103-10"
    assert _latest(tmp_path, "wiki", "wiki-103").name == "wiki"
    assert _latest(tmp_path, None, "new").name == "new"


def test_flags_with_line_breaks_survive(train_tiny: TrainTiny, tmp_path: Path) -> None:
    odd = ["--attention_maps.probe_text", "one\ntwo 'three\nseed: 5"]
    assert train_tiny(tmp_path, *odd, "--trainer.max_steps", "3") == 0
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "4") == 0
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == 4


def test_two_processes_never_write_to_one_folder(
    train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_run.parent, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tiny" / "last.ckpt.tmp").write_bytes(b"half")
    with exclusive(tmp_path / "tiny", "-"):
        assert not (tmp_path / "tiny" / "last.ckpt.tmp").exists()
        assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "36") == 2
    assert "another process is training in" in capfd.readouterr().err
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "31") == 0


def test_a_signal_to_the_whole_group_spares_the_loader_workers(
    train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import multiprocessing

    def signal_all() -> None:
        children = [child.pid for child in multiprocessing.active_children()]
        assert len(children) >= 2
        for number in (signal.SIGINT, signal.SIGTERM):
            for pid in [*children, os.getpid()]:
                os.kill(pid, number)
        time.sleep(0.3)

    with monkeypatch.context() as patch:
        _at(7, signal_all, patch, "on_train_batch_start", StepCallback)
        with pytest.raises(SystemExit) as stopped:
            train_tiny(tmp_path, "--data.num_workers", "2", "--data.micro_batch_size", "1")
    assert stopped.value.code == 143
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == 8


def test_a_second_ctrl_c_leaves_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from gpt.training.checkpoints import RunCheckpoints
    from gpt.training.interruption import Interruption

    left: list[int] = []
    clock = [100.0]
    monkeypatch.setattr("gpt.training.interruption.os._exit", left.append)
    monkeypatch.setattr("gpt.training.interruption.time.monotonic", lambda: clock[0])
    with Interruption(RunCheckpoints(tmp_path, keep_last=0)).handlers():
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)  # the first Ctrl-C, also after a SIGTERM
        clock[0] += 0.1
        os.kill(os.getpid(), signal.SIGINT)  # the same one, sent to the process and to its group
        assert left == []
        clock[0] += 1.0
        os.kill(os.getpid(), signal.SIGINT)
        assert left == [130]


def test_a_runs_own_config_names_it(train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path) -> None:
    from scripts import train

    shutil.copytree(tiny_run.parent, tmp_path, dirs_exist_ok=True)
    assert (
        train.main(["--config", str(tmp_path / "tiny" / "config.yaml"), "--resume", "--trainer.max_steps", "31"]) == 0
    )
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == 31


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9_at_a_random_moment(
    seed: int, tiny_config: Path, tiny_data: Path, tiny_run: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "scripts/train.py", "--config", str(tiny_config), "--data.path", str(tiny_data)]
    command += ["--checkpoints_dir", str(tmp_path), "--resume"]
    started = subprocess.Popen(
        command, cwd=Path(__file__).parent.parent, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert started.stderr is not None
    for line in started.stderr:  # wait for the first step: imports take most of the time and save nothing
        if line.startswith("step 1 of"):
            break
    time.sleep(random.Random(seed).uniform(0, 0.5))
    os.killpg(started.pid, signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
    finished = subprocess.run(command, cwd=Path(__file__).parent.parent, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    _same_run(tmp_path / "tiny", tiny_run)
    assert weights(tmp_path / "tiny").keys() == weights(tiny_run).keys()


@pytest.mark.slow
@pytest.mark.parametrize("number,status", [(signal.SIGTERM, 143), (signal.SIGKILL, None)])
def test_two_processes_are_continued_exactly(
    number: signal.Signals, status: int | None, tiny_config: Path, tiny_data: Path, tmp_path: Path
) -> None:
    command = [sys.executable, "scripts/train.py", "--config", str(tiny_config), "--data.path", str(tiny_data)]
    command += ["--checkpoints_dir", str(tmp_path), "--trainer.devices", "2", "--trainer.strategy", "ddp", "--resume"]
    command += ["--trainer.max_steps", "400", "--trainer.validate_every_steps", "100", "--data.num_workers", "1"]
    root = Path(__file__).parent.parent
    whole = subprocess.run([*command, "--run_name", "whole"], cwd=root, capture_output=True, text=True)
    assert whole.returncode == 0, whole.stderr
    cut = [*command, "--run_name", "cut"]
    started = subprocess.Popen(cut, cwd=root, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert started.stderr is not None
    for line in started.stderr:
        if line.startswith("step 100: validation"):
            break
    time.sleep(0.5)
    if status is None:
        os.killpg(started.pid, number)
        started.wait()
    else:
        started.send_signal(number)  # to the first process alone: the others are told
        assert started.wait(timeout=60) == status
    assert 100 <= read_checkpoint(tmp_path / "cut" / "last.ckpt")["global_step"] < 400
    finished = subprocess.run(cut, cwd=root, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    _same_run(tmp_path / "cut", tmp_path / "whole")


class _Evil:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))


@pytest.mark.parametrize("where", ["whole", "inside"])
def test_a_hostile_checkpoint_runs_nothing(
    where: str, train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    shutil.copytree(tiny_run.parent, tmp_path, dirs_exist_ok=True)
    content = torch.load(tmp_path / "tiny" / "last.ckpt", weights_only=True)
    content["callbacks"]["evil"] = _Evil(tmp_path / "touched")
    torch.save(content if where == "inside" else _Evil(tmp_path / "touched"), tmp_path / "tiny" / "last.ckpt")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "40") == 2
    assert "cannot be loaded safely" in capfd.readouterr().err
    assert not (tmp_path / "touched").exists()


def test_a_hostile_config_runs_nothing(
    train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(tiny_run.parent, tmp_path, dirs_exist_ok=True)
    config = tmp_path / "tiny" / "config.yaml"
    evil = f"evil: !!python/object/apply:os.mkdir ['{tmp_path / 'touched'}']\n"
    config.write_text(config.read_text() + evil)
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "40") == 2
    assert "not valid YAML" in capfd.readouterr().err
    assert not (tmp_path / "touched").exists()
