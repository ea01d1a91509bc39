"""A resumed run has the losses, weights and events of an uninterrupted run."""

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpt.checkpoint import load_model, read_checkpoint, write_model
from gpt.errors import UserError
from gpt.files import exclusive
from gpt.training.config_parser import parse_config
from gpt.training.run_folder import find_run, save_config
from gpt.training.step import StepCallback
from tests.runs import TAGS, HostilePickle, TrainTiny, at_step, events, run_differences, scalars


class CrashError(Exception):
    """Ends a run as a kill would: nothing is saved or finalised."""


def _crash() -> None:
    raise CrashError


def _images_and_texts(run_dir: Path) -> list[list[tuple[int, bytes]]]:
    board = events(run_dir)
    images = [board.Images("thumbnails/all_heads")]
    texts = board.Tensors("sample/text_summary")
    return [
        *([(event.step, event.encoded_image_string) for event in written] for written in images),
        [(event.step, event.tensor_proto.string_val[0]) for event in texts],
    ]


# Saves are at 5, 10, 12 (validated), 15, 20, 24 (validated), 25, 30; dropout and gradient accumulation are on.
@pytest.mark.parametrize(
    "step,hook",
    [(3, "after_step"), (7, "after_step"), (12, "after_step"), (12, "after_validation"),
     (13, "after_step"), (20, "after_step"), (24, "before_validation"), (30, "after_step")],
)  # fmt: skip
def test_a_run_resumed_after_a_crash_is_bit_equal(
    step: int, hook: str, train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch, pytest.raises(CrashError):
        at_step(step, _crash, patch, hook)
        train_tiny(tmp_path)
    assert train_tiny(tmp_path, "--resume") == 0
    assert run_differences(tmp_path / "tiny", tiny_run) == []
    assert _images_and_texts(tmp_path / "tiny") == _images_and_texts(tiny_run)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_run_resumed_after_several_crashes_with_loader_workers_and_muon_is_bit_equal(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--optim.name", "muon", "--optim.schedule", "wsd"]
    assert train_tiny(tmp_path / "uninterrupted", *flags) == 0
    for number, step in enumerate((8, 14, 17, 27)):
        with monkeypatch.context() as patch, pytest.raises(CrashError):
            at_step(step, _crash, patch)
            train_tiny(tmp_path / "resumed", *flags, "--data.num_workers", "2", *(["--resume"] if number else []))
    assert train_tiny(tmp_path / "resumed", "--resume") == 0  # the flags of the first start are saved
    assert run_differences(tmp_path / "resumed" / "tiny", tmp_path / "uninterrupted" / "tiny") == []


@pytest.mark.parametrize("number,status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("step", [7, 12])
def test_a_signal_finishes_the_step_and_saves_a_checkpoint(
    number: signal.Signals, status: int, step: int, train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with monkeypatch.context() as patch:
        at_step(step, lambda: os.kill(os.getpid(), number), patch)
        with pytest.raises(SystemExit) as stopped:
            train_tiny(tmp_path)
    assert stopped.value.code == status
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == step
    error = capfd.readouterr().err
    assert f"{number.name}: step {step} is saved in {tmp_path / 'tiny' / 'last.ckpt'}" in error
    assert "--resume --run_name tiny" in error
    assert "loss/val_nats" not in events(tmp_path / "tiny").Tags()["scalars"]  # at step 12 the validation was left
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before
    assert train_tiny(tmp_path, "--resume") == 0
    assert run_differences(tmp_path / "tiny", tiny_run) == []


def test_max_time_ends_a_run_with_a_validation_and_a_checkpoint(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        at_step(9, lambda: time.sleep(1.2), patch)
        assert train_tiny(tmp_path, "--trainer.max_time", "00:00:01", "--trainer.max_steps", "5000", "--json") == 0
    result = json.loads(capfd.readouterr().out)
    assert result["steps"] <= 9
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == result["steps"]
    assert max(scalars(tmp_path / "tiny", "loss/val_nats")) == result["steps"]


def test_a_run_resumed_with_another_micro_batch_size_reads_the_same_data(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train_tiny(tmp_path / "uninterrupted", "--model.dropout", "0") == 0
    with monkeypatch.context() as patch, pytest.raises(CrashError):
        at_step(14, _crash, patch)
        train_tiny(tmp_path / "resumed", "--model.dropout", "0")
    assert train_tiny(tmp_path / "resumed", "--resume", "--data.micro_batch_size", "1") == 0
    for tag in TAGS:
        uninterrupted, resumed = (scalars(tmp_path / name / "tiny", tag) for name in ("uninterrupted", "resumed"))
        assert resumed == pytest.approx(uninterrupted, rel=1e-3), tag
        assert list(resumed) == list(uninterrupted)


def test_a_completed_run_is_resumed_only_for_more_steps(
    train_tiny: TrainTiny, tiny_run: Path, tiny_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert (
        train_tiny(tmp_path, "--resume", "--json") == 0
    )  # exit status 0, so that a loop that restarts on failure ends
    captured = capfd.readouterr()
    assert "has completed its 30 steps; a larger --trainer.max_steps continues it" in captured.err
    result = json.loads(captured.out)
    assert (result["steps"], result["train_loss_nats"]) == (30, None)
    assert result["val_loss_nats"] == pytest.approx(scalars(tiny_run, "loss/val_nats")[30])
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "36") == 0
    assert "trainer.max_steps: 36 instead of 30 from now on" in capfd.readouterr().err
    assert list(scalars(tmp_path / "tiny", "loss/train_nats")) == list(range(1, 37))
    rates = scalars(tmp_path / "tiny", "optimizer/learning_rate")
    progress = (30 - 5) / (36 - 1 - 5)  # the first new step has the learning rate of the longer schedule
    assert rates[31] == pytest.approx(3e-4 + 0.5 * (1 + math.cos(math.pi * progress)) * 2.7e-3)
    # Of several ranks, only rank 0 prints.
    monkeypatch.setenv("RANK", "1")
    assert train_tiny(tmp_path, "--resume", "--json") == 0
    assert capfd.readouterr().out == ""
    monkeypatch.delenv("RANK")
    # The new max_steps is saved, so that the run is complete without the flag.
    assert train_tiny(tmp_path, "--resume") == 0
    assert "has completed its 36 steps" in capfd.readouterr().err


def test_the_first_step_of_an_extended_run_uses_the_logged_learning_rate(
    train_tiny: TrainTiny, tiny_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    original = torch.optim.AdamW.step

    def spy(self: torch.optim.AdamW, *args: Any, **options: Any) -> Any:
        used.append(self.param_groups[0]["lr"])
        return original(self, *args, **options)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "33") == 0
    assert used == pytest.approx([scalars(tmp_path / "tiny", "optimizer/learning_rate")[step] for step in (31, 32, 33)])


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
def test_changed_options_that_define_the_run_are_refused_by_name(
    flags: list[str], words: str, train_tiny: TrainTiny, tiny_copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.stat().st_mtime_ns for path in tiny_copy.iterdir()}
    assert train_tiny(tiny_copy.parent, "--resume", "--trainer.max_steps", "40", *flags) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith("error: ")
    assert words in error
    assert {path.name: path.stat().st_mtime_ns for path in tiny_copy.iterdir()} == before


def test_a_changed_config_file_is_refused(
    train_tiny: TrainTiny, tiny_copy: Path, tiny_config: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "tiny.yaml"
    changed.write_text(tiny_config.read_text().replace("warmup_steps: 5", "warmup_steps: 6"))
    assert train_tiny(tmp_path, "--config", str(changed), "--resume") == 2
    assert "optim.warmup_steps was 5" in capfd.readouterr().err


def test_other_data_is_refused(
    train_tiny: TrainTiny, tiny_copy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from gpt.data.prepare import prepare

    (tmp_path / "other.txt").write_text("other text\n" * 100)
    prepare([str(tmp_path / "other.txt")], tmp_path / "other", "bytes")
    flags = ["--resume", "--trainer.max_steps", "40", "--data.path", str(tmp_path / "other")]
    assert train_tiny(tmp_path, *flags) == 2
    assert "is not the data that" in capfd.readouterr().err


def test_resume_without_a_run_starts_one_and_reports_it(
    train_tiny: TrainTiny, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "3") == 0
    assert "no run to continue yet" in capfd.readouterr().err
    assert (tmp_path / "tiny" / "last.ckpt").exists()


def test_resume_continues_the_latest_of_numbered_runs(train_tiny: TrainTiny, tmp_path: Path) -> None:
    for _ in range(2):
        assert train_tiny(tmp_path, "--trainer.max_steps", "3") == 0
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "5") == 0
    assert read_checkpoint(tmp_path / "tiny-2" / "last.ckpt")["global_step"] == 5
    assert train_tiny(tmp_path, "--resume", "--run_name", "tiny", "--trainer.max_steps", "4") == 0
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == 4


@pytest.mark.parametrize("key,before,after", [
    ("optim.learning_rate", "learning_rate: 0.003", "learning_rate: 0.004"), ("seed", "seed: 1234", "seed: 7"),
    ("optim.weight_decay", "weight_decay: 0.1", "weight_decay: 0.2"), ("model.dropout", "dropout: 0.1", "dropout: 0.2"),
    ("model.num_heads", "num_heads: 2", "num_heads: 4"), ("model.num_layers", "num_layers: 2", "num_layers: 3"),
    ("data.global_batch_size", "global_batch_size: 4", "global_batch_size: 8"),
    ("optim.betas", "- 0.95", "- 0.99"), ("trainer.precision", "precision: 32-true", "precision: bf16-mixed"),
])  # fmt: skip
def test_a_run_s_config_that_was_edited_is_compared_with_its_checkpoint(
    key: str, before: str, after: str, tiny_copy: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from scripts import train

    config = tiny_copy / "config.yaml"
    assert before in config.read_text()
    config.write_text(config.read_text().replace(before, after))
    assert train.main(["--config", str(config), "--resume", "--trainer.max_steps", "40"]) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {key} was ")
    assert f"in {tiny_copy / 'last.ckpt'} and is now" in error


def test_a_run_without_last_ckpt_continues_from_its_other_checkpoints(
    train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    with monkeypatch.context() as patch, pytest.raises(CrashError):
        at_step(17, _crash, patch)
        train_tiny(tmp_path)
    (tmp_path / "tiny" / "last.ckpt").unlink()
    assert train_tiny(tmp_path, "--resume") == 0
    error = capfd.readouterr().err
    assert f"last.ckpt is missing; continuing from {tmp_path / 'tiny' / 'best.ckpt'}" in error
    assert "resuming after step 12" in error
    assert run_differences(tmp_path / "tiny", tiny_run) == []


def test_a_checkpoint_without_training_state_is_not_resumed(
    train_tiny: TrainTiny, tiny_copy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, tokenizer = load_model(tiny_copy)
    write_model(tiny_copy / "last.ckpt", model.config, model.state_dict(), tokenizer)
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "40") == 2
    assert "last.ckpt has no training state" in capfd.readouterr().err


@pytest.mark.parametrize(
    "changes",
    [
        *({"provenance": "x"}, {"global_step": "24"}, {"global_step": -5}, {"optimizer_states": []}),
        *({"lr_schedulers": []}, {"loops": None}, {"skipped_steps": None}, {"callbacks": {}}, {"state_dict": {}}),
    ],
)
def test_a_checkpoint_with_other_content_is_refused(
    changes: dict, train_tiny: TrainTiny, tiny_copy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content = read_checkpoint(tiny_copy / "last.ckpt", whole=True) | changes
    torch.save(content, tiny_copy / "last.ckpt")
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "40") == 2
    error = capfd.readouterr().err
    assert "has no training state" in error or "do not fit its config" in error
    assert "Traceback" not in error


def test_damaged_checkpoints_are_passed_over_or_named(
    train_tiny: TrainTiny, tiny_copy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(tiny_copy / "best.ckpt", tiny_copy / "step_00000024.ckpt")
    (tiny_copy / "step_00000099.ckpt").mkdir()
    (tiny_copy / "best.ckpt").write_bytes(b"PK")
    (tiny_copy / "last.ckpt").write_bytes(b"PK")
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "32") == 2
    assert "last.ckpt is not a checkpoint" in (error := capfd.readouterr().err)
    assert "if you delete it, --resume continues from the run's latest other one" in error
    (tiny_copy / "last.ckpt").unlink()
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "32") == 0
    assert "step_00000024.ckpt" in capfd.readouterr().err


def test_files_of_others_in_a_run_folder_are_ignored(train_tiny: TrainTiny, tiny_copy: Path, tmp_path: Path) -> None:
    names = ["events.out.tfevents.merged", "events.out.tfevents.", "step_x.ckpt.bak", "notes.ckpt", "notes.tmp"]
    names += ["step_mine.ckpt", "step_00000010_backup.ckpt"]
    for name in names:
        (tiny_copy / name).write_text("something else")
    (tiny_copy / "folder.ckpt.tmp").mkdir()
    flags = ["--trainer.max_steps", "36", "--checkpoint.keep_last", "1"]
    assert train_tiny(tmp_path, "--resume", *flags) == 0
    assert read_checkpoint(tiny_copy / "last.ckpt")["global_step"] == 36
    assert {path.name for path in tiny_copy.glob("step_*")} == {*names[2:3], *names[5:], "step_00000036.ckpt"}
    assert all((tiny_copy / name).read_text() == "something else" for name in names)


def test_flags_with_line_breaks_are_saved(train_tiny: TrainTiny, tmp_path: Path) -> None:
    flags = ["--attention_maps.probe_text", "one\ntwo 'three\nseed: 5"]
    assert train_tiny(tmp_path, *flags, "--trainer.max_steps", "3") == 0
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "4") == 0
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == 4


def test_a_folder_in_use_by_another_process_is_refused(
    train_tiny: TrainTiny, tiny_copy: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tiny_copy / "last.ckpt.tmp").write_bytes(b"half")
    with exclusive(tiny_copy, "-"):
        assert not (tiny_copy / "last.ckpt.tmp").exists()
        assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "36") == 2
    assert "another process is training in" in capfd.readouterr().err
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "31") == 0


def test_loader_workers_ignore_a_signal_to_the_process_group(
    train_tiny: TrainTiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
        at_step(7, signal_all, patch, "on_train_batch_start", StepCallback)
        with pytest.raises(SystemExit) as stopped:
            train_tiny(tmp_path, "--data.num_workers", "2", "--data.micro_batch_size", "1")
    assert stopped.value.code == 143
    assert read_checkpoint(tmp_path / "tiny" / "last.ckpt")["global_step"] == 8


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_same_signal_again_exits_immediately(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from gpt.training.checkpoints import Interruption, RunCheckpoints

    exits: list[int] = []
    monkeypatch.setattr("gpt.training.checkpoints.os._exit", exits.append)
    others = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP} - {number}
    with Interruption(RunCheckpoints(tmp_path, keep_last=0)).handlers():
        for each in (*others, number, number):  # `timeout -s INT` signals the process and then its group
            os.kill(os.getpid(), each)
        time.sleep(0.6)
        assert exits == []
        os.kill(os.getpid(), number)
        time.sleep(0.2)
        assert exits == [128 + number]


def test_a_process_that_waits_in_c_is_ended_by_the_same_signal_again(tmp_path: Path) -> None:
    code = (
        "import ctypes, pathlib, sys\n"
        "from gpt.training.checkpoints import Interruption, RunCheckpoints\n"
        "with Interruption(RunCheckpoints(pathlib.Path('.'), 0)).handlers():\n"
        "    print('waiting', flush=True)\n"
        "    while True: ctypes.CDLL(None).poll(None, 0, 20_000)\n"  # Python's handlers do not run in here
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGTERM)
    time.sleep(0.7)
    process.send_signal(signal.SIGTERM)
    assert "the same signal again stops at once" in process.communicate(timeout=10)[1]
    assert process.returncode == 143


def test_a_signal_during_the_agreement_of_two_processes_stops_them_at_the_next_step(
    tmp_path: Path, tiny_copy: Path
) -> None:
    from gpt.training.checkpoints import Interruption, RunCheckpoints

    def reduce(reason: torch.Tensor, reduce_op: str) -> torch.Tensor:
        os.kill(os.getpid(), signal.SIGTERM)
        return reason.clone()  # the other process has none either

    saved: list[Path] = []
    strategy = types.SimpleNamespace(reduce=reduce, root_device="cpu")
    trainer: Any = types.SimpleNamespace(
        world_size=2, global_step=1, max_steps=9, should_stop=False, strategy=strategy, is_global_zero=True, logger=None
    )
    trainer.save_checkpoint = saved.append
    interruption = Interruption(RunCheckpoints(tmp_path, keep_last=0))
    config = parse_config(tiny_copy / "config.yaml", [])
    with interruption.handlers():
        interruption.after_step(trainer, config)
        assert saved == []
        with pytest.raises(SystemExit) as stopped:
            interruption.after_step(trainer, config)
    assert stopped.value.code == 143
    assert saved == [tmp_path / "last.ckpt"]


def test_a_renamed_run_resumes_again_and_again_without_repeating_its_flags(tiny_copy: Path) -> None:
    run_dir = tiny_copy.rename(tiny_copy.parent / "renamed")
    config = parse_config(run_dir / "config.yaml", [])
    save_config(run_dir, replace(config, run_name="tiny"), ["--run_name", "tiny"])
    flags = ["--trainer.max_steps", "40"]
    for _ in range(3):
        found = find_run(run_dir / "config.yaml", flags)
        assert found is not None
        folder, config, all_flags = found
        assert (folder, config.trainer.max_steps) == (run_dir, 40)
        assert all_flags == ["--run_name", "tiny", *flags]
        save_config(run_dir, replace(config, run_name="renamed"), all_flags)  # as train.py does
    with pytest.raises(UserError, match=r"run_name was renamed .* and is now other"):
        find_run(run_dir / "config.yaml", ["--run_name", "other"])


def test_a_renamed_run_is_found_by_its_new_name(tiny_copy: Path, tmp_path: Path) -> None:
    run_dir = tiny_copy.rename(tiny_copy.parent / "renamed")
    lines = (run_dir / "config.yaml").read_text().splitlines(keepends=True)
    (tmp_path / "start.yaml").write_text("".join(lines[1:]))  # the config that it was started with
    found = find_run(tmp_path / "start.yaml", ["--checkpoints_dir", str(tmp_path), "--run_name", "renamed"])
    assert found is not None
    assert found[0] == run_dir


def test_the_config_of_a_run_folder_resumes_that_run(tiny_copy: Path) -> None:
    from scripts import train

    assert train.main(["--config", str(tiny_copy / "config.yaml"), "--resume", "--trainer.max_steps", "31"]) == 0
    assert read_checkpoint(tiny_copy / "last.ckpt")["global_step"] == 31


def _start_and_wait_for(line_start: str, command: list[str]) -> subprocess.Popen[str]:
    """Start a process in a process group of its own; return when a line of its stderr has that start."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    next(line for line in process.stderr if line.startswith(line_start))
    return process


@pytest.mark.parametrize("seed", [1, 2])
def test_a_run_resumed_after_kill_9_at_a_random_moment_is_bit_equal(
    seed: int, train_command: Callable[..., list[str]], tiny_run: Path, tmp_path: Path
) -> None:
    command = train_command(tmp_path, "--resume")
    started = _start_and_wait_for("step 1 of", command)  # imports take most of the time and save nothing
    time.sleep(random.Random(seed).uniform(0, 0.5))
    os.killpg(started.pid, signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert run_differences(tmp_path / "tiny", tiny_run) == []


@pytest.mark.slow
@pytest.mark.parametrize("number,status", [(signal.SIGTERM, 143), (signal.SIGKILL, None)])
def test_a_resumed_run_of_two_processes_is_bit_equal(
    number: signal.Signals, status: int | None, train_command: Callable[..., list[str]], tmp_path: Path
) -> None:
    command = train_command(tmp_path, "--trainer.devices", "2", "--trainer.strategy", "ddp", "--resume")
    command += ["--trainer.max_steps", "400", "--trainer.validate_every_steps", "100", "--data.num_workers", "1"]
    uninterrupted = subprocess.run([*command, "--run_name", "uninterrupted"], capture_output=True, text=True)
    assert uninterrupted.returncode == 0, uninterrupted.stderr
    resumed = [*command, "--run_name", "resumed"]
    started = _start_and_wait_for("step 100: validation", resumed)
    time.sleep(0.5)
    if status is None:
        os.killpg(started.pid, number)
        started.wait()
    else:
        started.send_signal(number)  # to rank 0 only, which tells the others
        assert started.wait(timeout=60) == status
    assert 100 <= read_checkpoint(tmp_path / "resumed" / "last.ckpt")["global_step"] < 400
    finished = subprocess.run(resumed, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
    assert run_differences(tmp_path / "resumed", tmp_path / "uninterrupted") == []


@pytest.mark.parametrize(
    "place,words",
    [
        ("checkpoint", "cannot be loaded safely"),
        ("entry of the checkpoint", "cannot be loaded safely"),
        ("config", "not valid YAML"),
    ],
)
def test_code_in_a_checkpoint_or_config_is_not_executed(
    place: str, words: str, train_tiny: TrainTiny, tiny_copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    target = tmp_path / "created"
    if place == "config":
        with (tiny_copy / "config.yaml").open("a") as config:
            config.write(f"evil: !!python/object/apply:os.mkdir ['{target}']\n")
    else:
        content = torch.load(tiny_copy / "last.ckpt", weights_only=True)
        content["callbacks"]["evil"] = HostilePickle(target)
        torch.save(HostilePickle(target) if place == "checkpoint" else content, tiny_copy / "last.ckpt")
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    assert train_tiny(tmp_path, "--resume", "--trainer.max_steps", "40") == 2
    assert words in capfd.readouterr().err
    assert not target.exists()
