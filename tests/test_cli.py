import errno
import fcntl
import io
import json
import logging
import os
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from gpt.cli import ArgumentParser, print_json, print_text, progress, run
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
    assert run(lambda argv: len(argv[0].encode()), ["a/\udce9"]) == 2
    assert capsys.readouterr().err == "error: 'a/\\udce9' is not UTF-8; expected a text or path that is\n"


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


CLOSED = "standard input or output is closed; expected an open one"


def _python(code: str, redirections: str = "") -> subprocess.CompletedProcess[str]:
    """Run code after ``from gpt.cli import *`` in a shell with these redirections."""
    prelude = "import os, signal, sys; from gpt.cli import *; from gpt.cli import _interrupt; "
    prelude += "[signal.signal(number, signal.SIG_DFL) for number in (1, 2, 15)]; "  # ignored in the background
    command = ["sh", "-c", f'exec "$0" -c "$1" {redirections}', sys.executable, prelude + code]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize(
    "redirections,status,out,err",
    [
        (">/dev/full", 2, "", '{"a": 1}\nerror: standard output: No space left on device\n'),
        (">&-", 2, "", '{"a": 1}\nerror: standard input or output is closed; expected an open one\n'),
        ("2>&-", 0, '{"a": 1}\n', ""),
        ("2>/dev/full", 0, '{"a": 1}\n', ""),
        ("<&-", 0, '{"a": 1}\n', ""),
        ("<&- >&- 2>&-", 2, "", ""),
    ],
)
def test_a_result_that_cannot_be_printed_goes_to_stderr(redirections: str, status: int, out: str, err: str) -> None:
    result = _python("sys.exit(run(lambda argv: print_json({'a': 1}) or 0, []))", redirections)
    assert (result.returncode, result.stdout, result.stderr) == (status, out, err)


@pytest.mark.parametrize(
    "code,redirections,status,err",
    [
        ("ArgumentParser(prog='x').parse_args(['--help'])", ">/dev/full", 2, "error: No space left on device\n"),
        ("ArgumentParser(prog='x').parse_args(['--help'])", "2>&-", 0, ""),
        ("ArgumentParser(prog='x').parse_args(['--y'])", "2>/dev/full", 2, ""),
        ("print_text('x') or 0", ">/dev/full", 2, "x\nerror: standard output: No space left on device\n"),
        ("1 - len(sys.stdin.buffer.read(1))", "<&-", 2, f"error: {CLOSED}\n"),
        ("os.open('/', os.O_RDONLY) - 3", "<&- >&- 2>&-", 0, ""),  # not the descriptor of a closed stream
        ("logging.getLogger().info('progress') or 0", "2>/dev/full", 0, ""),
    ],
)  # fmt: skip
def test_closed_and_full_streams(code: str, redirections: str, status: int, err: str) -> None:
    result = _python(f"sys.exit(run(lambda argv: {code}, []))", redirections)
    assert (result.returncode, result.stderr) == (status, err)


@pytest.mark.parametrize(
    "body,status,out",
    [
        ("os.kill(os.getpid(), signal.SIGINT)", 130, "unwound\n"),
        ("os.kill(os.getpid(), signal.SIGTERM)", 143, "unwound\n"),
        ("os.kill(os.getpid(), signal.SIGHUP)", 129, "unwound\n"),
        ("[_interrupt(15, None) for _ in iter(int, 1)]", 143, "unwound\n"),
        ("__import__('signalled')", 130, ""),  # at once: the import of a C extension may swallow an exception
    ],
)
def test_a_signal_ends_the_process_without_a_traceback(body: str, status: int, out: str, tmp_path: Path) -> None:
    (tmp_path / "signalled.py").write_text(
        "import os\ntry:\n    os.kill(os.getpid(), 2)\nexcept KeyboardInterrupt:\n    pass"
    )
    code = f"""
def main(argv):
    sys.path.append({str(tmp_path)!r})
    try:
        {body}
    finally:
        print("unwound")
sys.exit(run(main, []))"""
    result = _python(code)
    assert (result.returncode, result.stdout, result.stderr) == (status, out, "interrupted\n")


