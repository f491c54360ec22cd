"""Chunks read as HDF5 reads them, and never beyond the size that they declare."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest
from h5py import h5s

from recshuf.errors import InputError
from recshuf.formats.hdf5.filters import has_right_checksum
from tests.support.formats.hdf5_bytes import write_chunks
from tests.support.formats.hdf5_tools import open_source, read_all, read_raw
from tests.support.formats.hostile_tools import TINY, refusal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fuzzing.server import Server


def test_a_tiny_file_that_declares_terabytes_is_refused_at_once(tmp_path: Path, child: Server) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", (1 << 33, 1 << 10), "u1", chunks=(1 << 10, 1 << 10))
    assert (tmp_path / "in.h5").stat().st_size < 1500
    line = refusal(child.run(TINY, tmp_path), tmp_path)
    assert "dataset 'x': declares 8796093022208 bytes but stores 0" in line


@pytest.mark.parametrize(
    ("rows", "said"), [(1 << 18, "--memory"), (1 << 14, "dataset 'x': a chunk has 16777216")]
)
def test_a_chunk_larger_than_the_limit_is_refused_before_it_is_read(
    tmp_path: Path, child: Server, rows: int, said: str
) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((rows, 1 << 10), "u1"), chunks=(rows, 1 << 10), compression=1)
    assert (tmp_path / "in.h5").stat().st_size < 1 << 21
    assert said in refusal(child.run(TINY, tmp_path), tmp_path)


def test_a_gzip_chunk_inflates_no_further_than_its_size(tmp_path: Path, child: Server) -> None:
    stream = zlib.compressobj(9)
    bomb = b"".join([*(stream.compress(bytes(1 << 26)) for _ in range(4)), stream.flush()])
    whole = zlib.compress(bytes(1 << 20))
    with h5py.File(tmp_path / "in.h5", "w") as file:
        made = file.create_dataset("x", (2 << 16, 16), "u1", chunks=(1 << 16, 16), compression=1)
        made.id.write_direct_chunk((0, 0), whole)
        made.id.write_direct_chunk((1 << 16, 0), bomb)  # 256 MiB instead of 1 MiB
    with pytest.raises(InputError, match="a chunk of 1048576 bytes inflates to more"):
        read_all(open_source(tmp_path / "in.h5"))
    ended = child.run(TINY, tmp_path)
    assert "a chunk of 1048576 bytes inflates to more" in refusal(ended, tmp_path)


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"fletcher32": True}])
@pytest.mark.parametrize("held", [0, 1, 1023, 1025])
def test_a_gzip_chunk_must_fill_its_size(tmp_path: Path, held: int, options: dict[str, bool]) -> None:
    """HDF5 itself hands out whatever lies behind a chunk in memory."""
    stored = zlib.compress(bytes(held))
    if options.get("fletcher32"):
        stored += checksum(stored)
    whole = zlib.compress(bytes(1024))
    whole += checksum(whole) if options.get("fletcher32") else b""
    path = write_chunks(tmp_path / "in.h5", [whole, stored], **options)
    with pytest.raises(InputError, match=r"'x'.*a chunk of 1024 bytes inflates to"):
        read_all(open_source(path))


def checksum(stored: bytes) -> bytes:
    """Return Fletcher's checksum, word by word."""
    first = second = 0
    for place in range(0, len(stored), 2):
        first = (first + int.from_bytes(stored[place : place + 2].ljust(2, b"\0"), "big")) % 65535
        second = (second + first) % 65535
    return (second << 16 | first).to_bytes(4, "little")


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 70_001])
def test_checksums_are_those_of_hdf5(tmp_path: Path, size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        made = file.create_dataset("x", data=data, chunks=(size,), fletcher32=True)
        stored = made.id.read_direct_chunk((0,))[1]
    assert has_right_checksum(stored)
    assert has_right_checksum(data.tobytes() + checksum(data.tobytes()))
    for place in range(0, len(stored), 1 + size // 10):
        wrong = bytearray(stored)
        wrong[place] ^= 1
        assert not has_right_checksum(bytes(wrong))


@pytest.mark.parametrize("shape", [(100,), (50, 6, 5), (10, 3)])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("fletcher32", [False, True])
def test_gzip_chunks_read_as_hdf5_reads_them(
    tmp_path: Path, shape: tuple[int, ...], shuffle: bool, fletcher32: bool
) -> None:
    """Also chunks over the edge, chunks never written, and those that a mask leaves out of some filters."""
    chunk = (7, 4, 2)[: len(shape)]
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name, kind in (("a", "u1"), ("b", "i4"), ("c", "S13")):
            options = {
                "compression": 1,
                "shuffle": shuffle,
                "fletcher32": fletcher32,
                "fillvalue": b"fill" if kind == "S13" else 7,
            }
            made = file.create_dataset(
                name, shape, kind, chunks=chunk, maxshape=(None,) * len(shape), **options
            )
            raw = np.random.default_rng(1).integers(0, 5, made.nbytes, np.uint8)
            made.id.write(h5s.ALL, h5s.ALL, raw, made.id.get_type())
            plain = bytes(range(7)) * (np.prod(chunk) * made.dtype.itemsize // 7)
            made.id.write_direct_chunk((7,) + (0,) * (len(shape) - 1), plain, 0b111)
            made.resize(shape[0] + 30, 0)
    with h5py.File(tmp_path / "in.h5") as file:
        expected = {name: read_raw(file[name]) for name in file}
    source = open_source(tmp_path / "in.h5")
    for block_bytes in (1, 700, 1 << 20):
        batches = read_all(source, block_bytes)
        for index, name in enumerate(source.schema.names):
            read = b"".join(each for batch in batches for each in batch.column(index).to_pylist())
            assert read == expected[name]
