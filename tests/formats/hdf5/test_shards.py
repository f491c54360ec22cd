"""What every shard is: chunks, filters, and copies of all that the first input has beside its records."""

import ctypes
import struct
import time
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5g, h5p, h5s, h5t

import recshuf
from recshuf.formats.hdf5 import FORMAT
from tests.support.formats.hdf5_tools import (
    copy_through,
    list_filters,
    open_source,
    outline,
    read_all,
    store,
    write_shard,
)

# Chunks and filters


def test_shards_take_over_chunks_and_bounds_and_begin_with_room_for_all_rows(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("bounded", data=np.ones((30, 5)), maxshape=(100, 9), chunks=True)
        file.create_dataset("lzf", data=np.ones(30), chunks=(1000,), maxshape=(None,), compression="lzf")
        file.create_dataset("plain", data=np.ones((30, 2)))
        file.create_dataset("wide", data=np.ones((30, 1 << 16)))
    with h5py.File(copy_through(tmp_path / "in.h5", tmp_path / "out.h5")) as after:
        assert after["bounded"].maxshape == (None, 9)
        assert (after["lzf"].chunks, after["lzf"].compression) == ((1000,), "lzf")
        assert (after["plain"].chunks, after["plain"].compression) == ((30, 2), None)
        assert after["plain"].maxshape == (None, 2)
        assert after["wide"].chunks == (1, 1 << 16)


@pytest.mark.parametrize(("name", "level"), [("gzip", 0), ("gzip", 9), ("zstd", 19)])
def test_levels_of_compressions_are_those_of_hdf5(tmp_path: Path, name: str, level: int) -> None:
    pytest.importorskip("hdf5plugin")
    values = np.arange(3000)
    store(tmp_path / "in.h5", {"x": values})
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5", seed=1, compression=f"{name}:{level}")
    kind, value = (name, level) if name == "gzip" else (32015, (level,))
    with h5py.File(tmp_path / "out.h5") as after, h5py.File(tmp_path / "own.h5", "w") as own:
        found, options = after["x"], {"compression": kind, "compression_opts": value}
        made = own.create_dataset("x", data=found[:], chunks=found.chunks, **options)
        assert list_filters(found) == list_filters(made)
        assert (
            0.8 * made.id.get_storage_size()
            < found.id.get_storage_size()
            <= 1.02 * made.id.get_storage_size()
        )


def test_edges_that_were_not_filtered_are(tmp_path: Path) -> None:
    """HDF5 can be told to leave chunks over an edge as they are; it must not take those of shards for such."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((8, 5))
    plist.set_deflate(4)
    ctypes.CDLL(h5p.__file__).H5Pset_chunk_opts(ctypes.c_int64(plist.id), ctypes.c_uint(2))
    values = np.arange(70, dtype=np.int32).reshape(10, 7)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        space = h5s.create_simple((10, 7), (h5s.UNLIMITED, 7))
        made = h5d.create(file.id, b"x", h5t.NATIVE_INT32, space, plist)
        made.write(h5s.ALL, h5s.ALL, values)
        made.flush()
        assert len(made.read_direct_chunk((8, 5))[1]) == 160
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as after:
        assert np.array_equal(after["x"][:], values)
        assert len(after["x"].id.read_direct_chunk((8, 5))[1]) < 160


def create_without_fill(file: h5py.File, name: str, values: np.ndarray, compresses: bool) -> None:
    """Create a dataset with an undefined fill value, which h5py cannot ask for."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((7,))
    if compresses:
        plist.set_deflate(1)
    set_fill_value = ctypes.CDLL(h5p.__file__).H5Pset_fill_value
    set_fill_value.argtypes = (ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)
    tid = h5t.py_create(values.dtype)
    assert set_fill_value(plist.id, tid.id, None) == 0
    space = h5s.create_simple(values.shape, (h5s.UNLIMITED,))
    h5d.create(file.id, name.encode(), tid, space, plist).write(h5s.ALL, h5s.ALL, values)


@pytest.mark.parametrize("compresses", [False, True])
def test_an_undefined_fill_value_passes(tmp_path: Path, compresses: bool) -> None:
    values = np.arange(100)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        create_without_fill(file, "x", values, compresses)
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5", seed=1, verify=True)
    with h5py.File(tmp_path / "out.h5") as file:
        assert sorted(file["x"]) == values.tolist()


# Copies of all else


def make_rich_file(path: Path, libver: str = "earliest") -> None:
    with h5py.File(path, "w", track_order=True, libver=libver) as file:
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
        file["text"].attrs["wide"] = np.zeros(1, "V60000")
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
        file["bytes"] = np.bytes_(b"fixed")
        file["pair"] = np.array((1, 2.5), [("a", "i4"), ("b", "f8")])
        file.create_dataset("of type", (3,), file["kind"])
        file.create_dataset("scalar of type", (), file["kind"])
        for each in (file, file["z/x"], file["scalar"], file["kind"], file["empty"]):
            each.attrs.create("typed", np.array((5,), file["kind"].dtype), dtype=file["kind"])
            each.attrs["untyped"] = np.array((5,), file["kind"].dtype)
        file["z/x"].attrs["none"] = np.zeros((0, 5))
        for index in range(300):
            file["empty"].attrs[f"a{index}"] = index
        for name in ("a\nb", "..", "...", " ", "C:\\x", "\x1b[2J", "é" * 300):
            file[f"z/inner/{name}/x"] = np.float32(1)
            file["scalar"].attrs[name] = name


OTHERS: dict[str, Any] = {
    "many numbers": np.arange(1_100_000).reshape(-1, 11),
    "many strings": np.array([f"{index}" for index in range(5000)], h5py.string_dtype()),
    "numbers": np.arange(700, dtype=">i2").reshape(100, 7),
    "empty": np.zeros((0, 3)),
    "narrow": np.zeros((4, 0)),
    "complex": np.arange(90) * 1j,
    "bytes": np.array([b"abc", b""]),
    "strings": np.array(["ä" * index for index in range(200)], h5py.string_dtype()),
    "grid of strings": np.array([["a", "b"], ["", "cd"]], h5py.string_dtype()),
    "arrays": np.array([np.arange(3.0), np.zeros(0)], h5py.vlen_dtype("f8")),
    "compound": np.array([(1, "x"), (2, "")], [("a", "i2"), ("b", h5py.string_dtype())]),
    "enum": np.array([0, 1], h5py.enum_dtype({"no": 0, "yes": 1}, "i1")),
    "opaque": np.array([b"12", b"34"], "V2"),
    "null": h5py.Empty("i4"),
}


@pytest.mark.parametrize(("libver", "others"), [("earliest", {}), ("latest", OTHERS)], ids=["", "others"])
def test_everything_else_is_copied_to_every_shard(
    tmp_path: Path, libver: str, others: dict[str, Any]
) -> None:
    """Also datasets of other lengths, and of more values than are copied at once."""
    path, records = tmp_path / "in.h5", ("a", "z/x", "of type")
    make_rich_file(path, libver)
    options: dict[str, Any] = {"datasets": records, "keep_others": True} if others else {}
    with h5py.File(path, "a") as file:
        for name, value in others.items():
            storage = {"compression": "lzf", "maxshape": (None,) * value.ndim} if np.size(value) else {}
            file.create_dataset(f"others/{name}", data=value, **storage).attrs["note"] = name
        if others:
            kind = file["kind"]
            file.create_dataset("others/of type", (5,), kind, fillvalue=np.array((7,), kind.dtype))
            file["others/hard"] = file["others/of type"]
    recshuf.shuffle(path, tmp_path / "out/", shards=2, seed=1, verify=True, **options)
    before = outline(path, *records)
    assert before["z/x"][2] == [["a"], []]
    assert (before["again"], before["z/inner/root"]) == ("also z/x", "also /")
    assert before["of type"][1] == dict(before[""][2])["typed"][0] == "kind"
    for path in (tmp_path / "out").iterdir():
        after = outline(path, *records)
        assert list(after) == list(before)
        for name, described in before.items():
            assert (name, after[name]) == (name, described)


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
        assert after["soft"].attrs["unit"] == "m"
        assert after["soft"].dims[0][0] == after["a"]
        assert "reference" not in after.attrs
    expected = outline(tmp_path / "in.h5", "a", "soft", "of type")
    left_out = ("again", "dangling", "of type", "other", "reference", "away", "null")
    for name in [name for name in expected if name.startswith("z/x") or name in left_out]:
        del expected[name]
    found = outline(tmp_path / "out.h5", "a", "soft", "of type")
    for name in ("", "soft"):
        del expected[name], found[name]
    assert found == expected


def test_formats_are_recognised_behind_a_user_block(tmp_path: Path) -> None:
    for size in (0, 512, 4096):
        with h5py.File(tmp_path / "in.h5", "w", userblock_size=size) as file:
            file["x"] = [1]
        assert FORMAT.recognises((tmp_path / "in.h5").read_bytes())
        with h5py.File(copy_through(tmp_path / "in.h5", tmp_path / f"{size}.h5")) as after:
            assert after["x"][:].tolist() == [1]
    assert not FORMAT.recognises(b"PAR1" + bytes(5000))
    assert not FORMAT.recognises(b"")


# The clock


def create_tracked(file: h5py.File, name: str, shape: tuple[int, ...]) -> None:
    """Create a dataset that tracks its times, as those of the C library do by default."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_obj_track_times(True)
    if shape:
        plist.set_chunk(shape)
    space = h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)
    h5d.create(file.id, name.encode(), h5t.NATIVE_INT32, space, plist)
    file[name].attrs["unit"] = "m"


@pytest.mark.parametrize(("libver", "track_order"), [("earliest", False), ("latest", True)])
def test_no_object_of_an_output_carries_the_clock(tmp_path: Path, libver: str, track_order: bool) -> None:
    """Seconds since 1970 are stored as 32 bits."""
    with h5py.File(tmp_path / "in.h5", "w", libver=libver, track_order=track_order) as file:
        create_tracked(file, "scalar", ())
        create_tracked(file, "rows", (30,))
        create_tracked(file, "other", (5,))
        file.attrs["a"] = file.create_group("group").attrs["a"] = 1
        file["type"] = np.dtype([("a", "i4")])
        file["type"].attrs["a"] = 1
    start = int(time.time())
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5", seed=1, keep_others=True)
    clock = range(start - 5, int(time.time()) + 5)
    stored = (tmp_path / "out.h5").read_bytes()
    assert not [at for at in range(len(stored) - 3) if struct.unpack_from("<I", stored, at)[0] in clock]
    with h5py.File(tmp_path / "out.h5") as file:
        assert [h5g.get_objinfo(file.id, name.encode()).mtime for name in file] == [0] * 5