def test_the_same_signal_again_ends_the_process_and_an_ignored_one_stays_ignored() -> None:
    code = "sys.exit(run(lambda argv: [os.kill(os.getpid(), signal.SIGHUP), print('goes on')] and 0, []))"
    assert _python(f"signal.signal(signal.SIGHUP, signal.SIG_IGN); {code}").stdout == "goes on\n"
    again = """
def main(argv):
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
sys.exit(run(main, []))"""
    result = _python(again)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "interrupted\n")


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1", "utf-8"])
def test_text_that_stdout_cannot_encode_is_escaped_and_json_stays_exact(
    encoding: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    output = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(output, encoding=encoding))
    content = {"text": "é 漢 \U0001f600", "path": "\udcff"}
    print_json(content)
    assert json.loads(output.getvalue().decode(encoding)) == content
    assert not caplog.text
    output.truncate(0)
    for _ in range(2):
        print_text("漢\udcff", end="")
    escaped = "漢\\udcff" if encoding == "utf-8" else r"\u6f22\udcff"
    assert output.getvalue().decode(encoding).strip("\0") == 2 * escaped
    assert caplog.text.count("printed as escapes") == 1


def test_a_flag_given_twice_is_said_unless_it_takes_several_values(caplog: pytest.LogCaptureFixture) -> None:
    parser = ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--prompt", nargs="+", action="extend")
    parser.add_argument("--json", action="store_true")
    arguments = ["--seed", "1", "--seed=2", "--prompt", "a", "--prompt", "-5", "--json", "--json"]
    assert vars(parser.parse_args(arguments)) == {"seed": 2, "prompt": ["a", "-5"], "json": True}
    assert caplog.messages == ["--seed is given 2 times; the last value counts"]


def test_a_value_that_begins_with_a_dash_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    parser = ArgumentParser(prog="x.py")
    parser.add_argument("--stop", nargs="+")
    assert parser.parse_args(["--stop=--x"]).stop == ["--x"]
    with pytest.raises(SystemExit):
        parser.parse_args(["--stop", "--x"])
    assert "--stop=-x gives one that begins with a dash" in capsys.readouterr().err


def test_an_error_names_the_flags_of_the_script_but_changes_no_path(capsys: pytest.CaptureFixture[str]) -> None:
    def main(argv: list[str]) -> int:
        parser = ArgumentParser()
        parser.add_argument("--val-fraction")
        parser.parse_args([])
        raise UserError(argv[0])

    assert run(main, ["a/val_fraction, val_fraction.txt, val_fractions; change val_fraction."]) == 2
    expected = "a/val_fraction, val_fraction.txt, val_fractions; change --val-fraction."
    assert capsys.readouterr().err == f"error: {expected}\n"


def test_progress_is_logged_where_no_bar_is_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr("gpt.cli._LINE_SECONDS", -1.0)
    assert list(progress(iter("abc"), 3, "letters")) == ["a", "b", "c"]
    assert caplog.messages == ["1 of 3 letters", "2 of 3 letters", "3 of 3 letters"]


@pytest.mark.parametrize("size", [(24, 80), (0, 0), (24, 0), (1, 1)])
def test_a_terminal_of_any_size_gets_a_bar(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    main, terminal = os.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    with os.fdopen(main, "rb") as reader, os.fdopen(terminal, "w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        assert list(progress("abc", 3, "letters")) == ["a", "b", "c"]
        stderr.flush()
        assert b"0/3" in os.read(reader.fileno(), 10_000)


def test_too_many_open_files_say_how_to_raise_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    def body(argv: list[str]) -> int:
        raise OSError(errno.EMFILE, "Too many open files", "shard_00033.bin")

    assert run(body, []) == 2
    assert capsys.readouterr().err == "error: too many open files; raise the limit, for example with ulimit -n 1024\n"
