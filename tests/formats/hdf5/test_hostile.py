"""HDF5 files made to do harm by links, names, attributes and what is no file are refused in one line, or copied whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

import recshuf
from recshuf.errors import InputError
from tests.support.formats.hdf5_tools import copy_through, open_source
from tests.support.formats.hostile_tools import TINY, refusal

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fuzzing.server import Server


# Links


def test_groups_in_a_circle_are_copied_as_such(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["g/x"] = [1, 2, 3]
        file["g/loop"], file["g/root"] = file["g"], file["/"]
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as after:
        assert after["g/loop/root/g/root/g/loop/x"][:].tolist() == [1, 2, 3]


@pytest.mark.parametrize("target", ["external link", "virtual dataset", "external storage"])
def test_no_chain_of_links_leads_out_of_the_file(tmp_path: Path, target: str) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["x"] = np.arange(3)
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["y"] = np.arange(3)
        if target == "external link":
            file["a/b/outside"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "/x")
        elif target == "virtual dataset":
            layout = h5py.VirtualLayout((3,), "i8")
            layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "x", (3,))
            file.create_virtual_dataset("a/b/outside", layout)
        else:
            file.create_dataset("a/b/outside", (3,), "i8", external=[(str(tmp_path / "secret.h5"), 0, 24)])
        file["c/first"] = h5py.SoftLink("../a/b")  # HDF5 knows no parent folder
        file["c/second"] = h5py.SoftLink("/a/./b//outside")
        file["third"] = h5py.SoftLink("c/second")
        file["to group"] = h5py.SoftLink("a")
    for chosen in ("third", "c/second", "to group/b/outside", "a/b/outside", "c/first/outside"):
        with pytest.raises(InputError, match=r"outside|c/first"):
            open_source(tmp_path / "in.h5", datasets=("y", chosen))
    with pytest.raises(InputError, match="outside"):
        open_source(tmp_path / "in.h5")
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5", datasets=("y",))
    with h5py.File(tmp_path / "out.h5") as after:
        assert sorted(after) == ["a", "c", "y"]
        assert sorted(after["a/b"]) + sorted(after["c"]) == []


def test_long_chains_of_soft_links_end(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["link0"] = np.arange(3)
        for index in range(200):
            file[f"link{index + 1}"] = h5py.SoftLink(f"link{index}")
    assert open_source(tmp_path / "in.h5", datasets=("link50",)).inputs[0].record_count == 3
    with pytest.raises(InputError, match="has no dataset 'link200'"):
        open_source(tmp_path / "in.h5", datasets=("link200",))


def test_groups_nested_too_deep_are_refused(tmp_path: Path, child: Server) -> None:
    for depth in (100, 2000):
        with h5py.File(tmp_path / "in.h5", "w") as file:
            group = file
            for _ in range(depth):
                group = group.create_group("g")
            group["x"] = [1, 2, 3]
        if depth == 100:
            copy_through(tmp_path / "in.h5", tmp_path / "copy.h5")
    with h5py.File(tmp_path / "copy.h5") as after:
        assert after["g/" * 100 + "x"][:].tolist() == [1, 2, 3]
    assert "in.h5: group 'g/g/" in refusal(child.run(TINY, tmp_path), tmp_path)


# Names and attributes


def test_odd_names_survive_and_stay_in_one_line(tmp_path: Path, child: Server) -> None:
    names = ["a\nb", "..", "...", " ", "C:\\x", "\x1b[2J", "é" * 300]
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for name in names:
            file[name] = np.arange(3)
            file[name].attrs[name] = name
    assert child.run(["in.h5", "-o", "copy.h5"], tmp_path).status == 0
    with h5py.File(tmp_path / "copy.h5") as after:
        assert set(after) == set(names)
        assert all(after[name].attrs[name] == name for name in names)
    with h5py.File(tmp_path / "in.h5", "a") as file:
        del file["a\nb"]
        file["a\nb"] = np.arange(4)
    line = refusal(child.run(TINY, tmp_path), tmp_path)
    assert "datasets differ in length" in line
    assert "\x1b" not in line


def test_attributes_of_any_size_are_copied(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w", libver="latest") as file:
        file["x"] = np.arange(3)
        file["x"].attrs["wide"] = np.zeros(1, "V60000")
        file["x"].attrs["empty"] = h5py.Empty("f8")
        file["x"].attrs["none"] = np.zeros((0, 5))
        for index in range(1000):
            file.attrs[f"a{index}"] = index
    copy_through(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as after:
        assert after["x"].attrs["wide"].tobytes() == bytes(60000)
        assert after["x"].attrs["none"].shape == (0, 5)
        assert len(after.attrs) == 1000


def test_an_attribute_too_large_for_the_usual_format_is_refused_by_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "in.h5", "w", libver="latest") as file:
        file["x"] = np.arange(3)
        file["x"].attrs["large"] = np.arange(1 << 18)
    with pytest.raises(InputError, match="attribute 'large' of '/x'"):
        open_source(tmp_path / "in.h5")


# What is no file


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, child: Server, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "in.h5")
    else:
        (tmp_path / "in.h5").symlink_to("/dev/zero")
    line = refusal(child.run(["--format", "hdf5", *TINY], tmp_path), tmp_path)
    assert "in.h5: is not a regular file, which HDF5 needs; save it to a file first" in line


def test_what_only_looks_like_a_pickle_stays_bytes(tmp_path: Path) -> None:
    values = np.array([b"cos\nsystem\n(S'touch pwned'\ntR."] * 3, "S30").view("V30")
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"] = values
        file["x"].attrs["pickle"] = values[0]
    recshuf.shuffle(tmp_path / "in.h5", tmp_path / "out.h5")
    with h5py.File(tmp_path / "out.h5") as after:
        assert after["x"][:].tobytes() == values.tobytes()
