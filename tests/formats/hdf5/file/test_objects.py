"""HDF5 files in object stores: the rows of the file, and their indexes in few rounds of requests."""

from __future__ import annotations

import re
import threading
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recshuf.formats.hdf5 import FORMAT
from recshuf.formats.hdf5.file.index_nodes import list_children
from recshuf.interfaces import InputFile, ReadOptions, Stamp
from recshuf.storage.objects import ObjectFile
from recshuf.storage.read_ahead import SegmentCache, SegmentedObject
from recshuf.storage.requests import Requests
from tests.support.hdf5_tools import open_source, read_all

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recshuf.interfaces import Source

ROWS = 3_000
CHUNK = (64, 1_000)
NODE_BYTES = 24 + 64 * 8 + 65 * (8 + 8 * 3)  # two axes, and one for the bytes of an element


class FileStore:
    """A store of one object, which is a local file.

    Parameters
    ----------
    at_once
        Requests for bytes that begin at these places wait for each other.
    """

    is_bound = True

    def __init__(self, path: Path, at_once: Sequence[int] = ()) -> None:
        self.path = path
        self.requests = Requests()
        self._at_once = at_once
        self._barrier = threading.Barrier(max(1, len(at_once)), timeout=60)

    def get(self, key: str, begin: int, end: int, stamp: Stamp) -> bytes:
        if begin in self._at_once:
            self._barrier.wait()
        with self.path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)


def open_object(store: FileStore) -> Source:
    stamp = Stamp(store.path.stat().st_size, etag="x")
    content = SegmentedObject("s3://b/in.h5", "in.h5", stamp, store, SegmentCache(1 << 28, 1))
    source = InputFile("s3://b/in.h5", None, stamp=stamp, opener=ObjectFile(content, store.requests))
    return FORMAT.open_source([source], ReadOptions())


def make_rows(seed: int = 0, rows: int = ROWS) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 9, (rows, CHUNK[1]), np.uint8)


STORAGES: dict[str, dict[str, Any]] = {
    "contiguous": {},
    "plain": {"chunks": CHUNK},
    "split rows": {"chunks": (128, 300)},
    "small": {"chunks": (8, 100)},
    "gzip": {"chunks": CHUNK, "compression": "gzip"},
    "lzf with checksums": {"chunks": CHUNK, "compression": "lzf", "shuffle": True, "fletcher32": True},
    "checksums": {"chunks": CHUNK, "fletcher32": True},
    "shuffled": {"chunks": CHUNK, "shuffle": True},
    "scale and offset": {"chunks": CHUNK, "scaleoffset": 0},
}


@pytest.mark.parametrize("name", STORAGES)
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_rows_are_those_of_the_file(tmp_path: Path, name: str, libver: str) -> None:
    with h5py.File(tmp_path / "in.h5", "w", libver=libver) as file:
        file.create_dataset("x", data=make_rows(), **STORAGES[name])
        file.create_dataset("n", data=np.arange(ROWS))
    expected = read_all(open_source(tmp_path / "in.h5"))
    assert pa.Table.from_batches(read_all(open_object(FileStore(tmp_path / "in.h5")))).equals(
        pa.Table.from_batches(expected)
    )


def test_chunks_that_were_never_written_hold_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        made = file.create_dataset("x", (ROWS, CHUNK[1]), "u1", chunks=CHUNK, fillvalue=7)
        made[:100] = made[2_000:2_100] = 3
    expected = read_all(open_source(tmp_path / "in.h5"))
    assert pa.Table.from_batches(read_all(open_object(FileStore(tmp_path / "in.h5")))).equals(
        pa.Table.from_batches(expected)
    )


def find_nodes(path: Path) -> list[tuple[int, bytes]]:
    """Return place and content of each node of an index of chunks in a file."""
    content = path.read_bytes()
    found = re.finditer(rb"TREE\x01", content)
    return [(one.start(), content[one.start() : one.start() + NODE_BYTES]) for one in found]


def test_nodes_of_an_index_are_fetched_at_once(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", data=make_rows(rows=20_000), chunks=(64, 1_000))
    nodes = find_nodes(tmp_path / "in.h5")
    inner = [node for _, node in nodes if node[5]]
    leaves = [place for place, node in nodes if not node[5]]
    assert len(inner) == 1
    assert 3 <= len(leaves) <= 8
    assert sorted(list_children(memoryview(inner[0]))) == leaves
    apart = [place for before, place in pairwise([0, *leaves]) if place - before > 1 << 20]
    assert len(apart) > 2
    open_object(FileStore(tmp_path / "in.h5", at_once=apart))


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("shape", [(9,), (9, 9), (9, 9, 9)])
def test_leaves_have_no_children(tmp_path: Path, shape: tuple[int, ...], libver: str) -> None:
    with h5py.File(tmp_path / "in.h5", "w", libver=libver) as file:
        file.create_dataset("x", shape, chunks=(3,) * len(shape), data=np.ones(shape))
    content = (tmp_path / "in.h5").read_bytes()
    for place in range(len(content) - 1):
        assert list_children(memoryview(content)[place:]) == []


@given(st.binary(max_size=3_000), st.integers(1, 255))
def test_any_bytes_are_some_children_or_none(content: bytes, level: int) -> None:
    node = b"TREE\x01" + bytes([level]) + content
    assert len(list_children(memoryview(node))) <= 64
