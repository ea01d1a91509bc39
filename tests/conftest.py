"""Shared by all tests: skipping of marked tests that cannot run here, and fixtures of a tiny training run."""

import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# Set before torch is imported. Tiny tensors gain nothing from more threads, and on a busy machine waiting for them is
# many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests run offline.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked gpu, network or browser where that is missing, with the reason."""
    missing = {}
    marks = {mark.name for item in items for mark in item.iter_markers()}
    if "gpu" in marks:
        import torch

        if not torch.cuda.is_available():
            missing["gpu"] = "needs a CUDA GPU"
    if "network" in marks and not _reaches_network():
        missing["network"] = "needs the internet"
    if "browser" in marks and chromium() is None:
        missing["browser"] = "needs Chromium (Debian: apt-get install chromium)"
    for item in items:
        for name, reason in missing.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def chromium() -> str | None:
    """The path of the browser, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def _reaches_network() -> bool:
    try:
        with socket.create_connection(("example.org", 443), timeout=2):
            return True
    except OSError:
        return False


TINY_CONFIG = """\
model: {context_length: 32, d_model: 32, num_layers: 2, num_heads: 2, dropout: 0.1}
data: {global_batch_size: 4, micro_batch_size: 2}
optim: {learning_rate: 3e-3, min_learning_rate: 3e-4, warmup_steps: 5}
trainer: {max_steps: 30, validate_every_steps: 12, log_every_n_steps: 1, accelerator: cpu, sample_tokens: 8}
checkpoint: {every_steps: 5}
attention_maps: {probe_text: "the cat sat on the mat", captures: 4}
"""


def prepare_tiny_data(folder: Path) -> Path:
    """Prepare about 3,500 bytes of text with tokenizer bytes; returns the folder of the data."""
    from scripts import prepare_data

    text = "\n".join(f"{number} bottles of beer on the wall, take one down" for number in range(80))
    (folder / "song.txt").write_text(text)
    assert prepare_data.main([str(folder / "song.txt"), "--output", str(folder / "data"), "--tokenizer", "bytes"]) == 0
    return folder / "data"


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of prepared data."""
    return prepare_tiny_data(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config that trains in seconds."""
    path = tmp_path_factory.mktemp("configs") / "tiny.yaml"
    path.write_text(TINY_CONFIG)
    return path


@pytest.fixture(scope="session")
def train_arguments(tiny_data: Path, tiny_config: Path) -> Callable[..., list[str]]:
    """Build the arguments of train.py for ``train_arguments(checkpoints_dir, *flags)``."""

    def build(checkpoints_dir: Path, *flags: str) -> list[str]:
        folders = ["--checkpoints_dir", str(checkpoints_dir), "--data.path", str(tiny_data)]
        return ["--config", str(tiny_config), *folders, *flags]

    return build


@pytest.fixture(scope="session")
def train_command(train_arguments: Callable[..., list[str]]) -> Callable[..., list[str]]:
    """Build the command that runs train.py in a process, with the same parameters."""
    script = str(Path(__file__).parent.parent / "scripts" / "train.py")
    return lambda checkpoints_dir, *flags: [sys.executable, script, *train_arguments(checkpoints_dir, *flags)]


@pytest.fixture(scope="session")
def train_tiny(train_arguments: Callable[..., list[str]]) -> Callable[..., int]:
    """Call train.py's main in process, with the same parameters; returns its exit status."""
    from scripts import train

    return lambda checkpoints_dir, *flags: train.main(train_arguments(checkpoints_dir, *flags))


@pytest.fixture(scope="session")
def tiny_run(train_tiny: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("checkpoints")
    assert train_tiny(folder) == 0
    return folder / "tiny"


@pytest.fixture
def tiny_copy(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, as ``tmp_path / "tiny"``."""
    return shutil.copytree(tiny_run, tmp_path / "tiny")
