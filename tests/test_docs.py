"""Links, tables, commands, flags and config keys on the pages."""

import importlib
import re
from functools import cache
from pathlib import Path

import pytest

from gpt.training.config_parser import config_keys

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SCRIPTS = sorted(path.stem for path in (ROOT / "scripts").glob("*.py") if path.stem != "__init__")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def anchors(page: Path) -> set[str]:
    """GitHub's anchors of the headings."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@cache
def flags(script: str) -> frozenset[str]:
    """The options of a script; those of train.py with every config key."""
    parser = importlib.import_module(f"scripts.{script}").parser()
    keys = [f"--{key}" for key in config_keys()] if script == "train" else []
    return frozenset([*parser._option_string_actions, *keys])


@each_page
def test_every_relative_link_resolves(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text())):
        if re.match(r"https?:|mailto:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@each_page
def test_tables_have_a_delimiter_row_and_one_number_of_columns(page: Path) -> None:
    for table in re.findall(r"(?:^\|.*\n)+", FENCE.sub("", page.read_text()), re.MULTILINE):
        rows = table.splitlines()
        assert len(rows) >= 3, table
        assert re.fullmatch(r"\|(:?-+:?\|)+", rows[1].replace(" ", "")), table
        assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1, table


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "configs").glob("*.yaml"))], ids=lambda page: page.name)
def test_every_flag_and_config_key_exists(page: Path) -> None:
    text = re.sub(r"\\\n#? *", " ", page.read_text())  # continued lines
    for script, arguments in re.findall(rf"\b({'|'.join(SCRIPTS)})\.py\b([^\n`]*)", text):
        unknown = set(re.findall(r"(?<![\w-])--[a-z][\w.-]*", arguments)) - flags(script)
        assert not unknown, f"{script}.py has no {unknown}"
        assert all((ROOT / config).exists() for config in re.findall(r"configs/\w+\.yaml", arguments))
    code = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    known = frozenset().union(*(flags(script) for script in SCRIPTS))
    sections = {key.partition(".")[0] for key in config_keys() if "." in key}
    for span in code:
        flag = re.match(r"--[a-z][\w.-]*", span)
        assert flag is None or flag[0] in known, span
        key = re.match(rf"(?:{'|'.join(sections)})\.\w+", span)
        assert key is None or key[0] in config_keys(), span
