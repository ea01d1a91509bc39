"""The command line; test_prepare.py tests what it does."""

import json
from pathlib import Path

import pytest

from scripts import prepare_data


def test_json_prints_the_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("some text\n" * 100)
    arguments = [str(tmp_path / "a.txt"), "--output", str(tmp_path / "data"), "--tokenizer", "bytes", "--json"]
    assert prepare_data.main(arguments) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("path") == str(tmp_path / "data")
    assert printed == json.loads((tmp_path / "data" / "manifest.json").read_text())
    assert printed["splits"]["train"]["tokens"] == 901  # 90 lines of 10 bytes, and the end of text before them
    assert prepare_data.main(["--verify", str(tmp_path / "data")]) == 0
    assert "val: 101 tokens from 1 document (" in (verified := capsys.readouterr().err)
    assert "all bytes verified" in verified


@pytest.mark.parametrize(
    "arguments,words",
    [
        ([], "give a SOURCE"),
        (["pydocs"], "--output DIR"),
        (["missing.txt", "--output", "OUT"], "missing.txt"),
        (["pydocs", "--output", "OUT", "--tokenizer", "gtp2"], "unknown tokenizer 'gtp2'"),
        (["pydocs", "--output", "OUT", "--val-fraction", "2"], "fraction is 2.0; expected"),
        (["pydocs", "--output", "OUT", "--val-fraction", "x"], "--val-fraction"),
        (["pydocs", "--output", "OUT", "--colour"], "--colour"),
        (["--verify", "OUT"], "no prepared data"),
        (["pydocs", "--verify", "OUT"], "--verify"),
    ],
)
def test_a_user_error_is_one_line_and_writes_nothing(
    arguments: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "data"
    try:
        status = prepare_data.main([str(output) if argument == "OUT" else argument for argument in arguments])
    except SystemExit as exit_:  # from argparse
        status = exit_.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert not output.exists()
