"""What the scripts share: one line and exit status 2 for a user's mistake, logs on stderr, JSON on stdout."""

import argparse
import json
import logging
import os
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from gpt.errors import UserError

if TYPE_CHECKING:
    import torch


class ArgumentParser(argparse.ArgumentParser):
    """An argparse parser that keeps the line breaks of its texts and reports an error as one line, without usage."""

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
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def run(main: Callable[[list[str]], int], argv: list[str] | None = None) -> int:
    """Call a script's main function, and report a UserError, or an error of a file or a text's encoding, as one line.

    Returns the exit status: 2 after a user's mistake, 130 after Ctrl-C, 141 after a broken pipe.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    argv = sys.argv[1:] if argv is None else argv
    try:
        return main(argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # for example `generate.py ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes at exit
        return 141
    except (UserError, OSError, UnicodeEncodeError) as error:
        message = str(error)
        if isinstance(error, OSError) and error.strerror:
            message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        print(f"error: {_with_flags(' '.join(message.split()), argv)}", file=sys.stderr)
        return getattr(error, "exit_status", 2)


def choose_device(name: str | None = None) -> "torch.device":
    """The named device, or the best available one: CUDA, then MPS, then CPU."""
    import torch  # takes seconds, which --help must not wait for

    if name is None:
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError):  # torch asserts that it was built with CUDA
        raise UserError(f"device {name!r} is not available; leave out --device to choose one automatically") from None


def print_json(content: Any) -> None:
    """Print exactly one JSON object on stdout; NaN and infinity, which JSON does not have, become null."""
    finite = json.loads(json.dumps(content), parse_constant=lambda name: None)
    print(json.dumps(finite, ensure_ascii=False))


def _with_flags(message: str, argv: list[str]) -> str:
    """Name a parameter by its flag, if that was given: ``--top-k is -1`` where the library says ``top_k is -1``."""
    for flag in {argument.partition("=")[0] for argument in argv if argument.startswith("--")}:
        name = re.escape(flag[2:].replace("-", "_"))
        pattern = rf"(?<![\w.-]){name}\b" if "_" in name else rf"^{name}(?= is )"
        message = re.sub(pattern, flag.replace("\\", r"\\"), message) if name else message
    return message
