import struct
from pathlib import Path

import numpy as np

from gpt.data.token_files import ShardWriter, dtype_for, open_shard, write_shard


def test_a_shard_is_llm_cs_file_byte_for_byte(tmp_path: Path) -> None:
    write_shard(tmp_path / "small", np.array([5, 50256], dtype="<u2"))
    assert (tmp_path / "small").read_bytes() == struct.pack("<256i2H", 20240520, 1, 2, *[0] * 253, 5, 50256)
    write_shard(tmp_path / "large", np.array([5, 128000], dtype="<u4"))
    assert (tmp_path / "large").read_bytes() == struct.pack("<256i2I", 20240801, 7, 2, *[0] * 253, 5, 128000)
    assert open_shard(tmp_path / "small").tolist() == [5, 50256]
    assert open_shard(tmp_path / "large").tolist() == [5, 128000]


def test_the_dtype_is_the_smallest_that_holds_every_id() -> None:
    assert [dtype_for(size).name for size in (257, 50257, 65536, 65537, 100277)] == ["uint16"] * 3 + ["uint32"] * 2


def test_an_unfinished_shard_leaves_nothing(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "shard", dtype_for(257))
    writer.write(np.array([1, 2], dtype="<u2"))
    assert list(tmp_path.iterdir())
    writer.leave()
    assert not list(tmp_path.iterdir())
