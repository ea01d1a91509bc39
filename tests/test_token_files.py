import struct
from pathlib import Path

import numpy as np
import pytest

from gpt.data.token_files import create_shard, dtype_for, open_shard
from tests.prepared import write_shard


def test_a_shard_has_llm_cs_format_byte_for_byte(tmp_path: Path) -> None:
    write_shard(tmp_path / "small", np.array([5, 50256], dtype="<u2"))
    assert (tmp_path / "small").read_bytes() == struct.pack("<256i2H", 20240520, 1, 2, *[0] * 253, 5, 50256)
    write_shard(tmp_path / "large", np.array([5, 128000], dtype="<u4"))
    assert (tmp_path / "large").read_bytes() == struct.pack("<256i2I", 20240801, 7, 2, *[0] * 253, 5, 128000)
    assert open_shard(tmp_path / "small").tolist() == [5, 50256]
    assert open_shard(tmp_path / "large").tolist() == [5, 128000]


def test_dtype_is_uint16_up_to_65536_ids() -> None:
    assert [dtype_for(size).name for size in (257, 50257, 65536, 65537, 100277)] == ["uint16"] * 3 + ["uint32"] * 2


def test_an_incomplete_shard_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), create_shard(tmp_path / "shard", dtype_for(257)) as file:
        file.write(np.array([1, 2], dtype="<u2"))
        assert list(tmp_path.iterdir())
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
