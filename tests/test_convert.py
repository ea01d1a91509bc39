from pathlib import Path

import pytest

from gpt.checkpoint import load_model
from scripts import convert
from tests.runs import is_one_line_error, same_tensors


def test_an_exported_and_imported_run_is_the_same_model(tiny_run: Path, tmp_path: Path) -> None:
    assert convert.main(["to-hf", str(tiny_run), str(tmp_path / "hf")]) == 0
    assert convert.main(["from-hf", str(tmp_path / "hf"), str(tmp_path / "run")]) == 0
    original, tokenizer = load_model(tiny_run)
    for path in (tmp_path / "hf", tmp_path / "run", tmp_path / "run" / "best.ckpt"):
        model, loaded = load_model(path)
        assert loaded.sha256 == tokenizer.sha256
        assert model.config == original.config
        assert same_tensors(model.state_dict(), original.state_dict())


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["to-hf", "RUN", "FULL"], "is not an empty folder"),
        (["from-hf", "HF", "FULL"], "is not an empty folder"),
        (["from-hf", "RUN", "NEW"], "is not a Hugging Face folder"),
        (["to-hf", "MISSING", "NEW"], "there is no checkpoint"),
        (["from-hf", "nobody/nothing", "NEW"], "cannot read nobody/nothing from a folder or the Hub"),
        ([], "from-hf | to-hf"),
    ],
)
def test_a_mistake_is_a_one_line_error_and_writes_nothing(
    arguments: list[str], words: str, tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert convert.main(["to-hf", str(tiny_run), str(tmp_path / "hf")]) == 0
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis").touch()
    places = {"RUN": tiny_run, "FULL": tmp_path / "full", "HF": tmp_path / "hf", "NEW": tmp_path / "new"}
    places["MISSING"] = tmp_path / "missing.ckpt"
    capsys.readouterr()
    try:
        status = convert.main([str(places.get(argument, argument)) for argument in arguments])
    except SystemExit as exit_:
        status = exit_.code
    assert status == 2
    assert is_one_line_error(capsys.readouterr().err, words)
    assert not (tmp_path / "new").exists()
