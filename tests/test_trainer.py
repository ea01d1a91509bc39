import pytest
import torch

from gpt.training.trainer import compiler_error


def test_compiler_error_is_the_first_line_of_the_failure_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, words in ((AssertionError(), "AssertionError"), (RuntimeError("no g++\nmore lines"), "no g++")):

        def broken(function: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(torch, "compile", broken)
        assert compiler_error(torch.device("cpu")) == words
    monkeypatch.setattr(torch, "compile", lambda function: function)
    assert compiler_error(torch.device("cpu")) is None
