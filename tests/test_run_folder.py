"""Which run --resume continues."""

import os
from pathlib import Path

import pytest
import torch

from gpt.errors import UserError
from gpt.training.config import RunConfig, TrainerConfig
from gpt.training.run_folder import find_run, is_first_process, save_config


def _run(folder: Path, steps: int, flags: list[str], used: int, max_steps: int = 10) -> None:
    """A run folder after some steps, last used at this time."""
    folder.mkdir()
    save_config(folder, RunConfig(run_name=folder.name, trainer=TrainerConfig(max_steps=max_steps)), flags)
    if steps:
        content = {"format_version": 2, "state_dict": {}, "hyper_parameters": {}, "global_step": steps}
        torch.save(content, folder / "last.ckpt")
    os.utime(folder, (used, used))


def _found(parent: Path, *flags: str, config: str = "c") -> str | None:
    path = parent.parent / f"{config}.yaml"
    path.write_text("trainer: {max_steps: 10}")
    found = find_run(path, ["--checkpoints_dir", str(parent), *flags])
    return found[0].name if found else None


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


C = ["--config", "configs/c.yaml"]


def test_the_only_unfinished_run_is_continued_whatever_its_number(parent: Path) -> None:
    assert _found(parent) is None
    _run(parent / "c-2", 10, C, used=100)
    assert _found(parent) == "c-2"
    _run(parent / "c", 4, C, used=50)  # the finished one was used later
    assert _found(parent) == "c"
    assert _found(parent, "--trainer.max_steps", "20") == "c"
    assert _found(parent, "--run_name", "c-2") == "c-2"


def test_of_finished_runs_the_one_used_last_is_continued(parent: Path) -> None:
    for name, used in (("c", 50), ("c-2", 90), ("c-3", 70)):
        _run(parent / name, 10, C, used)
    assert _found(parent, "--trainer.max_steps", "20") == "c-2"


def test_several_unfinished_runs_are_named_and_none_is_chosen(parent: Path) -> None:
    _run(parent / "c", 4, C, used=50)
    _run(parent / "c-2", 0, C, used=60)  # killed before its first save
    _run(parent / "c-3", 10, C, used=70)
    with pytest.raises(UserError, match=r"^c, c-2 in .* are unfinished; choose one with --run_name$"):
        _found(parent)
    assert _found(parent, "--run_name", "c-2") == "c-2"


@pytest.mark.parametrize("name,flags", [
    ("c-2024", [*C, "--run_name", "c-2024"]),  # named by the user
    ("c-2", ["--config", "c-2.yaml"]),  # of another config
    ("c-x", C), ("c2", C), ("cc-2", C), ("xc", C),
])  # fmt: skip
def test_a_run_of_another_name_or_config_is_not_continued(name: str, flags: list[str], parent: Path) -> None:
    _run(parent / name, 4, flags, used=100)
    (parent / "c-7").mkdir()  # not a run
    (parent / "c-8").write_text("not a folder")
    assert _found(parent) is None
    _run(parent / "c", 10, C, used=50)
    assert _found(parent) == "c"


def test_a_run_of_another_config_under_the_default_name_is_not_continued(parent: Path) -> None:
    _run(parent / "c", 4, ["--config", "q.yaml", "--run_name", "c"], used=50)
    with pytest.raises(UserError, match="is a run of another config; name the run with --run_name"):
        _found(parent)
    _run(parent / "c-2", 4, C, used=40)
    assert _found(parent) == "c-2"


@pytest.mark.parametrize("content", ['["--config"]', '"abc"', "{}", "[1]", "[[", "[" * 10_000])
def test_a_damaged_first_line_is_named(content: str, parent: Path) -> None:
    _run(parent / "c", 4, C, used=50)
    (parent / "c" / "config.yaml").write_text(f"# started with the flags {content}\n")
    with pytest.raises(UserError, match=r"first line of .*config\.yaml is damaged"):
        _found(parent)


def test_damaged_copies_and_links_do_not_hide_a_run(parent: Path) -> None:
    _run(parent / "c", 4, C, used=50)
    (parent / "c-7").symlink_to(parent / "c")
    assert _found(parent) == "c"
    _run(parent / "c-8", 4, C, used=60)
    (parent / "c-8" / "last.ckpt").write_bytes(b"PK")
    with pytest.raises(UserError, match=r"^c, c-8 in .* are unfinished; choose one with --run_name$"):
        _found(parent)


@pytest.mark.parametrize("value", ["abc", "1.0", "x"])
def test_a_launcher_s_variable_that_is_not_a_number_is_named(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_RANK", "")
    assert is_first_process()
    monkeypatch.setenv("NODE_RANK", value)
    with pytest.raises(UserError, match=r"NODE_RANK is '.*'; expected a number"):
        is_first_process()


def test_a_numbered_run_is_found_again_after_a_resume_by_its_name(parent: Path) -> None:
    _run(parent / "c", 10, C, used=50)
    _run(parent / "c-2", 4, C, used=60)
    path = parent.parent / "c.yaml"
    path.write_text("trainer: {max_steps: 10}")
    found = find_run(path, ["--checkpoints_dir", str(parent), "--run_name", "c-2"])
    assert found is not None
    save_config(found[0], found[1], found[2])
    assert _found(parent) == "c-2"


def test_runs_that_did_not_record_their_config_go_by_their_names(parent: Path) -> None:
    _run(parent / "c", 10, [], used=50)
    _run(parent / "c-2", 4, ["--seed", "1234"], used=60)
    assert _found(parent) == "c-2"
