"""Measure what a run survives: python -m tests.reliability [--kills 100] [--torn 20] [--soak 20000].

Each run is a child process forked after lightning is imported, so that a kill falls into the run and not into seconds
of imports. docs/reliability.md has the table of the last complete measurement; the test suite has a few seeded kills
(tests/test_resume.py).
"""

import argparse
import contextlib
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

import gpt.training.run  # noqa: F401  (imported before any fork)
from gpt.checkpoint import read_checkpoint
from scripts import train
from tests.conftest import TINY_CONFIG, prepare_tiny_data
from tests.runs import run_differences

logging.getLogger("tensorboard").setLevel(logging.ERROR)


def arguments_of(folder: Path, config: Path) -> list[str]:
    """The config and the data as arguments of train.py."""
    return ["--config", str(config), "--data.path", str(folder / "data")]


def start(arguments: list[str]) -> int:
    """Fork a training run into a new process group; returns its process id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.dup2(null, 2)
    try:
        status = train.main(arguments)
    except SystemExit as exit_:
        status = int(exit_.code or 0)
    except BaseException:
        status = 70
    os._exit(status)


def wait(pid: int) -> int:
    """Wait for a process; returns its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill(pid: int) -> bool:
    """Kill -9 a process and its loader workers; False if it had already exited."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    return wait(pid) == -signal.SIGKILL


def random_kills(folder: Path, config: Path, count: int) -> str:
    """Kill runs once or twice at uniformly random moments, then resume them to the end."""
    arguments = [*arguments_of(folder, config), "--resume", "--checkpoints_dir"]
    started = time.monotonic()
    assert wait(start([*arguments, str(folder / "uninterrupted")])) == 0
    seconds = time.monotonic() - started
    exact = unreadable = landed = 0
    for seed in range(count):
        generator = random.Random(seed)
        checkpoints_dir = folder / f"killed-{seed}"
        for _ in range(generator.choice((1, 1, 2))):
            pid = start([*arguments, str(checkpoints_dir)])
            time.sleep(generator.uniform(0, seconds))
            landed += kill(pid)
            for name in ("last.ckpt", "best.ckpt"):
                if (checkpoints_dir / "tiny" / name).exists():
                    try:
                        read_checkpoint(checkpoints_dir / "tiny" / name)
                    except ValueError:
                        unreadable += 1
        status = wait(start([*arguments, str(checkpoints_dir)]))
        exact += status == 0 and not run_differences(checkpoints_dir / "tiny", folder / "uninterrupted" / "tiny")
    outcome = f"{exact} exact, {unreadable} unreadable"
    return f"{count} runs of {seconds:.1f} s with {landed} kills at random moments | {outcome}"


def kills_while_saving(folder: Path, config: Path, count: int) -> str:
    """Kill a run while it saves 100 MB, which it does after each step, with TMPDIR on another filesystem."""
    arguments = [*arguments_of(folder, config), "--resume"]
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
    """Train on a tmpfs with space for one and a half checkpoints."""
    mount = folder / "small"
    mount.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=700k", "tmpfs", str(mount)], capture_output=True).returncode:
        return "full disk | not tried: mounting a tmpfs needs root"
    try:
        command = [sys.executable, "scripts/train.py", *arguments_of(folder, config), "--checkpoints_dir", str(mount)]
        finished = subprocess.run(command, capture_output=True, text=True)
        step = read_checkpoint(mount / "tiny" / "last.ckpt")["global_step"]
        return f"full disk | exit {finished.returncode}, `{finished.stderr.splitlines()[-1]}`; step {step} loads"
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def soak(folder: Path, config: Path, steps: int) -> str:
    """Compare memory and open files of a long run at a tenth of it and at its end."""
    arguments = [*arguments_of(folder, config), "--checkpoints_dir", str(folder / "soak"), "--trainer.max_steps"]
    arguments += [str(steps), "--data.global_batch_size", "2", "--trainer.log_every_n_steps", "50"]
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
        prepare_tiny_data(folder)
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
