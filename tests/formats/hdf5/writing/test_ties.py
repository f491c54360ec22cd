"""Ties between objects of the first input, and fill values, that shards keep."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest
from h5py import h5d, h5g, h5p, h5s, h5t

import recshuf
from tests.support.formats.hdf5_tools import copy_through

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("chosen", [None, ("a/x", "b/y")])
def test_datasets_of_a_named_type_keep_it(tmp_path: Path, chosen: tuple[str, ...] | None) -> None:
    with h5py.File(tmp_path / "in.h5", "w", track_order=True) as file:
        file["z"] = np.dtype([("v", "i4")])
        for name in ("a/x", "b/y"):
            file.create_dataset(name, (3,), file["z"])
        file.create_dataset("scalar", (), file["z"])
        file["after"] = np.dtype("f4")
        order = list(file)
    out = copy_through(tmp_path / "in.h5", tmp_path / "out.h5", datasets=chosen)
    with h5py.File(out) as file:
        assert list(file) == order
        for name in ("a/x", "b/y", "scalar"):
            tid = file[name].id.get_type()
            assert tid.committed()
            assert h5g.get_objinfo(tid, b".").objno == h5g.get_objinfo(file["z"].id, b".").objno


def test_a_named_type_listed_after_its_dataset_is_kept(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["z"] = np.dtype([("v", "i4")])
        file.create_dataset("a", (3,), file["z"])
    with h5py.File(copy_through(tmp_path / "in.h5", tmp_path / "out.h5")) as file:
        tid = file["a"].id.get_type()
        assert h5g.get_objinfo(tid, b".").objno == h5g.get_objinfo(file["z"].id, b".").objno


def test_chosen_datasets_keep_other_names_of_groups(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["a/x"] = np.arange(3)
        file["a/left"] = np.arange(4)
        file["b"] = file["a"]
        file["left"] = file["a/left"]
        file["same"] = file["a/x"]
    out = copy_through(tmp_path / "in.h5", tmp_path / "out.h5", datasets=("a/x",))
    with h5py.File(out) as file:
        assert file["b"] == file["a"]
        assert file["same"] == file["a/x"]
        assert "left" not in file
        assert list(file["a"]) == ["x"]


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


@pytest.mark.parametrize("options", [{}, {"datasets": ("x",)}, {"compression": "lzf"}])
def test_attributes_of_a_named_type_keep_it(tmp_path: Path, options: dict[str, Any]) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["z"] = np.dtype([("v", "i4")])
        file["text"] = h5py.string_dtype()
        file["x"], file["scalar"] = np.arange(30), 3
        for each in (file, file["x"], file["scalar"], file["z"], file.create_group("group")):
            each.attrs.create("a", np.array((5,), file["z"].dtype), dtype=file["z"])
            each.attrs.create("b", "ä", dtype=file["text"])
            each.attrs["c"] = np.array((5,), file["z"].dtype)
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5", seed=1, **options)
    with h5py.File(tmp_path / "out.h5") as file:
        for each in (file, file["x"], file["scalar"], file["z"], file["group"]):
            assert (each.attrs["a"]["v"], each.attrs["b"], each.attrs["c"]["v"]) == (5, "ä", 5)
            for key, name in (("a", "z"), ("b", "text")):
                tid = each.attrs.get_id(key).get_type()
                assert tid.committed()
                assert h5g.get_objinfo(tid, b".").objno == h5g.get_objinfo(file[name].id, b".").objno
            assert not each.attrs.get_id("c").get_type().committed()
