"""What every shard begins with: copies of the first input's objects, without its clock."""

from __future__ import annotations

import struct
import time
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5g, h5p, h5s, h5t

import recshuf
import recshuf.formats.hdf5.sink as plan_module
from recshuf.errors import InputError
from recshuf.formats.hdf5 import inventory, template

if TYPE_CHECKING:
    from pathlib import Path

SCALARS: dict[str, Any] = {
    "int": np.int32(5),
    "text": "tëxt",
    "bytes": np.bytes_(b"fixed"),
    "compound": np.array((1, 2.5), [("a", "i4"), ("b", "f8")]),
}


def create_tracked(file: h5py.File, name: str, shape: tuple[int, ...], value: Any) -> None:
    """Create a dataset that tracks its times, as those of the C library do by default."""
    dtype = h5py.string_dtype() if isinstance(value, str) else np.asarray(value).dtype
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_obj_track_times(True)
    if shape:
        plist.set_chunk(shape)
    space = h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)
    h5d.create(file.id, name.encode(), h5t.py_create(np.dtype(dtype), logical=True), space, plist)
    file[name][()] = value
    file[name].attrs["unit"] = "m"


@pytest.mark.parametrize("libver", ["earliest", "latest"])
@pytest.mark.parametrize("track_order", [False, True])
def test_no_object_of_an_output_carries_the_clock(tmp_path: Path, libver: str, track_order: bool):
    """Seconds since 1970 are stored as 32 bits."""
    with h5py.File(tmp_path / "in.h5", "w", libver=libver, track_order=track_order) as file:
        for name, value in SCALARS.items():
            create_tracked(file, name, (), value)
        create_tracked(file, "rows", (30,), 0)
        file.attrs["a"] = file.create_group("group").attrs["a"] = 1
        file["type"] = np.dtype([("a", "i4")])
        file["type"].attrs["a"] = 1
    start = int(time.time())
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5", seed=1)
    clock = range(start - 5, int(time.time()) + 5)
    stored = (tmp_path / "out.h5").read_bytes()
    assert not [
        place for place in range(len(stored) - 3) if struct.unpack_from("<I", stored, place)[0] in clock
    ]
    with h5py.File(tmp_path / "out.h5") as file:
        for name, value in SCALARS.items():
            assert h5g.get_objinfo(file.id, name.encode()).mtime == 0
            assert file[name].dtype == h5py.File(tmp_path / "in.h5")[name].dtype
            found = file[name][()]
            assert (found.decode() if name == "text" else found) == value
            assert file[name].attrs["unit"] == "m"


@pytest.mark.parametrize("compression", ["gzip", "lzf", 32015])
def test_a_dataset_in_which_no_chunk_was_written_holds_its_fill_value(tmp_path: Path, compression: Any):
    pytest.importorskip("hdf5plugin")
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_dataset("x", (30, 4), "f4", chunks=(10, 4), compression=compression, fillvalue=2.5)
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5", seed=1)
    with h5py.File(tmp_path / "out.h5") as file:
        assert np.array_equal(file["x"], np.full((30, 4), 2.5))


def test_an_error_of_the_library_names_file_and_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["group/x"] = np.arange(30)

    def fail(*_: object, **__: object) -> None:
        raise OSError("Can't synchronously read data")

    monkeypatch.setattr(plan_module, "_read_fill", fail)
    monkeypatch.setattr(plan_module, "find_pipeline", lambda *_: object())
    with pytest.raises(InputError, match=r"in\.h5: dataset 'group/x': cannot be read as HDF5 \(Can't sync"):
        recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5")
    monkeypatch.undo()
    monkeypatch.setattr(inventory, "check_chunks", fail)
    with pytest.raises(InputError, match=r"in\.h5: dataset 'group/x': cannot be read as HDF5 \(Can't sync"):
        recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5")
    monkeypatch.undo()
    monkeypatch.setattr(template, "copy_attributes", fail)
    with pytest.raises(InputError, match=r"in\.h5: '/': cannot be read as HDF5 \(Can't sync"):
        recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5")


def test_two_images_can_be_made_at_the_same_time() -> None:
    with template.new_image() as (first, one), template.new_image() as (second, other):
        first["a"] = 1
        second["b"] = 2
    with template.open_image(one[0]) as first, template.open_image(other[0]) as second:
        assert (list(first), list(second)) == (["a"], ["b"])
