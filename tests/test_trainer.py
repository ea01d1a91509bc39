import logging
from pathlib import Path

import pytest
import torch

from gpt.training.trainer import EventFile, compiler_error


def test_compiler_error_is_the_first_line_of_the_failure_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, words in ((AssertionError(), "AssertionError"), (RuntimeError("no g++\nmore lines"), "no g++")):

        def broken(function: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(torch, "compile", broken)
        assert compiler_error(torch.device("cpu")) == words
    monkeypatch.setattr(torch, "compile", lambda function: function)
    assert compiler_error(torch.device("cpu")) is None


class _FullDisk:
    filename = b"run/events"

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        if data == b"b":
            with Path("/dev/full").open("wb", buffering=0) as full:
                full.write(data)
        self.written += data

    def flush(self) -> None:
        self.written += b"."


def test_an_event_file_on_a_full_disk_is_reported_once_and_left(caplog: pytest.LogCaptureFixture) -> None:
    disk = _FullDisk()
    file = EventFile(disk)
    with caplog.at_level(logging.WARNING):
        for data in (b"a", b"b", b"c"):
            file.write(data)
            file.flush()
    assert disk.written == b"a..."
    assert caplog.messages == ["cannot write run/events: No space left on device; the run goes on without it"]
