"""The script, on rows that take a moment."""

import json
from pathlib import Path

import pytest

from gpt.errors import UserError
from scripts import benchmark
from scripts.benchmarks import data
from scripts.benchmarks.protocol import Row
from scripts.benchmarks.runs import learning_rows

KEYS = {"work", "against", "value", "low", "high", "unit", "higher_is_better"}


def test_the_data_rows_run_on_a_small_text(tmp_path: Path) -> None:
    rows = data.prepare_rows(tmp_path, megabytes=1, pairs=1)
    assert [row.unit for row in rows] == ["times as fast", "MB/s"] * 2
    assert all(row.value > 0 for row in rows)
    text = (tmp_path / "text.txt").read_text()
    paragraphs = text.split("\n\n")
    assert len(text.encode()) >= 1e6
    assert len(set(paragraphs)) == len(paragraphs)


def test_json_has_the_keys_of_the_contract(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(data, "ROWS", {"one": lambda folder: [Row("w", "a", 1.0, 0.9, 1.1, "x", True)]})
    assert benchmark.main(["data", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert set(row) == KEYS


def test_rows_given_several_times_are_all_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {name: lambda folder, name=name: [Row(name, "a", 1.0, 0.9, 1.1, "x")] for name in ("one", "two", "three")}
    monkeypatch.setattr(data, "ROWS", rows)
    assert benchmark.main(["data", "--rows", "one", "--rows", "two", "--json"]) == 0
    assert [row["work"] for row in json.loads(capsys.readouterr().out)["rows"]] == ["one", "two"]


def test_an_unknown_row_or_peer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["data", "--rows", "nope"]) == 2
    assert capsys.readouterr().err == "error: --rows is 'nope'; expected any of prepare, loader\n"
    assert benchmark.main(["train", "--peers", "litgpt"]) == 2
    assert capsys.readouterr().err == "error: --peers is 'litgpt'; expected transformers or nanogpt=DIR\n"
    assert benchmark.main(["train", "--peers", f"transformers,nanogpt={tmp_path}"]) == 2
    assert "has no model.py" in capsys.readouterr().err


def test_a_row_without_its_peer_is_skipped_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["generate", "--rows", "peers", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"rows": []}
    assert "name one with --peers" in captured.err


def test_the_learning_rows_need_prepared_data_of_nanogpt(tmp_path: Path) -> None:
    assert learning_rows(tmp_path, None) == []
    with pytest.raises(UserError, match=r"run prepare\.py there"):
        learning_rows(tmp_path, tmp_path / "nanoGPT")
