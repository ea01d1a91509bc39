"""What a run survives, as a table: python -m tests.reliability [--kills 100] [--torn 20] [--soak 20000].

Each run is a child forked from this process once lightning is imported, so that a kill can fall anywhere in a run and
not mostly into seconds of imports. docs/reliability.md has the table of the last whole go; the suite runs a seeded
handful of the kills (tests/test_resume.py).
"""

import argparse
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib

import torch

import gpt.training.run  # noqa: F401  (imported here, before any fork)
from gpt.checkpoint import read_checkpoint
from scripts import prepare_data, train
from tests.conftest import TINY_CONFIG
from tests.test_run import scalars

TAGS = ("train/loss_nats", "train/learning_rate", "train/gradient_norm", "val/loss_nats")
logging.getLogger("tensorboard").setLevel(logging.ERROR)


def start(arguments: list[str]) -> int:
    """Fork a training run in a session of its own; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    try:
        status = train.main(arguments)
    except SystemExit as exit_:
        status = int(exit_.code or 0)
    except BaseException:
        status = 70
    os._exit(status)


def wait(pid: int) -> int:
    """Its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int) -> bool:
    """Kill -9 it and its loader workers; False if it had ended by itself."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return wait(pid) == -signal.SIGKILL


def same(first: Path, second: Path) -> bool:
    """Whether two finished runs have the same weights, optimizer state, curves and best checkpoint, bit for bit."""
    ours, theirs = (read_checkpoint(path / "last.ckpt") for path in (first, second))
    states = [content["optimizer_states"][0]["state"] for content in (ours, theirs)]
    return (
        all(torch.equal(ours["state_dict"][name], theirs["state_dict"][name]) for name in ours["state_dict"])
        and all(torch.equal(states[0][k][name], states[1][k][name]) for k in states[0] for name in states[0][k])
        and all(scalars(first, tag) == scalars(second, tag) for tag in TAGS)
        and read_checkpoint(first / "best.ckpt")["global_step"] == read_checkpoint(second / "best.ckpt")["global_step"]
    )


def random_kills(folder: Path, config: Path, count: int) -> str:
    """Runs killed once or twice at moments spread evenly over their whole length, then continued to the end."""
    arguments = ["--config", str(config), "--data.path", str(folder / "data"), "--resume", "--checkpoints_dir"]
    began = time.monotonic()
    assert wait(start([*arguments, str(folder / "whole")])) == 0
    length = time.monotonic() - began
    exact = unreadable = landed = 0
    for seed in range(count):
        draw = random.Random(seed)
        where = folder / f"killed-{seed}"
        for _ in range(draw.choice((1, 1, 2))):
            pid = start([*arguments, str(where)])
            time.sleep(draw.uniform(0, length))
            landed += kill(pid)
            for name in ("last.ckpt", "best.ckpt"):
                if (where / "tiny" / name).exists():
                    try:
                        read_checkpoint(where / "tiny" / name)
                    except ValueError:
                        unreadable += 1
        status = wait(start([*arguments, str(where)]))
        exact += status == 0 and same(where / "tiny", folder / "whole" / "tiny")
    return (
        f"{count} runs of {length:.1f} s with {landed} kills at random moments | {exact} exact, {unreadable} unreadable"
    )


def kills_while_saving(folder: Path, config: Path, count: int) -> str:
    """Kills of a run that saves 100 MB after each step, with TMPDIR on another filesystem."""
    arguments = ["--config", str(config), "--data.path", str(folder / "data"), "--resume"]
    arguments += ["--model.d_model", "256", "--model.num_layers", "10", "--model.num_heads", "4"]
    arguments += ["--checkpoint.every_steps", "1", "--trainer.max_steps", "100000", "--attention_maps.enabled", "false"]
    arguments += ["--trainer.validate_every_steps", "100000", "--data.global_batch_size", "2"]
    arguments += ["--checkpoints_dir", str(folder / "saving")]
    os.environ["TMPDIR"] = "/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir()
    run = folder / "saving" / "tiny"
    torn = while_writing = 0
    for seed in range(count):
        pid = start(arguments)
        before = (run / "last.ckpt").stat().st_mtime_ns if (run / "last.ckpt").exists() else 0
        while not (run / "last.ckpt").exists() or (run / "last.ckpt").stat().st_mtime_ns == before:
            time.sleep(0.02)
        time.sleep(random.Random(seed).uniform(0, 0.3))
        while not (run / "last.ckpt.tmp").exists():  # the next save is being written
            time.sleep(0.001)
        kill(pid)
        while_writing += (run / "last.ckpt.tmp").exists()
        try:
            content = read_checkpoint(run / "last.ckpt")
            assert all(tensor.isfinite().all() for tensor in content["state_dict"].values())
        except ValueError:
            torn += 1
    size = (run / "last.ckpt").stat().st_size / 1e6
    return f"{count} kills of a {size:.0f} MB save, {while_writing} with the file half-written | {torn} torn"


def full_disk(folder: Path, config: Path) -> str:
    """A tmpfs that has room for one checkpoint and a half."""
    mount = folder / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(mount)], capture_output=True).returncode:
        return "full disk | not tried: mounting a tmpfs needs root"
    try:
        arguments = [sys.executable, "scripts/train.py", "--config", str(config), "--data.path", str(folder / "data")]
        finished = subprocess.run([*arguments, "--checkpoints_dir", str(mount)], capture_output=True, text=True)
        step = read_checkpoint(mount / "tiny" / "last.ckpt")["global_step"]
        return f"full disk | exit {finished.returncode}, `{finished.stderr.splitlines()[-1]}`; step {step} loads"
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def soak(folder: Path, config: Path, steps: int) -> str:
    """Memory and open files of a long run, at a tenth of it and at its end."""
    arguments = [
        "--config",
        str(config),
        "--data.path",
        str(folder / "data"),
        "--checkpoints_dir",
        str(folder / "soak"),
    ]
    arguments += [
        "--trainer.max_steps",
        str(steps),
        "--data.global_batch_size",
        "2",
        "--trainer.log_every_n_steps",
        "50",
    ]
    arguments += ["--trainer.validate_every_steps", "100", "--checkpoint.every_steps", "50"]
    arguments += ["--attention_maps.captures", "12"]
    pid = start(arguments)
    readings: dict[int, tuple[int, int]] = {}
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert os.waitstatus_to_exitcode(status) == 0
            break
        try:
            step = read_checkpoint(folder / "soak" / "tiny" / "last.ckpt")["global_step"]
            resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
            readings[step] = (resident, len(os.listdir(f"/proc/{pid}/fd")))  # noqa: PTH208
        except (ValueError, OSError):
            pass
        time.sleep(0.5)
    early = min(step for step in readings if step >= steps // 10)
    late = max(readings)
    (m1, f1), (m2, f2) = readings[early], readings[late]
    return (
        f"{steps:,} steps with validation, saves and maps | resident {m1 / 2**20:.0f} MiB at step {early:,}, "
        f"{m2 / 2**20:.0f} at {late:,} ({m2 / m1 - 1:+.1%}); open files {f1} and {f2}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--torn", type=int, default=20)
    parser.add_argument("--soak", type=int, default=20_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name)
        text = "\n".join(f"{number} bottles of beer on the wall, take one down" for number in range(80))
        (folder / "song.txt").write_text(text)
        prepare_data.main([str(folder / "song.txt"), "--output", str(folder / "data"), "--tokenizer", "bytes"])
        config = folder / "tiny.yaml"
        config.write_text(TINY_CONFIG)
        print("| what | outcome |\n|---|---|", flush=True)
        for row in (
            lambda: random_kills(folder, config, args.kills),
            lambda: kills_while_saving(folder, config, args.torn),
            lambda: full_disk(folder, config),
            lambda: soak(folder, config, args.soak),
        ):
            print(f"| {row()} |", flush=True)


if __name__ == "__main__":
    main()
