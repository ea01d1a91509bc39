import csv
import os
import signal
from pathlib import Path

import pytest

from gpt.training.metrics_file import COLUMNS, MetricsFile
from tests.runs import TrainTiny, at_step, scalars


def _columns(run_dir: Path) -> dict[str, dict[int, float]]:
    with (run_dir / "metrics.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    return {tag: {int(row["step"]): float(row[tag]) for row in rows if row[tag]} for tag in COLUMNS[1:]}


def test_the_file_has_the_scalars_of_tensorboard(tiny_run: Path) -> None:
    for tag, values in _columns(tiny_run).items():
        assert values == pytest.approx(scalars(tiny_run, tag), rel=1e-6), tag


def test_a_resumed_run_has_each_step_once(
    train_tiny: TrainTiny, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_step(17, lambda: os.kill(os.getpid(), signal.SIGTERM), monkeypatch)
    with pytest.raises(SystemExit):
        train_tiny(tmp_path)
    file = tmp_path / "tiny" / "metrics.csv"
    file.write_text(file.read_text() + "18,1.5,,,,,,,,\n19,2.")  # as after a kill -9: steps that are lost, half a line
    assert train_tiny(tmp_path, "--resume") == 0
    resumed, whole = _columns(tmp_path / "tiny"), _columns(tiny_run)
    for tag in COLUMNS[1:-1]:  # not the speed
        assert resumed[tag] == whole[tag], tag
    steps = [line.partition(",")[0] for line in file.read_text().splitlines()[1:]]
    assert sorted(steps, key=int) == steps
    assert len(steps) == 33  # 30 logs and 3 validations


def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "metrics.csv").mkdir()
    file = MetricsFile(tmp_path / "metrics.csv", 0)
    file.write(1, {"loss/train_nats": 2.0})
    assert caplog.text.count("the run goes on without it") == 1
