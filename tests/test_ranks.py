"""Two processes on two machines, both simulated here with gloo."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpt.training.config import DataConfig, OptimConfig, RunConfig, TrainerConfig
from gpt.training.ranks import rank_identity

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(train_command: Callable[..., list[str]], tmp_path: Path) -> Start:
    """Start rank 0 or 1 of a run on two machines."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])

    def start(rank: int, *flags: str) -> "subprocess.Popen[str]":
        command = train_command(tmp_path / "runs", "--trainer.num_nodes", "2", "--run_name", "r", *flags)
        environment = {**os.environ, "NODE_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)

    return start


def test_ranks_with_other_flags_are_refused_in_one_line_and_leave_no_folder(start: Start, tmp_path: Path) -> None:
    ranks = [start(0), start(1, "--seed", "7")]
    outputs = [rank.communicate(timeout=60)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [2, 0]
    errors = [line for line in outputs[0].splitlines() if "error" in line]
    assert errors == [
        "error: seed is 1234 on rank 0 and 7 on rank 1; start all processes with the same config, flags and data"
    ]
    assert "Traceback" not in outputs[0] + outputs[1]
    assert not list((tmp_path / "runs").iterdir())


def test_a_process_that_waits_for_another_says_so_and_obeys_a_signal(start: Start, tmp_path: Path) -> None:
    process = start(0)
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "waits for all 2 processes" in line:
            break
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    rest = process.stderr.read()
    assert process.wait(timeout=10) == 143
    assert time.monotonic() - began < 5
    assert "SIGTERM before the first step" in rest
    assert "Traceback" not in rest
    assert not list((tmp_path / "runs").iterdir())


def test_the_identity_of_a_rank_ignores_what_may_differ_between_machines() -> None:
    one = RunConfig(checkpoints_dir="/a", run_name="x", data=DataConfig(path="/disk1/data", num_workers=4))
    two = RunConfig(checkpoints_dir="/b", run_name="y", data=DataConfig(path="/disk2/data", num_workers=0))
    assert rank_identity(one, "hash", 5) == rank_identity(two, "hash", 5)
    others = [
        rank_identity(RunConfig(optim=OptimConfig(learning_rate=1e-3)), "hash", 5),
        rank_identity(RunConfig(trainer=TrainerConfig(max_steps=7)), "hash", 5),
        rank_identity(one, "other", 5),
        rank_identity(one, "hash", 6),
    ]
    assert all(other != rank_identity(one, "hash", 5) for other in others)
