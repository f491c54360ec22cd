"""Bytes of HDF5 files, put where the test wants them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import h5py

if TYPE_CHECKING:
    from pathlib import Path


def patch(path: Path, place: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        file.write(data)


def find(path: Path, wanted: bytes) -> int:
    """Return the only place of some bytes."""
    content = path.read_bytes()
    assert content.count(wanted) == 1
    return content.index(wanted)


def write_chunks(path: Path, chunks: list[bytes], rows: int = 64, masks: int = 0, **options: object) -> Path:
    """Write a dataset ``x`` of gzip chunks of 64 rows of 16 bytes that hold these bytes."""
    with h5py.File(path, "w") as file:
        kind = {"compression": "gzip", **options}
        made = file.create_dataset("x", (rows * len(chunks), 16), "u1", chunks=(rows, 16), **kind)
        for index, stored in enumerate(chunks):
            made.id.write_direct_chunk((index * rows, 0), stored, masks)
    return path
