"""The file under an HDF5 shard: what it holds back, and where it writes that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.formats.hdf5.writers import ShardFile

if TYPE_CHECKING:
    from pathlib import Path

HELD = b"held"


def test_a_buffer_is_written_in_the_end_where_it_was_to_be_inside(tmp_path: Path) -> None:
    path = tmp_path / "x"
    shard = ShardFile(path, b"." * 12)
    with shard.holding(HELD):
        shard.seek(8)
        assert shard.write(memoryview(HELD)) == 4
        shard.seek(0)
        shard.write(b"rest")
        assert path.read_bytes() == b"rest........"
    assert path.read_bytes() == b"rest....held"
    shard.close()


def test_what_only_looks_like_the_buffer_is_written_at_once(tmp_path: Path) -> None:
    path = tmp_path / "x"
    shard = ShardFile(path, b"")
    with shard.holding(HELD):
        shard.write(bytearray(HELD))
        shard.write(memoryview(HELD)[:2])
        assert path.read_bytes() == b"heldhe"
    assert path.read_bytes() == b"heldhe"
    shard.close()


def test_a_buffer_that_is_not_written_inside_is_not_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "x"
    shard = ShardFile(path, b"")
    for _ in range(2):
        with shard.holding(HELD):
            if not path.stat().st_size:
                shard.write(HELD)
        shard.write(HELD)
    assert path.read_bytes() == 3 * HELD
    shard.close()
