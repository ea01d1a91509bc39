"""Files that are whole or not there: written beside their final name, synced, then renamed."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gpt.errors import UserError


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a binary file that takes its name only once it is complete and on disk.

    A kill or a full disk at any moment leaves what was at ``path`` before.

    Args:
        path: final name; its folder must exist.
    """
    # Same folder, hence same filesystem: only then is the rename atomic ($TMPDIR may be elsewhere).
    temporary = path.with_name(path.name + ".tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames in a folder survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def exclusive(folder: Path, otherwise: str) -> Iterator[None]:
    """Hold a folder, so that two processes never write to it; and clear away what a kill left half-written (*.tmp).

    Args:
        folder: must exist.
        otherwise: what to tell the user if it is held already.

    Raises:
        ValueError: another process holds it.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(otherwise) from None
        for path in folder.glob("*.tmp"):
            path.unlink()
        yield
    finally:
        os.close(descriptor)


def sha256_of_file(path: Path) -> str:
    """Hash of a file's content, as hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_text(text: str) -> str:
    """Hash of a text in UTF-8, as hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()
