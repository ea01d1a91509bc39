import hashlib
import os
import signal
import time
from pathlib import Path

import pytest

from gpt.errors import UserError
from gpt.files import atomic_write, exclusive, sha256_of_file


def test_atomic_write_replaces_the_file_only_when_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with atomic_write(path) as file:
        file.write(b"after")
        assert path.read_bytes() == b"before"
    assert path.read_bytes() == b"after"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write_keeps_the_old_file_on_failure(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"before")

    def interrupted() -> None:
        with atomic_write(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [path]


def test_sha256_of_file_is_the_hash_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc" * 10**6)
    assert sha256_of_file(tmp_path / "file") == hashlib.sha256(b"abc" * 10**6).hexdigest()


def test_a_lock_is_held_by_the_process_that_took_it_and_not_by_its_children(tmp_path: Path) -> None:
    with exclusive(tmp_path, "in use"):
        child = os.fork()
        if child == 0:  # as a loader process that outlives a killed run
            time.sleep(60)
            os._exit(0)
        time.sleep(0.1)
        with pytest.raises(UserError, match="in use"), exclusive(tmp_path, "in use"):
            pass
    try:
        with exclusive(tmp_path, "in use"):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_outlives_the_child_that_inherited_it(tmp_path: Path) -> None:
    with exclusive(tmp_path, "in use"):
        child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        with pytest.raises(UserError, match="in use"), exclusive(tmp_path, "in use"):
            pass
