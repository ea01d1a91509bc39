import hashlib
from pathlib import Path

import pytest

from gpt.files import atomic_write, sha256_of_file


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
