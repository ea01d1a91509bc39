"""What the scripts share: one line and exit status 2 for a user's mistake, logs on stderr, results on stdout."""

import argparse
import errno
import io
import json
import logging
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

from gpt.errors import UserError

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_T = TypeVar("_T")
_LINE_SECONDS = 10.0  # between two lines of progress where there is no bar


class ArgumentParser(argparse.ArgumentParser):
    """An argparse parser that keeps the line breaks of its texts and reports an error as one line, without usage."""

    known_flags: ClassVar[Iterable[str]] = ()  # of the parser that parsed last

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def add_checkpoint(self) -> None:
        """Add the positional argument that names a model."""
        kinds = "run folder (best.ckpt, else last.ckpt), .ckpt file, Hugging Face folder or name"
        self.add_argument("checkpoint", metavar="CHECKPOINT", help=kinds)

    def add_device(self) -> None:
        """Add ``--device``, as ``choose_device`` takes it."""
        self.add_argument("--device", help="cpu, cuda, cuda:1 or mps (default: cuda, else mps, else cpu)")

    def error(self, message: str) -> NoReturn:
        """Print ``error: message`` and exit with status 2."""
        message = re.sub(r"^argument (\S+): expected .*", r"\g<0>; \1=-x gives one that begins with a dash", message)
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and say which flags are given several times though they take one value."""
        ArgumentParser.known_flags = self._option_string_actions  # without the keys of train.py's config
        given = [argument.partition("=")[0] for argument in args]
        for flag, action in self._option_string_actions.items():
            if given.count(flag) > 1 and action.nargs is None:
                log.warning("%s is given %d times; the last value counts", flag, given.count(flag))
        return super().parse_known_args(args, namespace)

    def print_help(self, file: Any = None) -> None:
        """Print the help; argparse would ignore that stdout fails."""
        print(self.format_help(), end="", flush=True)


def run(main: Callable[[list[str]], int], argv: list[str] | None = None) -> int:
    """Call a script's main function, and report a UserError, or an error of a file or a text's encoding, as one line.

    Returns the exit status: 2 after a user's mistake, 141 after a broken pipe, 128 + the number of a signal.
    """
    _reopen_closed_streams()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    logging.raiseExceptions = False  # without stderr, log lines are lost and the work goes on
    argv, ArgumentParser.known_flags = sys.argv[1:] if argv is None else argv, ()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):  # else it is ignored, as by nohup
            signal.signal(number, _interrupt)
    try:
        return main(argv)
    except KeyboardInterrupt as error:
        return 128 + next(iter(error.args), signal.SIGINT)
    except BrokenPipeError:  # for example `generate.py ... | head`
        return 141
    except (UserError, OSError, UnicodeEncodeError) as error:
        message = str(error)
        if isinstance(error, UnicodeEncodeError):
            message = f"{error.object[:500]!r} is not UTF-8; expected a text or path that is"
        elif isinstance(error, OSError) and error.errno == errno.EBADF:
            message = "standard input or output is closed; expected an open one"
        elif isinstance(error, OSError) and error.errno == errno.EMFILE:
            message = "too many open files; raise the limit, for example with ulimit -n 1024"
        elif isinstance(error, OSError) and error.strerror:
            message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        log.error("error: %s", _with_flags(" ".join(message.split()), argv))
        return getattr(error, "exit_status", 2)
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:  # else Python flushes again at exit, and the status is 120
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _reopen_closed_streams() -> None:
    """Open the null device for closed standard streams, whose descriptors the next files opened would get.

    Standard input is opened for writing and standard output for reading, so that using them fails.
    """
    for name, flags in (("stdin", os.O_WRONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, flags), "r" if name == "stdin" else "w"))


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Unwind, so that temporary files are deleted; the same signal again ends the process at once."""
    signal.signal(number, signal.SIG_DFL)
    with suppress(OSError):
        os.write(2, b"interrupted\n")
    while frame is not None:  # the import of a C extension may swallow the exception
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            os._exit(128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt(number)


def choose_device(name: str | None = None) -> "torch.device":
    """The named device, or the best available one: CUDA, then MPS, then CPU."""
    import torch  # takes seconds, which --help must not wait for

    if name is None:
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):  # torch asserts that it was built with CUDA
        raise UserError(f"device {name!r} is not available; leave out --device to choose one automatically") from None


def print_text(text: str, end: str = "\n") -> None:
    """Print a result on stdout at once, with escapes for what its encoding lacks; on stderr if that fails."""
    try:
        print(text, end=end, flush=True)
    except UnicodeEncodeError:
        assert isinstance(sys.stdout, io.TextIOWrapper)
        sys.stdout.reconfigure(errors="backslashreplace")
        log.warning("standard output lacks some characters (%s); they are printed as escapes", sys.stdout.encoding)
        print_text(text, end)
    except OSError as error:
        if text and not isinstance(error, BrokenPipeError):
            log.error("%s", text)
        error.filename = "standard output"
        raise


def print_json(content: Any) -> None:
    """Print exactly one JSON object on stdout; NaN and infinity, which JSON does not have, become null."""
    finite = json.loads(json.dumps(content), parse_constant=lambda name: None)
    text = json.dumps(finite, ensure_ascii=False)
    is_exact = (sys.stdout.encoding or "utf-8").lower() == "utf-8" and not re.search("[\ud800-\udfff]", text)
    print_text(text if is_exact else json.dumps(finite))


def progress(items: Iterable[_T], total: int, unit: str) -> Iterator[_T]:
    """Iterate with a progress bar if stderr is a terminal, else with a log line every ten seconds."""
    from tqdm import tqdm  # only here: --help does not wait for it

    columns, rows = shutil.get_terminal_size()  # 80 x 24 for a terminal of size 0, where tqdm would show nothing
    bar = tqdm(items, total=total, unit=unit, leave=False, ncols=columns, nrows=rows, disable=not sys.stderr.isatty())
    next_line = time.monotonic() + _LINE_SECONDS
    for done, item in enumerate(bar, start=1):
        yield item
        if bar.disable and time.monotonic() > next_line:
            log.info("%d of %d %s", done, total, unit)
            next_line = time.monotonic() + _LINE_SECONDS


def _with_flags(message: str, argv: list[str]) -> str:
    """Name a parameter by the script's flag: ``--top-k is -1`` where the library says ``top_k is -1``."""
    given = {argument.partition("=")[0] for argument in argv if argument.startswith("--")}
    for flag in given.union(ArgumentParser.known_flags):
        name = re.escape(flag[2:].replace("-", "_"))
        pattern = rf"(?<![\w./-]){name}(?![\w/-]|\.\w)" if "_" in name else rf"^{name}(?= is )"
        message = re.sub(pattern, flag.replace("\\", r"\\"), message) if name else message
    return message
