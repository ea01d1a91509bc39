import logging
import subprocess
import sys

import pytest

from gpt.cli import print_json, run
from gpt.errors import UserError
from gpt.model.config import GPTConfig


def test_a_user_error_is_one_line_with_exit_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda argv: GPTConfig(num_layers=int(argv[0])) and 0, ["0"]) == 2
    assert capsys.readouterr().err == "error: model.num_layers is 0; it must be at least 1\n"


def test_an_error_names_the_parameter_as_the_given_flag(capsys: pytest.CaptureFixture[str]) -> None:
    def main(argv: list[str]) -> int:
        raise UserError(argv[-1])

    for flag, message, expected in (
        ("--top-k", "top_k is -1", "--top-k is -1"),
        ("--top-k=-1", "top_k is -1", "--top-k is -1"),
        ("--seed", "seed is -1; the seed counts", "--seed is -1; the seed counts"),
        ("--data", "the data is bad", "the data is bad"),
        ("--num-samples", "top_k is -1", "top_k is -1"),
        ("--model.num_layers", "model.num_layers is 0", "--model.num_layers is 0"),
    ):
        assert run(main, [flag, message]) == 2
        assert capsys.readouterr().err == f"error: {expected}\n"


def test_an_error_survives_any_flag_and_a_text_without_an_encoding_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def main(argv: list[str]) -> int:
        raise UserError("pa\\q_th is bad")

    assert run(main, ["--pa\\q_th", "x"]) == 2
    assert capsys.readouterr().err == "error: --pa\\q_th is bad\n"
    assert run(lambda argv: len(argv[0].encode()), ["\udce9"]) == 2
    assert capsys.readouterr().err.startswith("error: 'utf-8' codec can't encode")


def test_other_value_errors_keep_their_traceback() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        run(lambda argv: int(argv[0]), ["x"])


def test_json_writes_nonfinite_numbers_as_null(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": [float("inf"), {"b": float("nan")}, 1.5]})
    assert capsys.readouterr().out == '{"a": [null, {"b": null}, 1.5]}\n'


def test_a_missing_file_is_a_one_line_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(lambda argv: len(open(argv[0]).read()), ["/no/such/file"]) == 2  # noqa: SIM115, PTH123
    assert capsys.readouterr().err == "error: /no/such/file: No such file or directory\n"


def test_logs_go_to_stderr_and_json_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    def body(argv: list[str]) -> int:
        logging.getLogger("gpt.test").info("progress")
        print_json({"é": 1})
        return 0

    assert run(body, []) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ('{"é": 1}\n', "progress\n")


def test_a_broken_pipe_exits_with_141() -> None:
    code = "from gpt.cli import run; import sys; sys.exit(run(lambda argv: print('x' * 10**6) or 0, []))"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(10)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
