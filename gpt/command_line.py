"""What every script shares: a user's mistake is one line and exit status 2, logs go to stderr, JSON to stdout."""

import argparse
import json
import logging
import math
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

_OURS = Path(__file__).resolve().parent
_OUR_FOLDERS = (_OURS, _OURS.parent / "scripts")


class ArgumentParser(argparse.ArgumentParser):
    """An argparse parser that keeps the lines of its texts, and whose errors are one line, without a wall of usage."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def add_checkpoint(self) -> None:
        """Add the argument that names a model."""
        kinds = "run folder (best.ckpt, else last.ckpt), .ckpt file, Hugging Face folder or name"
        self.add_argument("checkpoint", metavar="CHECKPOINT", help=kinds)

    def error(self, message: str) -> NoReturn:
        """Print ``error: message`` and exit with status 2."""
        self.exit(2, f"error: {message} (see {self.prog} --help)\n")


def run(main: Callable[[list[str]], int], argv: list[str] | None = None) -> int:
    """Call a script's body and turn what the user did wrong into one line.

    A ValueError that our own code raised speaks to the user, as does an OSError (a missing file, a full disk);
    one from deep inside a library is a fault of ours and keeps its traceback.

    Args:
        main: takes the arguments, returns the exit status.
        argv: the arguments; default those of the process.

    Returns:
        The exit status: 2 for a user's mistake, 130 after Ctrl-C, 141 if the output's reader has gone.
    """
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr, force=True)
    try:
        return main(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # whoever read our output has seen enough, as head does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes
        return 141
    except (ValueError, OSError) as error:
        if not isinstance(error, OSError) and not raised_by_us(error):
            raise
        print(f"error: {' '.join(_message(error).split())}", file=sys.stderr)
        return 2


def _message(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror is not None:
        return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    return str(error)


def print_json(content: Any) -> None:
    """Print exactly one JSON object on stdout; JSON has no NaN or infinity, so those become null."""
    print(json.dumps(_finite(content), ensure_ascii=False, allow_nan=False))


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def raised_by_us(error: BaseException) -> bool:
    """Whether this project's code raised it, and not a library that it called."""
    raising_file = Path(traceback.extract_tb(error.__traceback__)[-1].filename).resolve()
    return any(folder in raising_file.parents for folder in _OUR_FOLDERS)
