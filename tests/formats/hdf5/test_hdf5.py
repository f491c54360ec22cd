"""HDF5 to HDF5: what must come through, and how shards are laid out."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pyarrow as pa
import pytest
from h5py import h5s, h5t

from recshuf.formats.hdf5 import FORMAT, sink
from recshuf.formats.hdf5 import sink as plan
from recshuf.formats.hdf5.opening import close_file, open_file
from recshuf.interfaces import ReadOptions, WriteOptions
from tests.support.formats.format_tools import cut_batch, merge_batches
from tests.support.formats.hdf5_tools import (
    LONGEST,
    copy_through,
    create_raw,
    given,
    open_source,
    read_all,
    read_raw,
    read_values,
    write_shard,
)

if TYPE_CHECKING:
    from collections.abc import Callable


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


@pytest.mark.parametrize("chunk_rows", [0, 1, 16, 1000])
@pytest.mark.parametrize("row_shape", [(), (3,), (2, 1, 2), (0,), (2, 0)])
def test_every_fixed_type_passes_bit_for_bit(
    tmp_path: Path, row_shape: tuple[int, ...], chunk_rows: int
) -> None:
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


def test_tags_of_opaque_types_and_names_of_enums_survive(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        create_raw(file, "opaque", make_opaque(), (3,))
        create_raw(file, "enum", TYPES["enum"](), (3,))
    with h5py.File(copy_through(tmp_path / "in.h5", tmp_path / "out.h5")) as after:
        assert after["opaque"].id.get_type().get_tag() == b"five bytes"
        assert h5py.check_enum_dtype(after["enum"].dtype) == {"red": 1, "green": -2}


STRINGS = [b"plain", b"", "gr\u00fc\u00dfe".encode(), b"\xff\xfe invalid", b"x" * 100_000, b"last"]


@pytest.mark.parametrize("charset", ["ascii", "utf-8"])
@pytest.mark.parametrize("block_bytes", [10, 1000, 1 << 20])
def test_variable_length_strings_keep_their_bytes(tmp_path: Path, charset: str, block_bytes: int) -> None:
    strings = STRINGS * 60
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("s", data=strings, dtype=h5py.string_dtype(charset), chunks=(7,))
    out = copy_through(tmp_path / "in.h5", tmp_path / "out.h5", block_bytes=block_bytes)
    with h5py.File(out) as after:
        assert read_values(after["s"]) == strings
        assert h5py.check_string_dtype(after["s"].dtype).encoding == charset


ELEMENTS = ["<i4", ">i4", "f2", ">f8", "?", "c16", "g", "S3", [("a", "u1"), ("b", ">i8")], "enum"]


@pytest.mark.parametrize("element", ELEMENTS, ids=str)
def test_variable_length_arrays_keep_their_bytes(tmp_path: Path, element: Any) -> None:
    dtype = h5py.enum_dtype({"a": 0, "b": 1}, "u1") if element == "enum" else np.dtype(element)
    rng = np.random.default_rng(1)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        dataset = file.create_dataset("v", (80,), h5py.vlen_dtype(dtype))
        for row in range(1, 80):  # the first row stays unwritten
            raw = rng.integers(0, 2, dtype.itemsize * (row % 5), np.uint8)
            dataset[row] = raw.view(dtype)
        tid = dataset.id.get_type()
    out = copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "in.h5") as before, h5py.File(out) as after:
        assert after["v"].id.get_type().equal(tid)
        values = read_values(before["v"])
        assert read_values(after["v"]) == values
        assert len(set(values)) > 2


@pytest.mark.parametrize("block_bytes", [1, 500, 10_000, 1 << 20])
def test_chunks_of_different_lengths_are_read_and_written_right(tmp_path: Path, block_bytes: int) -> None:
    rng = np.random.default_rng(2)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("a", data=rng.normal(size=(999, 7)), chunks=(10, 3), compression=1)
        file.create_dataset("b", data=rng.normal(size=999), chunks=(64,), shuffle=True, fletcher32=True)
        file.create_dataset("c", data=rng.normal(size=(999, 2)), chunks=(999, 1), compression="lzf")
        file.create_dataset("d", data=rng.normal(size=999))
    out = copy_through(tmp_path / "in.h5", tmp_path / "out.h5", block_bytes=block_bytes)
    with h5py.File(tmp_path / "in.h5") as before, h5py.File(out) as after:
        for name in "abcd":
            assert read_raw(after[name]) == read_raw(before[name])


def test_shards_take_over_chunks_filters_and_fill_value(tmp_path: Path) -> None:
    kept = {
        "chunks": (7, 2),
        "compression": "gzip",
        "compression_opts": 7,
        "shuffle": True,
        "fletcher32": True,
    }
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", data=np.ones((30, 5)), maxshape=(100, None), fillvalue=4.5, **kept)
        file.create_dataset("lzf", data=np.ones(30), chunks=(1000,), maxshape=(None,), compression="lzf")
        file.create_dataset("plain", data=np.ones(30))
    with h5py.File(copy_through(tmp_path / "in.h5", tmp_path / "out.h5")) as after:
        assert {key: getattr(after["x"], key) for key in kept} == kept
        assert after["x"].fillvalue == 4.5
        assert after["x"].maxshape == (None, None)
        assert (after["lzf"].chunks, after["lzf"].compression) == ((1000,), "lzf")
        assert (after["plain"].chunks, after["plain"].compression) == ((30,), None)


@pytest.mark.parametrize("compression", FORMAT.names.compressions)
def test_compression_can_be_chosen(tmp_path: Path, compression: str) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        data = np.arange(9000).reshape(-1, 3) // 100
        file.create_dataset("x", data=data, compression=1, shuffle=True, fletcher32=True)
        file.create_dataset("y", data=np.zeros(3000))
    source = open_source(tmp_path / "in.h5")
    options = WriteOptions(compression=compression)
    write_shard(source, tmp_path / "out.h5", read_all(source), options)
    expected = {"none": None, "gzip": "gzip", "lzf": "lzf"}
    with h5py.File(tmp_path / "out.h5") as after:
        assert np.array_equal(after["x"][:], data)
        assert after["x"].fletcher32
        for name in "xy":
            if compression in expected:
                assert after[name].compression == expected[compression]
            else:
                assert after[name].id.get_create_plist().get_nfilters() > 0


def test_scale_offset_is_not_applied_again(tmp_path: Path) -> None:
    values = np.random.default_rng(3).normal(size=4000) * 1000
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", data=values, scaleoffset=2, chunks=(100,))
    source = open_source(tmp_path / "in.h5")
    whole = merge_batches(source, read_all(source))
    order = np.random.default_rng(4).permutation(4000)
    write_shard(source, tmp_path / "out.h5", [whole.take(pa.array(order))])
    with h5py.File(tmp_path / "in.h5") as before, h5py.File(tmp_path / "out.h5") as after:
        assert np.array_equal(after["x"][:], before["x"][:][order])
        assert after["x"].compression == "gzip"


def make_rich_file(path: Path) -> None:
    with h5py.File(path, "w", track_order=True) as file:
        file.attrs["title"] = "a title"
        file.attrs["bytes"] = np.bytes_(b"fixed")
        file.attrs["words"] = np.array(["one", "two \u00fc"], h5py.string_dtype())
        file.attrs["nothing"] = h5py.Empty("f4")
        file.attrs["compound"] = np.array((1, 2.5), [("a", "i2"), ("b", ">f8")])
        file.attrs["ragged"] = np.array([np.arange(2), np.arange(3)], object).astype(h5py.vlen_dtype("i8"))
        file.create_group("z/inner", track_order=True).attrs["depth"] = 2
        file.create_group("empty")
        file.create_group("z/inner/second")
        file.create_group("z/inner/first")
        file["z/x"] = np.arange(6.0).reshape(3, 2)
        file["z/x"].attrs["unit"] = "m"
        file["a"] = np.arange(3)
        file["scalar"] = 5.5
        file["scalar"].attrs["of"] = "a scalar"
        file["text"] = "some text"
        file["kind"] = np.dtype([("p", "i4")])
        file["kind"].attrs["named"] = True
        file["soft"] = h5py.SoftLink("/z/x")
        file["dangling"] = h5py.SoftLink("nowhere")
        file["again"] = file["z/x"]
        file["z/inner/cycle"] = file["z"]
        file["z/inner/root"] = file["/"]
        file["a"].make_scale("time")
        file["z/x"].dims[0].attach_scale(file["a"])
        file["z/x"].dims[0].label = "when"


def test_everything_else_is_copied_to_every_shard(tmp_path: Path) -> None:
    make_rich_file(tmp_path / "in.h5")
    source = open_source(tmp_path / "in.h5")
    assert sorted(source.schema.names) == ["a", "z/x"]
    write_shard(source, tmp_path / "out.h5", read_all(source))
    with h5py.File(tmp_path / "in.h5") as before, h5py.File(tmp_path / "out.h5") as after:
        assert list(after) == list(before)
        assert list(after["z/inner"]) == list(before["z/inner"])
        assert list(after["z/inner"])[:2] == ["second", "first"]
        assert list(after.attrs) == list(before.attrs)
        for key in ("title", "bytes", "nothing", "compound"):
            assert after.attrs[key] == before.attrs[key]
        assert after.attrs["words"].tolist() == ["one", "two \u00fc"]
        assert [each.tolist() for each in after.attrs["ragged"]] == [[0, 1], [0, 1, 2]]
        assert after["z/inner"].attrs["depth"] == 2
        assert after["z/x"].attrs["unit"] == "m"
        assert (after["scalar"][()], after["scalar"].attrs["of"]) == (5.5, "a scalar")
        assert after["text"].asstr()[()] == "some text"
        assert after["kind"].dtype == before["kind"].dtype
        assert after["kind"].attrs["named"]
        assert after.get("soft", getlink=True).path == "/z/x"
        assert after.get("dangling", getlink=True).path == "nowhere"
        assert after["again"] == after["z/x"]
        assert after["z/inner/cycle"] == after["z"]
        assert after["z/inner/root"] == after["/"]
        assert after["z/x"].dims[0][0] == after["a"]
        assert after["z/x"].dims[0].label == "when"
        assert after["a"].is_scale


def test_chosen_datasets_are_the_record(tmp_path: Path) -> None:
    make_rich_file(tmp_path / "in.h5")
    with h5py.File(tmp_path / "in.h5", "a") as file:
        file["other"] = np.arange(99)
        file["reference"] = file["a"].ref
        file.attrs["reference"] = file["a"].ref
        file["away"] = h5py.ExternalLink("other.h5", "x")
        file["null"] = h5py.Empty("i4")
    source = open_source(tmp_path / "in.h5", datasets=("/soft", "a"))
    assert source.schema.names == ["soft", "a"]
    write_shard(source, tmp_path / "out.h5", read_all(source))
    with h5py.File(tmp_path / "out.h5") as after:
        assert after["soft"][:].tolist() == [[0, 1], [2, 3], [4, 5]]
        assert after["soft"].dims[0][0] == after["a"]
        assert sorted(after) == ["a", "empty", "kind", "scalar", "soft", "text", "z"]
        assert list(after["z"]) == ["inner"]
        assert after["scalar"][()] == 5.5
        assert "reference" not in after.attrs


@pytest.mark.parametrize("name", ["again", "z/inner/cycle/x", "z/inner/root/soft", "z/x"])
def test_datasets_can_be_chosen_by_any_of_their_names(tmp_path: Path, name: str) -> None:
    make_rich_file(tmp_path / "in.h5")
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5", datasets=(name,))
    with h5py.File(tmp_path / "out.h5") as after:
        assert after[name][:].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_files_are_concatenated_and_the_first_gives_the_rest(tmp_path: Path) -> None:
    for index, count in enumerate((5, 0, 7)):
        with h5py.File(tmp_path / f"{index}.h5", "w") as file:
            file.create_dataset(
                "x", data=np.arange(count) + 100 * index, maxshape=(None,), chunks=(4 + index,)
            )
            file["x"].attrs["from"] = index
    source = open_source(*(tmp_path / f"{index}.h5" for index in range(3)))
    assert [each.record_count for each in source.inputs] == [5, 0, 7]
    write_shard(source, tmp_path / "out.h5", read_all(source))
    with h5py.File(tmp_path / "out.h5") as after:
        assert after["x"][:].tolist() == [*range(5), *range(200, 207)]
        assert after["x"].attrs["from"] == 0
        assert after["x"].chunks == (4,)


@pytest.mark.parametrize("step_bytes", [50, 3000])
def test_bytes_do_not_depend_on_cuts_with_variable_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step_bytes: int
) -> None:
    monkeypatch.setattr(sink, "VARIABLE_STEP_BYTES", step_bytes)
    monkeypatch.setattr(plan, "_STEP_BYTES", 2000)
    words = [b"w" * (row * 7919 % 101) for row in range(700)]
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("s", data=words, dtype=h5py.string_dtype(), chunks=(32,), maxshape=(None,))
        file.create_dataset("x", data=np.arange(1400).reshape(-1, 2), chunks=(50, 2), compression=2)
        file.create_dataset("v", data=[np.arange(k % 4) for k in range(700)], dtype=h5py.vlen_dtype("i4"))
    source = open_source(tmp_path / "in.h5")
    whole = merge_batches(source, read_all(source))
    shards = [
        write_shard(source, tmp_path / f"{seed}.h5", cut_batch(whole, pieces, seed))
        for seed, pieces in enumerate([1, 2, 5, 50, 400])
    ]
    assert len({shard.read_bytes() for shard in shards}) == 1
    with h5py.File(shards[0]) as after:
        assert read_values(after["s"]) == words
        assert np.array_equal(after["x"][:].ravel(), np.arange(1400))


def test_bytes_do_not_depend_on_cuts_and_threads_with_fixed_lengths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "_STEP_BYTES", 6000)
    values = np.arange(2100).reshape(-1, 3)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("a", data=values, chunks=(50, 3))
        file.create_dataset("b", data=values, chunks=(8, 2))
        file.create_dataset("c", data=values, chunks=(30, 3), compression=2)
    source = open_source(tmp_path / "in.h5")
    whole = merge_batches(source, read_all(source))
    shards = [
        write_shard(source, tmp_path / f"{seed}.h5", cut_batch(whole, pieces, seed), threads=1 + seed % 3)
        for seed, pieces in enumerate([1, 2, 5, 50, 400])
    ]
    assert len({shard.read_bytes() for shard in shards}) == 1
    with h5py.File(shards[0]) as after:
        for name in "abc":
            assert np.array_equal(after[name][:], values)


def test_two_sources_of_the_same_file_give_the_same_bytes(tmp_path: Path) -> None:
    make_rich_file(tmp_path / "in.h5")
    shards = [copy_through(tmp_path / "in.h5", tmp_path / f"{k}.h5") for k in range(2)]
    assert shards[0].read_bytes() == shards[1].read_bytes()


def test_an_empty_file_makes_an_empty_shard(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", (0, 3), "f4", maxshape=(None, 3), chunks=(10, 3))
        file.create_dataset("s", (0,), h5py.string_dtype())
        file.attrs["kept"] = 1
    out = copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(out) as after:
        assert (after["x"].shape, after["s"].shape, after.attrs["kept"]) == ((0, 3), (0,), 1)


def test_reading_bytes_count_chunks_that_are_larger_than_blocks(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((1000, 1000), "u1"), chunks=(1000, 1000), compression=1)
    source = open_source(tmp_path / "in.h5")
    assert source.reading_bytes(1000) >= 1_000_000


def test_chunks_are_inflated_once_however_small_the_blocks(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((1000, 8), "u1"), chunks=(100, 8), compression=1)
    source = open_source(tmp_path / "in.h5")
    for block_bytes in (200, 800, 3000, 100_000):
        edges = itertools.accumulate(
            fragment.record_count or 0 for fragment in source.fragments(0, block_bytes, 1 << 30)
        )
        assert all(edge % 100 == 0 for edge in edges)


def test_wide_chunks_of_narrow_columns_do_not_lengthen_fragments(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("image", data=np.zeros((5000, 100), "u1"), chunks=(10, 100))
        file.create_dataset("label", data=np.arange(5000), chunks=(5000,))
    source = open_source(tmp_path / "in.h5")
    counts = {fragment.record_count for fragment in source.fragments(0, 5000, 1 << 30)}
    assert counts == {40}
    assert source.reading_bytes(5000) >= 5000 * 8


def test_very_large_chunks_are_cut_in_shards(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", (3, 100_000), "f8", chunks=(100_000, 1), maxshape=(None, 100_000))
    with h5py.File(copy_through(tmp_path / "in.h5", tmp_path / "out.h5")) as after:
        assert after["x"].chunks == ((64 << 20) // 800_000, 1)


def test_formats_are_recognised_behind_a_user_block(tmp_path: Path) -> None:
    for size in (0, 512, 4096):
        with h5py.File(tmp_path / "in.h5", "w", userblock_size=size) as file:
            file["x"] = [1]
        assert FORMAT.recognises((tmp_path / "in.h5").read_bytes())
    assert not FORMAT.recognises(b"PAR1" + bytes(5000))
    assert not FORMAT.recognises(b"")


def test_native_fields_tell_what_they_hold(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"] = np.zeros((1, 2), ">f4")
        file["s"] = np.array([b"a"], object)
    schema = FORMAT.open_source([given(tmp_path / "in.h5")], ReadOptions()).schema
    assert schema.field("x").type == pa.binary(8)
    assert schema.field("x").metadata == {b"hdf5.type": b">f4", b"hdf5.row_shape": b"(2,)"}
    assert schema.field("s").type == pa.large_binary()


def test_committed_types_serve_as_types_of_datasets(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["kind"] = np.dtype("i2")
        file.create_dataset("x", data=np.arange(4), dtype=file["kind"])
        file.create_dataset("one", (), dtype=file["kind"])
        file["x"].attrs.create("level", 3, dtype=file["kind"])
    with h5py.File(copy_through(tmp_path / "in.h5", tmp_path / "out.h5")) as after:
        assert after["x"][:].tolist() == [0, 1, 2, 3]
        assert after["x"].attrs["level"] == 3
        assert after["one"].id.get_space().get_simple_extent_type() == h5s.SCALAR


# Closing


def test_an_input_that_closes_leaves_the_same_one_open_elsewhere(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"] = np.arange(1000)
    first, second = open_file(given(tmp_path / "in.h5")), open_file(given(tmp_path / "in.h5"))
    close_file(first)
    assert not first
    assert np.array_equal(second["x"][:], np.arange(1000))
    close_file(second)
    close_file(second)


def test_readers_give_their_descriptors_back(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"] = np.arange(1000)
    before = len(list(Path("/proc/self/fd").iterdir()))
    source = open_source(tmp_path / "in.h5", tmp_path / "in.h5")
    assert sum(batch.num_rows for batch in read_all(source)) == 2000
    fragment = next(iter(source.fragments(0, 100, LONGEST)))
    assert len(list(Path("/proc/self/fd").iterdir())) == before + 1
    del fragment, source
    assert len(list(Path("/proc/self/fd").iterdir())) == before
