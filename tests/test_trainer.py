import pytest
import torch

from gpt.training.trainer import compiler_error


def test_a_compiler_that_fails_is_told_from_one_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, words in ((AssertionError(), "AssertionError"), (RuntimeError("no g++\nat all"), "no g++")):

        def broken(function: object, error: Exception = error) -> None:
            raise error

        monkeypatch.setattr(torch, "compile", broken)
        assert compiler_error(torch.device("cpu")) == words
    monkeypatch.setattr(torch, "compile", lambda function: function)
    assert compiler_error(torch.device("cpu")) is None
