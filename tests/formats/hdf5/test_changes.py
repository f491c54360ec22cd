"""Files that change before or while they are read are refused; one that loses its name alone is read to the end."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import h5py
import numpy as np
import pytest

from recshuf.errors import InputError
from tests.support.formats.hdf5_bytes import patch
from tests.support.formats.hdf5_tools import open_source
from tests.support.formats.hostile_tools import GB

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


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


def vanish(path: Path) -> None:
    path.unlink()


def write_large(path: Path) -> Path:
    with h5py.File(path, "w") as file:
        file["x"] = np.ones((1 << 12, 1 << 8), "u1")
    return path


@pytest.mark.parametrize("change", [shrink, write_over])
def test_a_file_that_changes_while_it_is_read_is_refused(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """HDF5 reads zeros where a file ended before."""
    path = write_large(tmp_path / "in.h5")
    fragments = open_source(path).fragments(0, 1 << 16, GB)
    list(next(fragments).batches())
    change(path)
    with pytest.raises(InputError, match=r"in\.h5: changed while it was read"):
        [list(fragment.batches()) for fragment in fragments]


@pytest.mark.parametrize("change", [replace, vanish])
def test_a_file_that_loses_its_name_is_read_to_the_end(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = write_large(tmp_path / "in.h5")
    fragments = open_source(path).fragments(0, 1 << 16, GB)
    list(next(fragments).batches())
    change(path)
    rows = sum(batch.num_rows for fragment in fragments for batch in fragment.batches())
    assert rows == (1 << 12) - (1 << 8)


@pytest.mark.parametrize("change", [shrink, write_over, replace, vanish])
def test_a_file_that_changes_before_it_is_read_is_refused(
    tmp_path: Path, change: Callable[[Path], None]
) -> None:
    path = write_large(tmp_path / "in.h5")
    source = open_source(path)
    change(path)
    with pytest.raises(InputError, match=r"in\.h5: "):
        next(source.fragments(0, 1 << 16, GB))
