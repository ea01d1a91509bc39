"""Each stage imports only the stages above it, and only gpt.training imports lightning."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gpt

ROOT = Path(gpt.__file__).parent
STAGES = [  # in the order of data flow
    {"errors"},
    {"files", "cli"},
    {"tokenizer"},
    {"tokenizer_json"},
    {"data", "model"},
    {"huggingface"},
    {"checkpoint", "generation"},
    {"attention_maps", "evaluation"},  # attention_maps.watch loads a checkpoint and generates
    {"training"},
]
RANK = {name: rank for rank, names in enumerate(STAGES) for name in names}
MODULES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def _stage(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            names.add(node.module or "")
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_stage_imports_only_stages_above_it(path: Path) -> None:
    for name in _imports(path):
        if name.startswith("gpt."):
            imported = name.split(".")[1]
            assert imported == _stage(path) or RANK[imported] < RANK[_stage(path)], f"{path} imports {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_training_imports_lightning(path: Path) -> None:
    if _stage(path) != "training":
        assert not any(name.split(".")[0] in ("lightning", "pytorch_lightning") for name in _imports(path))


def test_no_module_imports_the_attention_primer() -> None:
    assert not any("gpt.model.attention_primer" in _imports(path) for path in MODULES)


@pytest.mark.parametrize(
    "module,heavy",
    [
        ("gpt", ["torch", "numpy", "lightning"]),
        ("gpt.training.config_parser", ["torch", "lightning"]),  # so that --help is fast
        ("gpt.generation.generate", ["lightning"]),
        ("gpt.checkpoint", ["lightning"]),
    ],
)
def test_an_import_does_not_load_heavy_libraries(module: str, heavy: list[str]) -> None:
    code = f"import sys, {module}; sys.exit(' '.join(set({heavy}) & set(sys.modules)) or 0)"
    finished = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr
