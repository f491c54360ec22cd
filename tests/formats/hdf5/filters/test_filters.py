"""Chunks filtered outside of HDF5 are those that HDF5 makes and reads."""

from __future__ import annotations

import ctypes
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5p, h5s, h5t, h5z
from h5py._objects import phil

from recshuf.errors import InputError
from recshuf.formats.hdf5 import FORMAT, rows
from recshuf.formats.hdf5 import sink as plan
from recshuf.formats.hdf5.chunks import ChunkReader
from recshuf.formats.hdf5.filters import has_right_checksum, make_checksum
from recshuf.formats.hdf5.pipeline import find_pipeline
from recshuf.formats.hdf5.writers import ShardFile, TaskQueue
from recshuf.interfaces import Sink, WriteOptions
from tests.support.formats.hdf5_tools import copy_through, open_source, read_all, read_raw, write_shard

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

COMPOUND = np.dtype({"names": ["a", "b"], "formats": ["u1", ">f4"], "offsets": [1, 4], "itemsize": 11})
KINDS = {
    "u1": 7,
    ">i4": -7,
    "f2": 1.5,
    "f8": np.nan,
    "c8": 1 + 2j,
    "?": True,
    "S5": b"fill",
    "V7": np.void(b"\1\2\3\4\5\6\7"),
    "compound": np.array((3, 2.5), COMPOUND),
    "enum": 2,
}
FILTERS: dict[str, dict[str, Any]] = {
    "gzip": {"compression": "gzip", "compression_opts": 4},
    "gzip 0": {"compression": "gzip", "compression_opts": 0},
    "gzip 9, shuffle": {"compression": "gzip", "compression_opts": 9, "shuffle": True},
    "gzip, shuffle, fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "fletcher32": {"fletcher32": True},
    "shuffle": {"shuffle": True},
    "zstd": {"compression": 32015, "compression_opts": (5,)},
    "zstd, shuffle, fletcher32": {"compression": 32015, "shuffle": True, "fletcher32": True},
    "none": {},
    "lzf": {"compression": "lzf"},
    "lzf, shuffle, fletcher32": {"compression": "lzf", "shuffle": True, "fletcher32": True},
}
CHUNKS = {(): (7,), (6, 5): (7, 4, 2), (3,): (1, 3), (4,): (40, 6), (2, 2): (3, 1, 2)}
"""Shapes of chunks that divide rows of these shapes, or do not."""


@pytest.fixture(autouse=True)
def _plugins() -> None:
    pytest.importorskip("hdf5plugin")


