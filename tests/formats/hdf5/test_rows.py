"""Rows from HDF5 to HDF5: every type, chunk and filter, bit for bit, as HDF5 itself reads them."""

import json
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5p, h5s, h5t, h5z

import recshuf
from tests.support.effort import mostly_slow
from tests.support.formats.hdf5_tools import (
    copy_through,
    create_raw,
    list_filters,
    read_column,
    read_grown,
    read_raw,
)


def numpy_type(dtype: Any) -> Callable[[], h5t.TypeID]:
    return lambda: h5t.py_create(np.dtype(dtype), logical=True)


def make_string(padding: int, charset: int) -> h5t.TypeID:
    tid = h5t.C_S1.copy()
    tid.set_size(7)
    tid.set_strpad(padding)
    tid.set_cset(charset)
    return tid


def make_opaque() -> h5t.TypeID:
    tid = h5t.create(h5t.OPAQUE, 5)
    tid.set_tag(b"five bytes")
    return tid


def make_narrow_integer() -> h5t.TypeID:
    tid = h5t.STD_I32LE.copy()
    tid.set_precision(20)
    tid.set_offset(3)
    return tid


TYPES: dict[str, Callable[[], h5t.TypeID]] = {
    **{
        code: numpy_type(code)
        for code in ("f2", "f4", ">f8", "i1", ">u2", "u8", "c8", ">c16", "?", "g", "S3")
    },
    "compound with padding": numpy_type(np.dtype([("a", "u1"), ("b", ">f8"), ("c", "S3", (2,))], align=True)),
    "array": lambda: h5t.array_create(h5t.STD_U16BE, (2, 3)),
    "bitfield": lambda: h5t.STD_B16LE.copy(),
    "time": lambda: h5t.UNIX_D32BE.copy(),
    "enum": numpy_type(h5py.enum_dtype({"red": 1, "green": -2}, "i2")),
    "opaque": make_opaque,
    "null-padded": lambda: make_string(h5t.STR_NULLPAD, h5t.CSET_ASCII),
    "null-terminated": lambda: make_string(h5t.STR_NULLTERM, h5t.CSET_UTF8),
    "space-padded": lambda: make_string(h5t.STR_SPACEPAD, h5t.CSET_ASCII),
    "narrow integer": make_narrow_integer,
}


@pytest.mark.parametrize(
    ("chunk_rows", "row_shape"),
    mostly_slow(
        [(0, ()), (1, (3,)), (16, (2, 1, 2)), (1000, (0,)), (0, (2, 0)), (7, ())],
        *((0, ()), (16, (2, 1, 2)), (1000, (0,))),
    ),
)
def test_every_fixed_type_passes_bit_for_bit(tmp_path: Path, row_shape: tuple[int, ...], chunk_rows: int):
    path = tmp_path / "in.h5"
    with h5py.File(path, "w") as file:
        raw = {
            name: create_raw(file, name, make(), (100, *row_shape), seed, chunk_rows)
            for seed, (name, make) in enumerate(TYPES.items())
        }
    out = copy_through(path, tmp_path / "out.h5", block_bytes=1000)
    with h5py.File(path) as before, h5py.File(out) as after:
        for name, make in TYPES.items():
            assert read_raw(before[name]) == raw[name], "the test's own file"
            assert read_raw(after[name]) == raw[name]
            assert after[name].shape == (100, *row_shape)
            assert after[name].id.get_type().equal(make())
            assert after[name].maxshape[0] is None
        assert after["opaque"].id.get_type().get_tag() == b"five bytes"
        assert h5py.check_enum_dtype(after["enum"].dtype) == {"red": 1, "green": -2}


# Values of variable length, and compounds that have some

