"""A run that ends early, by a signal, a crash or a lost terminal: quickly, with its status, no process left."""

import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt.checkpoint import steps_trained

# All are started before the first is waited for: a start takes seconds, and most of it is imports.
LONG = ["--trainer.max_steps", "100000", "--trainer.validate_every_steps", "2", "--trainer.sample_tokens", "0"]


def _descendants(group: int) -> list[str]:
    """Processes of a group that are alive."""
    lines = subprocess.run(["ps", "-eo", "pgid,stat,args"], capture_output=True, text=True).stdout.splitlines()[1:]
    return [line for line in lines if int(line.split()[0]) == group and not line.split()[1].startswith("Z")]


def _kill_a_loader_process(process: "subprocess.Popen[str]") -> None:
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)


CASES: list[tuple[int, Callable[["subprocess.Popen[str]"], None], int, str]] = [
    (2, lambda process: process.send_signal(signal.SIGTERM), 143, "SIGTERM: step"),
    (2, lambda process: os.killpg(process.pid, signal.SIGINT), 130, "SIGINT: step"),
    (1, lambda process: os.killpg(process.pid, signal.SIGHUP), 129, "SIGHUP: step"),
    (2, _kill_a_loader_process, 2, "error: a process of the run has ended: DataLoader worker"),
]


def test_a_run_with_loader_workers_ends_within_seconds_and_leaves_no_process(
    train_command: Callable[..., list[str]], tmp_path: Path
) -> None:
    processes = []
    for number, (workers, _, _, _) in enumerate(CASES):
        command = train_command(tmp_path, *LONG, "--run_name", str(number), "--data.num_workers", str(workers))
        processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True))
    for process, (_, act, status, words) in zip(processes, CASES, strict=True):
        assert process.stderr is not None
        while "validation loss" not in process.stderr.readline():
            assert process.poll() is None
        act(process)
        began = time.monotonic()
        rest = process.stderr.read()
        assert process.wait(timeout=20) == status
        assert time.monotonic() - began < 15  # 1 s on a free machine; a worker that is waited for takes for ever
        assert words in rest
        assert "Traceback" not in rest
        assert _descendants(process.pid) == []


@pytest.mark.parametrize("is_ignored", [True, False], ids=["nohup", "terminal"])
def test_a_run_that_loses_its_terminal_goes_on_or_saves(
    is_ignored: bool, train_command: Callable[..., list[str]], tmp_path: Path
) -> None:
    command = train_command(tmp_path, "--trainer.max_steps", "200")
    pid, terminal = pty.fork()
    if pid == 0:
        if is_ignored:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.execv(command[0], command)
    shown = b""
    while b"step 12: validation loss" not in shown:
        shown += os.read(terminal, 4096)
    os.close(terminal)  # sends SIGHUP; writing to the terminal fails from now on
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert status == (0 if is_ignored else 129)
    steps = steps_trained(tmp_path / "tiny" / "last.ckpt")
    assert steps == 200 if is_ignored else 12 <= steps < 200
