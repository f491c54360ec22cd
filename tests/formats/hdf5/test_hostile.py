"""HDF5 files that do harm by links, names, attributes, sizes and changes are refused in one line, or copied whole."""

from __future__ import annotations

import os
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

from recshuf.errors import InputError
from tests.support.formats.hdf5_bytes import patch
from tests.support.formats.hdf5_tools import copy_through, open_source
from tests.support.formats.hostile_tools import GB, TINY, refusal
from tests.support.formats.sparse_tools import write_anndata

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.processes.command_server import Server


# Links


def test_groups_nested_too_deep_are_refused(tmp_path: Path, child: Server) -> None:
    for depth in (100, 140):
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


# What is no file


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, child: Server, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(tmp_path / "in.h5")
    else:
        (tmp_path / "in.h5").symlink_to("/dev/zero")
    line = refusal(child.run(["--format", "hdf5", *TINY], tmp_path), tmp_path)
    assert "in.h5: is not a regular file, which HDF5 needs; save it to a file first" in line


# Sizes


def test_a_gzip_chunk_inflates_no_further_than_its_size(tmp_path: Path, child: Server) -> None:
    stream = zlib.compressobj(9)
    bomb = stream.compress(bytes(1 << 26)) + stream.flush()
    with h5py.File(tmp_path / "in.h5", "w") as file:
        made = file.create_dataset("x", (2 << 16, 16), "u1", chunks=(1 << 16, 16), compression=1)
        made.id.write_direct_chunk((0, 0), zlib.compress(bytes(1 << 20)))
        made.id.write_direct_chunk((1 << 16, 0), bomb)  # 64 MiB instead of 1 MiB
    assert "a chunk of 1048576 bytes inflates to more" in refusal(child.run(TINY, tmp_path), tmp_path)


# Files that change


def shrink(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def write_over(path: Path) -> None:
    status = path.stat()
    patch(path, status.st_size - 8, b"new data")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


def replace(path: Path) -> None:
    other = path.with_name("other.h5")
    shutil.copyfile(path, other)
    other.replace(path)


@pytest.mark.parametrize("change", [shrink, write_over, replace, Path.unlink])
@pytest.mark.parametrize("is_begun", [False, True])
def test_a_file_that_changes_is_refused_and_one_that_loses_its_name_is_read_to_the_end(
    tmp_path: Path, is_begun: bool, change: Callable[[Path], None]
) -> None:
    """HDF5 reads zeros where a file ended before."""
    path = tmp_path / "in.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.ones((1 << 12, 1 << 8), "u1")
    source = open_source(path)
    fragments = source.fragments(0, 1 << 16, GB)
    rows = sum(batch.num_rows for batch in next(fragments).batches()) if is_begun else 0
    change(path)
    if is_begun and change in (replace, Path.unlink):
        assert rows + sum(batch.num_rows for each in fragments for batch in each.batches()) == 1 << 12
        return
    said = "changed while it was read" if is_begun else ""
    with pytest.raises(InputError, match=rf"in\.h5: {said}"):
        [list(fragment.batches()) for fragment in fragments]


def test_a_damaged_heap_is_found_before_an_attribute_is_read(tmp_path: Path, child: Server) -> None:
    """HDF5 would walk through the heap for ever."""
    data = write_anndata(tmp_path / "in.h5ad", 40, groups=("X",)).read_bytes()
    place = data.index(b"cell 7")
    (tmp_path / "in.h5ad").write_bytes(data[: place - 16] + bytes(16) + data[place:])
    ended = child.run(["in.h5ad", "-o", "out.h5ad"], tmp_path)
    assert ended.status == 1
    assert "the heap of variable-length values at byte" in ended.stderr