ELEMENTS = ("<i4", ">i4", "f2", ">f8", "?", "c16", "g", "S3", [("a", "u1"), ("b", ">i8")])
LISTS = {
    **{f"{element}": h5py.vlen_dtype(np.dtype(element)) for element in ELEMENTS},
    "enum": h5py.vlen_dtype(h5py.enum_dtype({"a": 0, "b": 1}, "u1")),
}
TEXT, LIST = h5py.string_dtype(), h5py.vlen_dtype(np.dtype("<i4"))
INNER = np.dtype([("label", TEXT), ("at", "<f4", (2,))])
COMPOUNDS = {
    "text": np.dtype([("name", TEXT), ("v", "<f8")]),
    "list": np.dtype([("v", "<i8"), ("list", LIST)]),
    "with gaps": np.dtype(
        {
            "names": ["flag", "name", "short", "list", "last"],
            "formats": ["?", TEXT, "<i2", LIST, "S3"],
            "offsets": [40, 8, 4, 16, 32],
            "itemsize": 48,
        }
    ),
    "nested": np.dtype([("id", "<u2"), ("inner", INNER), ("second", TEXT)]),
    "text alone": np.dtype([("one", TEXT), ("other", TEXT)]),
}
COUNT = 90


def make_value(dtype: np.dtype[Any], row: int, name: str = "") -> Any:
    """Return a value that depends on the row and the member alone; some texts and lists are empty."""
    if dtype.names:
        return tuple(make_value(dtype[member], row, member) for member in dtype.names)
    if h5py.check_string_dtype(dtype) and dtype.hasobject:
        return "\xe4" * (row % 4) + f" {name}" * (row % 3)
    if element := h5py.check_vlen_dtype(dtype):
        return np.random.default_rng(row).integers(0, 2, element.itemsize * (row % 5), "u1").view(element)
    return np.full(dtype.shape, row % 2 if dtype.kind == "b" else row, dtype.base)[()]


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, np.void):
        return {name: plain(value[name]) for name in value.dtype.names}
    if isinstance(value, bytes):
        return value.decode()
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@pytest.mark.parametrize(
    "options", [{}, {"chunks": (7,), "compression": "gzip", "shuffle": True}], ids=["", "chunks"]
)
def test_values_of_variable_length_come_out_as_they_went_in(tmp_path: Path, options: dict[str, Any]) -> None:
    """Also as structs, if they are members of compounds."""
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name, dtype in (LISTS | COMPOUNDS).items():
            rows = np.empty(COUNT, dtype)
            for row in range(COUNT):
                rows[row] = make_value(dtype, row)
            file.create_dataset(name, data=rows, dtype=dtype, **options)
        file["row"] = np.arange(COUNT)
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5", seed=1, verify=True)
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.jsonl", seed=1, verify=True, datasets=[*COMPOUNDS])
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    with h5py.File(tmp_path / "in.h5") as before, h5py.File(tmp_path / "out.h5") as after:
        order = after["row"][:]
        assert sorted(order) == list(range(COUNT)) != list(order)
        for name in LISTS | COMPOUNDS:
            assert after[name].id.get_type().equal(before[name].id.get_type())
            assert after[name].compression == before[name].compression
            read = plain if name in COMPOUNDS else bytes
            expected = [read(each) for each in before[name][:][order]]
            assert [read(each) for each in after[name][:]] == expected
            if name in COMPOUNDS:
                assert [line[name] for line in lines] == expected


# Chunks and filters

COMPOUND = np.dtype({"names": ["a", "b"], "formats": ["u1", ">f4"], "offsets": [1, 4], "itemsize": 11})
FILLS = {
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
CHUNKS = {(6, 5): (7, 4, 2), (): (7,), (3,): (1, 3), (4,): (40, 6), (2, 2): (3, 1, 2)}
"""Shapes of chunks that divide rows of these shapes, or do not."""
PAIRS = list(zip(FILTERS, cycle(CHUNKS)))


@pytest.fixture(autouse=True)
def _plugins() -> None:
    pytest.importorskip("hdf5plugin")


def make_dataset(file: h5py.File, kind: str, row_shape: tuple[int, ...], filters: str) -> h5py.Dataset:
    """Write a dataset, named for its kind, of bytes that compress."""
    types = {"enum": h5py.enum_dtype({"A": 0, "B": 1, "C": 2}, basetype="i2"), "compound": COMPOUND}
    made = file.create_dataset(
        kind,
        (40, *row_shape),
        types.get(kind, kind),
        chunks=CHUNKS[row_shape],
        maxshape=(None,) * (1 + len(row_shape)),
        fillvalue=FILLS[kind],
        **FILTERS[filters],
    )
    raw = np.random.default_rng(1).integers(0, 2, made.nbytes, np.uint8)
    made.id.write(h5s.ALL, h5s.ALL, raw, made.id.get_type())
    return made


@pytest.mark.parametrize(("filters", "row_shape"), PAIRS, ids=str)
def test_chunks_are_those_of_hdf5(tmp_path: Path, row_shape: tuple[int, ...], filters: str) -> None:
    """Also what they hold beyond the edges, which shows when a dataset grows: its fill value."""
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for kind in FILLS:
            make_dataset(file, kind, row_shape, filters)
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "in.h5") as before, h5py.File(tmp_path / "out.h5") as after:
        for kind in FILLS:
            assert read_raw(after[kind]) == read_raw(before[kind])
            assert after[kind].id.get_num_chunks() == before[kind].id.get_num_chunks()
            assert list_filters(after[kind]) == list_filters(before[kind])
    assert read_grown(tmp_path / "out.h5") == read_grown(tmp_path / "in.h5")
    check_reading(tmp_path / "grown.h5", row_shape, filters)


