"""What every test shares: which marked tests can run here, and a tiny run, from text to checkpoint."""

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

# Set before torch is imported anywhere. One thread: tiny tensors gain nothing from more, and on a busy machine
# threads that wait for each other are many times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test may reach for the Hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what needs a GPU, a network or a browser that is not there."""
    lacking = {}
    marks = {mark.name for item in items for mark in item.iter_markers()}
    if "gpu" in marks:
        import torch

        if not torch.cuda.is_available():
            lacking["gpu"] = "needs a CUDA GPU"
    if "network" in marks and not _reaches_network():
        lacking["network"] = "needs the internet"
    if "browser" in marks and chromium() is None:
        lacking["browser"] = "needs Chromium (Debian: apt-get install chromium)"
    for item in items:
        for name, reason in lacking.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def chromium() -> str | None:
    """Where the browser is."""
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


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A prepared folder of about 3,500 bytes of text, tokenizer bytes."""
    from scripts import prepare_data

    folder = tmp_path_factory.mktemp("tiny")
    text = "\n".join(f"{number} bottles of beer on the wall, take one down" for number in range(80))
    (folder / "song.txt").write_text(text)
    assert prepare_data.main([str(folder / "song.txt"), "--output", str(folder / "data"), "--tokenizer", "bytes"]) == 0
    return folder / "data"


@pytest.fixture(scope="session")
def tiny_config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A config that trains in seconds."""
    path = tmp_path_factory.mktemp("configs") / "tiny.yaml"
    path.write_text(TINY_CONFIG)
    return path


@pytest.fixture(scope="session")
def train_tiny(tiny_data: Path, tiny_config: Path) -> Callable[..., int]:
    """Call train.py's main in process: ``train_tiny(checkpoints_dir, *flags)`` gives its exit status."""
    from scripts import train

    def call(checkpoints_dir: Path, *flags: str) -> int:
        where = ["--checkpoints_dir", str(checkpoints_dir), "--data.path", str(tiny_data)]
        return train.main(["--config", str(tiny_config), *where, *flags])

    return call


@pytest.fixture(scope="session")
def tiny_run(train_tiny: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run."""
    folder = tmp_path_factory.mktemp("checkpoints")
    assert train_tiny(folder) == 0
    return folder / "tiny"