@pytest.fixture
def use_library(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what leaves all filters to HDF5."""

    def switch() -> None:
        monkeypatch.setattr(plan, "find_pipeline", lambda *_: None)
        monkeypatch.setattr(rows, "make_inflater", lambda *_, **__: None)

    return switch


def find_kind(kind: str) -> Any:
    if kind == "enum":
        return h5py.enum_dtype({"A": 0, "B": 1, "C": 2}, basetype="i2")
    return COMPOUND if kind == "compound" else kind


def make_dataset(
    file: h5py.File,
    name: str,
    kind: str,
    row_shape: tuple[int, ...],
    options: dict[str, Any],
    count: int = 40,
) -> bytes:
    """Write a dataset of bytes that compress, and return them."""
    made = file.create_dataset(
        name,
        (count, *row_shape),
        find_kind(kind),
        chunks=CHUNKS[row_shape],
        maxshape=(None,) * (1 + len(row_shape)),
        fillvalue=KINDS[kind],
        **options,
    )
    raw = np.random.default_rng(1).integers(0, 2, made.nbytes, np.uint8)
    made.id.write(h5s.ALL, h5s.ALL, raw, made.id.get_type())
    return raw.tobytes()


def make_file(
    path: Path, kind: str, row_shape: tuple[int, ...], options: dict[str, Any], count: int = 40
) -> bytes:
    """Write a file with a dataset ``x``, and return its bytes."""
    with h5py.File(path, "w") as file:
        return make_dataset(file, "x", kind, row_shape, options, count)


def write_all(sink: Sink, batches: list[pa.RecordBatch]) -> None:
    with sink:
        for batch in batches:
            sink.write(batch)


def read_grown(path: Path) -> dict[str, bytes]:
    """Return the bytes of datasets after they have grown in all directions: what chunks hold beyond their edges."""
    with h5py.File(path, "a") as file:
        for each in file.values():
            each.resize([width + 5 for width in each.shape])
        return {name: read_raw(each) for name, each in file.items()}


@pytest.mark.parametrize("row_shape", CHUNKS, ids=str)
@pytest.mark.parametrize("options", FILTERS.values(), ids=list(FILTERS))
def test_chunks_are_those_of_hdf5(
    tmp_path: Path, use_library: Callable[[], None], row_shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        raw = {kind: make_dataset(file, kind, kind, row_shape, options) for kind in KINDS}
    copy_through(tmp_path / "in.h5", tmp_path / "own.h5")
    use_library()
    copy_through(tmp_path / "in.h5", tmp_path / "library.h5")
    with h5py.File(tmp_path / "own.h5") as own, h5py.File(tmp_path / "library.h5") as library:
        for kind in KINDS:
            assert read_raw(own[kind]) == read_raw(library[kind]) == raw[kind]
            assert own[kind].id.get_num_chunks() == library[kind].id.get_num_chunks()
            assert own[kind].id.get_create_plist().get_nfilters() == len(
                {"compression", "shuffle", "fletcher32"} & options.keys()
            )
    assert read_grown(tmp_path / "own.h5") == read_grown(tmp_path / "library.h5")


@pytest.mark.parametrize("options", FILTERS.values(), ids=list(FILTERS))
@pytest.mark.parametrize("row_shape", [(), (6, 5)], ids=str)
def test_chunks_are_read_as_hdf5_reads_them(
    tmp_path: Path, use_library: Callable[[], None], row_shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    """Also those never written, and those that a mask leaves out of some filters or all."""
    raw = make_file(tmp_path / "in.h5", "f8", row_shape, options)
    with h5py.File(tmp_path / "in.h5", "a") as file:
        chunk = file["x"].chunks
        plain = bytes(range(8)) * int(np.prod(chunk))
        offset = (7, *(0 for _ in row_shape))
        filters = file["x"].id.get_create_plist().get_nfilters()
        file["x"].id.write_direct_chunk(offset, plain, (1 << filters) - 1)
        file["x"].resize(90, 0)
        expected = read_raw(file["x"])
    assert expected != raw
    for block_bytes in (100, 3000, 1 << 20):
        batches = read_all(open_source(tmp_path / "in.h5"), block_bytes)
        found = b"".join(value for batch in batches for value in batch.column(0).to_pylist())
        assert found == expected
    use_library()
    found = b"".join(
        value for batch in read_all(open_source(tmp_path / "in.h5")) for value in batch.column(0).to_pylist()
    )
    assert found == expected


@pytest.mark.parametrize("options", FILTERS.values(), ids=list(FILTERS))
def test_threads_change_no_byte(tmp_path: Path, options: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        values = np.arange(3 << 16).reshape(-1, 64)
        file.create_dataset("a", data=values, chunks=(100, 64), **options)
        file.create_dataset("b", data=values[:, :10], chunks=(77, 3), **options)
        file.create_dataset("c", data=values[:, 0], chunks=(1000,), compression="lzf")
        file["d"] = [b"x" * (row % 5) for row in range(len(values))]
    source = open_source(tmp_path / "in.h5")
    target = FORMAT.open_target(source.schema, source.layout, WriteOptions())
    batches = read_all(source)
    for threads in (1, 2, 5):
        write_all(target.open(tmp_path / f"{threads}.h5", threads), batches)
    assert len({(tmp_path / f"{threads}.h5").read_bytes() for threads in (1, 2, 5)}) == 1
    with h5py.File(tmp_path / "5.h5") as after:
        assert np.array_equal(after["b"][:], values[:, :10])


@pytest.mark.parametrize("level", range(10))
def test_gzip_is_as_dense_as_that_of_hdf5(tmp_path: Path, level: int) -> None:
    rng = np.random.default_rng(level)
    columns = {
        "ramp": np.sort(rng.integers(0, 1 << 16, 1 << 15)).astype(np.int32),
        "normal": rng.normal(size=1 << 15).astype(np.float32),
        "grid": (rng.integers(0, 1 << 16, 1 << 15) / (1 << 16)).astype(np.float32),
    }
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name, values in columns.items():
            for shuffle in (False, True):
                file.create_dataset(
                    f"{name}{shuffle}", data=values, chunks=(1 << 14,), compression=level, shuffle=shuffle
                )
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "in.h5") as before, h5py.File(tmp_path / "out.h5") as after:
        for name in before:
            assert after[name].id.get_storage_size() <= 1.02 * before[name].id.get_storage_size()


def test_edges_that_were_not_filtered_are(tmp_path: Path) -> None:
    """HDF5 can be told to leave chunks over an edge as they are; it must not take those of shards for such."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((8, 5))
    plist.set_deflate(4)
    find_library().H5Pset_chunk_opts(ctypes.c_int64(plist.id), ctypes.c_uint(2))
    values = np.arange(70, dtype=np.int32).reshape(10, 7)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        made = h5d.create(
            file.id, b"x", h5t.NATIVE_INT32, h5s.create_simple((10, 7), (h5s.UNLIMITED, 7)), plist
        )
        made.write(h5s.ALL, h5s.ALL, values)
        made.flush()
        assert len(made.read_direct_chunk((8, 5))[1]) == 160
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as after:
        assert np.array_equal(after["x"][:], values)
        assert len(after["x"].id.read_direct_chunk((8, 5))[1]) < 160


def find_library() -> ctypes.CDLL:
    """Return the HDF5 library of this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split()[-1] for line in lines if Path(line.split()[-1]).name.startswith("libhdf5")}
    for path in sorted(paths):
        library = ctypes.CDLL(path)
        if hasattr(library, "H5Pset_chunk_opts"):
            return library
    pytest.skip("HDF5 is no library of its own here")


@pytest.mark.parametrize("content", [b"", b"\0" * 600, b"\xff" * 600, b"\xff\xff", b"\xff\xfe\0\1", b"abc"])
def test_checksums_are_made_as_hdf5_makes_them(tmp_path: Path, content: bytes) -> None:
    assert has_right_checksum(content + make_checksum(content))
    if content:
        with h5py.File(tmp_path / "x.h5", "w") as file:
            data = np.frombuffer(content, np.uint8)
            made = file.create_dataset("x", data=data, chunks=data.shape, fletcher32=True)
            assert made.id.read_direct_chunk((0,))[1] == content + make_checksum(content)


# Damage


def damage_chunk(path: Path, change: Callable[[bytes], bytes]) -> None:
    with h5py.File(path, "a") as file:
        offset = (7, *(0 for _ in file["x"].shape[1:]))
        mask, stored = file["x"].id.read_direct_chunk(offset)
        file["x"].id.write_direct_chunk(offset, change(stored), mask)


CHANGES: dict[str, Callable[[bytes], bytes]] = {
    "cut": lambda stored: stored[:-3],
    "flipped": lambda stored: stored[:20] + bytes([stored[20] ^ 1]) + stored[21:],
    "empty": lambda _: b"12345",
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
@pytest.mark.parametrize(
    "options", ["gzip", "gzip, shuffle, fletcher32", "zstd, shuffle, fletcher32", "lzf, shuffle, fletcher32"]
)
def test_damaged_chunks_are_refused_by_name(
    tmp_path: Path, options: str, change: Callable[[bytes], bytes]
) -> None:
    make_file(tmp_path / "in.h5", "f8", (6, 5), FILTERS[options])
    damage_chunk(tmp_path / "in.h5", change)
    with pytest.raises(InputError, match="dataset 'x'") as caught:
        read_all(open_source(tmp_path / "in.h5"))
    assert "NoneType" not in str(caught.value)


@pytest.mark.parametrize("held", [0, 1, 10_000])
def test_a_zstd_chunk_must_fill_its_size(tmp_path: Path, held: int) -> None:
    import zstandard

    make_file(tmp_path / "in.h5", "f8", (6, 5), FILTERS["zstd"])
    damage_chunk(tmp_path / "in.h5", lambda _: zstandard.compress(bytes(held)))
    with pytest.raises(InputError, match="'x'"):
        read_all(open_source(tmp_path / "in.h5"))


LZF_RUN = b"\x1f" + bytes(32)
"""32 zeros, as they are."""


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (LZF_RUN, "of 64 bytes inflates to 32 bytes"),
        (3 * LZF_RUN, "of 64 bytes inflates to more"),
        (2 * LZF_RUN + b"\x20\x00", "of 64 bytes inflates to more"),
        (LZF_RUN + b"\x1f", "cannot be read"),
        (b"\x20\xff" + LZF_RUN, "cannot be read"),
    ],
)
def test_an_lzf_chunk_must_fill_its_size(tmp_path: Path, stored: bytes, said: str) -> None:
    """HDF5 takes what lies behind a short one in memory for data."""
    with h5py.File(tmp_path / "in.h5", "w") as file:
        made = file.create_dataset("x", (8,), "f8", chunks=(8,), compression="lzf")
        made.id.write_direct_chunk((0,), 2 * LZF_RUN)
    (batch,) = read_all(open_source(tmp_path / "in.h5"))
    assert b"".join(batch.column(0).to_pylist()) == bytes(64)
    with h5py.File(tmp_path / "in.h5", "a") as file:
        file["x"].id.write_direct_chunk((0,), stored)
    with pytest.raises(
        InputError, match=f"{said}.*rows 0 to 8 of dataset 'x'|rows 0 to 8 of dataset 'x'.*{said}"
    ):
        read_all(open_source(tmp_path / "in.h5"))


@pytest.mark.parametrize("fletcher32", [False, True])
def test_what_lzf_cannot_make_smaller_is_left_as_it_is(
    tmp_path: Path, use_library: Callable[[], None], *, fletcher32: bool
) -> None:
    values = np.random.default_rng(2).integers(0, 256, (6, 100), np.uint8)
    values[3] = 7
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(1, 100), compression="lzf", fletcher32=fletcher32)
    copy_through(tmp_path / "in.h5", tmp_path / "own.h5")
    use_library()
    copy_through(tmp_path / "in.h5", tmp_path / "library.h5")
    with h5py.File(tmp_path / "own.h5") as own, h5py.File(tmp_path / "library.h5") as library:
        assert np.array_equal(own["x"][:], values)
        for row in range(6):
            found = own["x"].id.read_direct_chunk((row, 0))
            assert found == library["x"].id.read_direct_chunk((row, 0))
            assert found[0] == (0 if row == 3 else 1)


def test_what_follows_a_stream_is_passed_over(tmp_path: Path) -> None:
    """As HDF5 does."""
    raw = make_file(tmp_path / "in.h5", "u1", (), {"compression": 1}, count=7)
    with h5py.File(tmp_path / "in.h5", "a") as file:
        file["x"].id.write_direct_chunk((0,), zlib.compress(raw) + b"more")
        assert read_raw(file["x"]) == raw
    (batch,) = read_all(open_source(tmp_path / "in.h5"))
    assert b"".join(batch.column(0).to_pylist()) == raw


# Threads


def test_results_are_used_in_order_and_few_are_under_way() -> None:
    released, begun = threading.Event(), threading.Semaphore(0)
    started: list[int] = []
    used: list[bytes] = []
    tasks = TaskQueue(3)

    def work(number: int) -> list[bytes]:
        started.append(number)
        begun.release()
        if number == 0:
            assert released.wait(60)
        return [bytes([number])]

    def feed() -> None:
        for number in range(20):
            tasks.put(lambda number=number: work(number), used.extend)
        tasks.drain()

    feeder = threading.Thread(target=feed)
    feeder.start()
    assert all(begun.acquire(timeout=60) for _ in range(4))
    assert max(started) <= 3
    assert used == []
    released.set()
    feeder.join()
    tasks.close()
    assert used == [bytes([number]) for number in range(20)]


def test_an_error_in_a_thread_is_that_of_the_sink(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_file(tmp_path / "in.h5", "f8", (6, 5), FILTERS["gzip"])
    source = open_source(tmp_path / "in.h5")
    target = FORMAT.open_target(source.schema, source.layout, WriteOptions())

    batches = read_all(source)

    def fail(*_: object) -> bytes:
        raise MemoryError("no room")

    monkeypatch.setattr("recshuf.formats.hdf5.pipeline.deflate.zlib_compress", fail)
    for threads in (1, 3):
        with pytest.raises(MemoryError, match="no room"):
            write_all(target.open(tmp_path / f"{threads}.h5", threads), batches)


def test_unusual_filters_are_left_to_hdf5(tmp_path: Path) -> None:
    """A checksum before the byte shuffle, and gzip twice."""
    for number, codes in enumerate(
        ([h5z.FILTER_FLETCHER32, h5z.FILTER_SHUFFLE], [h5z.FILTER_DEFLATE, h5z.FILTER_DEFLATE])
    ):
        plist = h5p.create(h5p.DATASET_CREATE)
        plist.set_chunk((8,))
        for code in codes:
            plist.set_filter(code, 0, (4,) if code == h5z.FILTER_DEFLATE else ())
        path = tmp_path / f"{number}.h5"
        with h5py.File(path, "w") as file:
            made = h5d.create(file.id, b"x", h5t.NATIVE_INT32, h5s.create_simple((100,)), plist)
            made.write(h5s.ALL, h5s.ALL, np.arange(100, dtype=np.int32))
        source = open_source(path)
        write_shard(source, tmp_path / f"out{number}.h5", read_all(source))
        with h5py.File(tmp_path / f"out{number}.h5") as after:
            assert after["x"][:].tolist() == list(range(100))


class WatchedDataset:
    """A dataset that notes whether others could call the library while a chunk is read."""

    def __init__(self, dataset: h5d.DatasetID) -> None:
        self._dataset = dataset
        self.was_open: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def read_direct_chunk(self, offset: tuple[int, ...]) -> tuple[int, bytes]:
        with ThreadPoolExecutor(1) as pool:
            self.was_open.append(pool.submit(is_lock_free).result())
        return self._dataset.read_direct_chunk(offset)


def is_lock_free() -> bool:
    is_free = phil.acquire(False)
    if is_free:
        phil.release()
    return is_free


def test_chunks_are_read_while_nobody_else_calls_the_library(tmp_path: Path) -> None:
    """Not every version of h5py sees to that, and the library crashes."""
    with h5py.File(tmp_path / "in.h5", "w") as file:
        made = file.create_dataset("x", data=np.arange(100), chunks=(10,), compression="gzip")
        pipeline = find_pipeline(made.id, 8)
        assert pipeline is not None
        watched = WatchedDataset(made.id)
        assert ChunkReader(watched, pipeline, keeps=False).read(0, 100).view("i8").tolist() == list(
            range(100)
        )
    assert watched.was_open == [False] * 10


@pytest.mark.parametrize("options", [{}, FILTERS["gzip"]], ids=["plain", "gzip"])
def test_others_may_call_the_library_while_a_large_chunk_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    was_free: list[bool] = []

    class WatchedShard(ShardFile):
        def write(self, buffer: bytes) -> int:
            before = self.tell()
            count = super().write(buffer)
            if self.tell() > before:
                with ThreadPoolExecutor(1) as pool:
                    was_free.append(pool.submit(is_lock_free).result())
            return count

    values = np.random.default_rng(9).integers(0, 255, (1000, 1000), np.uint8)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("large", data=values, chunks=(100, 1000), **options)
        file.create_dataset("small", data=values, chunks=(20, 1000), **options)
    monkeypatch.setattr("recshuf.formats.hdf5.sink.ShardFile", WatchedShard)
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    assert was_free.count(True) == 10 + 1  # large chunks, and the image before HDF5 has the file
    with h5py.File(tmp_path / "out.h5") as after:
        assert np.array_equal(after["large"][:], values)
        assert np.array_equal(after["small"][:], values)