def check_reading(path: Path, row_shape: tuple[int, ...], filters: str) -> None:
    """Check chunks that were never written, and those that a mask leaves out of some filters or all."""
    with h5py.File(path, "w") as file:
        raw = read_raw(make_dataset(file, "f8", row_shape, filters))
    with h5py.File(path, "a") as file:
        made, rows = file["f8"], CHUNKS[row_shape][0]
        masks = (1 << len(list_filters(made))) - 1
        plain = bytes(range(8)) * int(np.prod(made.chunks))
        made.resize(90, 0)
        made.id.write_direct_chunk((rows, *(0 for _ in row_shape)), plain, masks)
        expected = read_raw(made)
    assert expected != raw
    for block_bytes in (100, 3000, 1 << 20):
        assert read_column(path, block_bytes) == expected


def test_what_lzf_cannot_make_smaller_is_left_as_it_is(tmp_path: Path) -> None:
    values = np.random.default_rng(2).integers(0, 256, (6, 100), np.uint8)
    values[3] = 7
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name, options in (
            ("plain", {}),
            ("checked", {"fletcher32": True}),
            ("shuffled", {"shuffle": True}),
        ):
            file.create_dataset(name, data=values, chunks=(1, 100), compression="lzf", **options)
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "in.h5") as before, h5py.File(tmp_path / "out.h5") as after:
        for name in before:
            for row in range(6):
                found = after[name].id.read_direct_chunk((row, 0))
                assert found == before[name].id.read_direct_chunk((row, 0))
                assert found[0] == (0 if row == 3 else 2 if name == "shuffled" else 1)


def create_filtered(file: h5py.File, codes: list[int]) -> h5d.DatasetID:
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((8,))
    for code in codes:
        plist.set_filter(code, 0, (4,) if code == h5z.FILTER_DEFLATE else ())
    made = h5d.create(file.id, b"x", h5t.NATIVE_INT32, h5s.create_simple((100,)), plist)
    made.write(h5s.ALL, h5s.ALL, np.arange(100, dtype=np.int32))
    return made


@pytest.mark.parametrize(
    "codes",
    [
        [h5z.FILTER_FLETCHER32, h5z.FILTER_SHUFFLE],
        [h5z.FILTER_FLETCHER32, h5z.FILTER_SHUFFLE, h5z.FILTER_DEFLATE],  # of PyTables
        [h5z.FILTER_DEFLATE, h5z.FILTER_SHUFFLE],
        [h5z.FILTER_DEFLATE, h5z.FILTER_DEFLATE],
        [h5z.FILTER_FLETCHER32, h5z.FILTER_DEFLATE, h5z.FILTER_FLETCHER32],
        [h5z.FILTER_DEFLATE, h5z.FILTER_LZF],
    ],
)
def test_filters_in_unusual_orders_are_kept(tmp_path: Path, codes: list[int]) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        create_filtered(file, codes)
    with h5py.File(copy_through(tmp_path / "in.h5", tmp_path / "out.h5")) as after:
        assert [code for code, *_ in list_filters(after["x"])] == codes
        assert after["x"][:].tolist() == list(range(100))
