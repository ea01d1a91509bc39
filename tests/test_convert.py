import resource
from collections.abc import Iterator
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


@pytest.fixture
def full_disk() -> Iterator[None]:
    """Limit files to 20 KB: simulates a full disk without root (EFBIG instead of ENOSPC)."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("direction", ["to-hf", "from-hf"])
@pytest.mark.parametrize("target", ["new", "empty"])
def test_a_full_disk_is_a_one_line_error_and_leaves_nothing(
    direction: str, target: str, tiny_run: Path, tmp_path: Path, request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    source = tiny_run
    (tmp_path / "empty").mkdir()
    if direction == "from-hf":
        assert convert.main(["to-hf", str(tiny_run), str(tmp_path / "hf")]) == 0
        source = tmp_path / "hf"
    capsys.readouterr()
    request.getfixturevalue("full_disk")
    assert convert.main([direction, str(source), str(tmp_path / target)]) == 2
    file = tmp_path / target / ("model.safetensors" if direction == "to-hf" else "best.ckpt")
    assert is_one_line_error(capsys.readouterr().err, f"{file}: File too large")
    assert not (tmp_path / "new").exists()
    assert not any((tmp_path / "empty").iterdir())


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
