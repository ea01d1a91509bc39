"""Atomic file writes, folder locks, and SHA-256 hashes."""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from gpt.errors import UserError

_locked: set[int] = set()  # descriptors of the folders that this process has locked


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a binary file that replaces ``path`` only once it is complete and synced to disk.

    If the process is killed or the disk is full, ``path`` stays as it was.
    """
    temporary = path.with_name(path.name + ".tmp")  # on the same filesystem: only there is a rename atomic
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        cause = error.__context__ if isinstance(error, RuntimeError) else error  # torch wraps an OSError in one
        if isinstance(cause, OSError) and cause.filename is None:  # such as a full disk, which does not name the file
            raise OSError(cause.errno, cause.strerror, str(path)) from error
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder to disk, so that renames in it survive a power cut."""
    with _open_folder(folder) as descriptor:
        os.fsync(descriptor)


@contextmanager
def exclusive(folder: Path, message: str) -> Iterator[None]:
    """Lock a folder, or raise a UserError with this message; delete the temporary files of a killed process."""
    with _open_folder(folder) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(message) from None
        for path in folder.glob("*.*.tmp"):
            if path.is_file():
                path.unlink()
        _locked.add(descriptor)
        try:
            yield
        finally:
            _locked.remove(descriptor)


def _close_inherited_locks() -> None:
    """Close a forked process's copies: it would hold the locks for as long as it outlives its parent."""
    while _locked:
        os.close(_locked.pop())


os.register_at_fork(after_in_child=_close_inherited_locks)


@contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
