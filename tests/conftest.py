"""What every test shares: which marked tests can run here."""

import os
import socket

import pytest

# Set before torch or datasets is imported anywhere: no test may reach for the Hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip, with the reason, what needs a GPU or a network that is not there."""
    lacking = {}
    marks = {mark.name for item in items for mark in item.iter_markers()}
    if "gpu" in marks:
        import torch

        if not torch.cuda.is_available():
            lacking["gpu"] = "needs a CUDA GPU"
    if "network" in marks and not _reaches_network():
        lacking["network"] = "needs the internet"
    for item in items:
        for name, reason in lacking.items():
            if item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=reason))


def _reaches_network() -> bool:
    try:
        with socket.create_connection(("huggingface.co", 443), timeout=2):
            return True
    except OSError:
        return False
