"""The script, on rows that take a moment; what is measured is in test_protocol.py and in the code measured."""

import json
from pathlib import Path

import pytest

from gpt.benchmark import data
from scripts import benchmark

KEYS = {"work", "against", "value", "low", "high", "unit", "higher_is_better", "must", "aim", "met"}


def test_the_data_rows_run_on_a_small_text(tmp_path: Path) -> None:
    rows = data.prepare_rows(tmp_path, megabytes=1, pairs=1)
    assert [row.must for row in rows] == [0.85, None, 0.85, None]
    assert all(row.value > 0 for row in rows)
    text = (tmp_path / "text.txt").read_text()
    paragraphs = text.split("\n\n")
    assert len(text.encode()) >= 1e6
    assert len(set(paragraphs)) == len(paragraphs)


def test_json_is_the_contracts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from gpt.benchmark.protocol import Row

    monkeypatch.setattr(data, "ROWS", {"one": lambda folder: [Row("w", "a", 1.0, 0.9, 1.1, "x", True, 1.0, 2.0)]})
    assert benchmark.main(["data", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert set(row) == KEYS
    assert row["met"] == "must"


def test_an_unknown_row_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark.main(["data", "--rows", "nope"]) == 2
    assert capsys.readouterr().err == "error: there is no row 'nope' in data; it has prepare, loader\n"


def test_the_learning_rows_need_nanogpts_data(tmp_path: Path) -> None:
    from gpt.benchmark.learning import learning_rows

    assert learning_rows(tmp_path, None) == []
    with pytest.raises(ValueError, match=r"run prepare\.py there"):
        learning_rows(tmp_path, tmp_path / "nanoGPT")
