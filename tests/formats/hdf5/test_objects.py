"""HDF5 files in object stores: the rows of the file, and their indexes in few rounds of requests."""

import re
import struct
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest

from recshuf.errors import InputError
from recshuf.formats.hdf5 import FORMAT
from recshuf.interfaces import InputFile, Source, Stamp
from recshuf.storage.reading import read_ahead
from recshuf.storage.reading.objects import ObjectFile
from recshuf.storage.reading.read_ahead import SegmentCache, SegmentedObject
from recshuf.storage.requests import Requests
from tests.support.effort import mostly_slow
from tests.support.formats.format_tools import reading
from tests.support.formats.hdf5_tools import open_source, patch, read_all

ROWS = 1_200
CHUNK = (64, 1_000)
NODE_BYTES = 24 + 64 * 8 + 65 * (8 + 8 * 3)  # two axes, and one for the bytes of an element


class FileStore:
    """A store of one object, which is a local file."""

    is_bound = True

    def __init__(self, path: Path) -> None:
        self.path = path
        self.requests = Requests()
        self.ranges: list[tuple[int, int]] = []

    def get(self, key: str, begin: int, end: int, stamp: Stamp) -> bytes:
        self.ranges.append((begin, end))
        with self.path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)


def open_object(
    store: FileStore, cache_bytes: int = 1 << 28, datasets: tuple[str, ...] | None = None
) -> Source:
    stamp = Stamp(store.path.stat().st_size, etag="x")
    content = SegmentedObject("s3://b/in.h5", "in.h5", stamp, store, SegmentCache(cache_bytes, 1))
    source = InputFile("s3://b/in.h5", None, stamp=stamp, opener=ObjectFile(content, store.requests))
    return FORMAT.open_source([source], reading(datasets=datasets))


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


@pytest.mark.parametrize("libver", mostly_slow(["earliest", "latest"], "latest"))
def test_rows_are_those_of_the_file(tmp_path: Path, libver: str) -> None:
    """Also of chunks that were never written, and with values of variable length, whose heaps are checked."""
    with h5py.File(tmp_path / "in.h5", "w", libver=libver) as file:
        for number, (name, options) in enumerate(STORAGES.items()):
            file.create_dataset(name, data=make_rows(number), **options)
        made = file.create_dataset("unwritten", (ROWS, CHUNK[1]), "u1", chunks=CHUNK, fillvalue=7)
        made[:100] = made[1_000:1_100] = 3
        file["text"] = [f"{number}" * (number % 9) for number in range(ROWS)]
    for names in ((*STORAGES, "unwritten"), ("text",)):
        check_rows(tmp_path / "in.h5", 1 << 28, names)


def check_rows(
    path: Path, cache_bytes: int, datasets: tuple[str, ...] | None = None
) -> list[tuple[int, int]]:
    """Check that the rows of an object are those of the file, and return the ranges that were requested."""
    store = FileStore(path)
    found = read_all(open_object(store, cache_bytes, datasets), cache_bytes // 3)
    expected = read_all(open_source(path, datasets=datasets))
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches(expected))
    return store.ranges


def find_nodes(path: Path) -> list[tuple[int, bytes]]:
    """Return place and content of each node of an index of chunks in a file."""
    content = path.read_bytes()
    found = re.finditer(rb"TREE\x01", content)
    return [(one.start(), content[one.start() : one.start() + NODE_BYTES]) for one in found]


# Requests, with parts of a sixteenth of their sizes

PART = 1 << 20
UNIT = 1 << 14
ITEMS = 32_000


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "PART_BYTES", PART)
    monkeypatch.setattr(read_ahead, "UNIT_BYTES", UNIT)
    monkeypatch.setattr(read_ahead, "_LARGE_BYTES", PART // 8)
    monkeypatch.setattr(read_ahead, "_GAP_BYTES", PART // 16)


def make_images() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (ITEMS, 192), np.uint8)


def write_images(path: Path, **options: Any) -> int:
    """Write images and labels, and return the size of the file."""
    with h5py.File(path, "w") as file:
        file.create_dataset("image", data=make_images(), chunks=(64, 192), **options)
        file["label"] = np.arange(ITEMS)
    return path.stat().st_size


def count_bytes(ranges: Sequence[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in ranges)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("options", "cache_bytes"), [({}, 6 << 20), ({"compression": "gzip", "compression_opts": 1}, 64 << 20)]
)
def test_a_file_takes_few_more_requests_than_it_has_parts(
    tmp_path: Path, options: dict[str, Any], cache_bytes: int
) -> None:
    size = write_images(tmp_path / "in.h5", **options)
    ranges = check_rows(tmp_path / "in.h5", cache_bytes)
    assert len(ranges) <= size // PART + 8
    assert count_bytes(ranges) <= 1.02 * size
    assert median(end - begin for begin, end in ranges) >= PART // 4


@pytest.mark.usefixtures("small_parts")
def test_chunks_in_another_order_are_not_read_ahead(tmp_path: Path) -> None:
    images, order = make_images(), np.random.default_rng(2).permutation(ITEMS // 64)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        made = file.create_dataset("image", images.shape, "u1", chunks=(64, 192))
        for chunk in order.tolist():
            made[64 * chunk : 64 * (chunk + 1)] = images[64 * chunk : 64 * (chunk + 1)]
    assert count_bytes(check_rows(tmp_path / "in.h5", 4 << 20)) <= 4 * images.nbytes


# Damage of an index that is checked as rows are read


def write_numbers(path: Path, chunk_rows: int) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(40_000).reshape(-1, 2), chunks=(chunk_rows, 2))


def find_entry(path: Path, number: int) -> tuple[int, bytes]:
    """Return the place and the bytes of the entry of a chunk in a leaf."""
    with h5py.File(path) as file:
        info = file["x"].id.get_chunk_info(number)
    entry = struct.pack("<IIQQQQ", info.size, 0, *info.chunk_offset, 0, info.byte_offset)
    return path.read_bytes().index(entry), entry


def read_object(path: Path) -> None:
    read_all(open_object(FileStore(path)), 1 << 16)


@pytest.mark.parametrize(
    ("chunk_rows", "number", "field", "value"),
    [
        (16, 0, slice(0, 4), b"\x11\0\0\0"),
        (16, -1, slice(32, 40), bytes(5) + b"\1\0\0"),
        (2, 500, slice(0, 4), b"\x11\0\0\0"),
    ],
)
def test_a_damaged_entry_is_refused_as_in_a_local_file(
    tmp_path: Path, chunk_rows: int, number: int, field: slice, value: bytes
) -> None:
    path = tmp_path / "in.h5"
    write_numbers(path, chunk_rows)
    place, _ = find_entry(path, number % (20_000 // chunk_rows))
    patch(path, place + field.start, value)
    with pytest.raises(InputError, match=r"dataset 'x': the chunk at .*: the file is damaged") as local:
        open_source(path)
    with pytest.raises(InputError) as remote:
        read_object(path)
    assert str(remote.value).partition("dataset")[2] == str(local.value).partition("dataset")[2]


@pytest.mark.parametrize("place", [0, 5])
def test_a_damaged_node_is_refused(tmp_path: Path, place: int) -> None:
    path = tmp_path / "in.h5"
    write_numbers(path, 16)
    leaf = [begin for begin, node in find_nodes(path) if not node[5]][-1]
    patch(path, leaf + place, b"\2")
    with pytest.raises(
        InputError, match=r"dataset 'x': cannot be read as HDF5 \(the node of an index at byte \d+ is damaged"
    ):
        read_object(path)
