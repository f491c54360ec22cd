"""Opening HDF5 files, and turning whatever h5py raises about a bad one into an `InputError`."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import h5py
import pyarrow as pa

from recshuf.errors import InputError, RecshufError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from recshuf.interfaces import InputFile

# What h5py raises about damaged or hostile files; which one depends on the place of the damage.
_FAILURES = (
    OSError,
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    ArithmeticError,
    AttributeError,
    MemoryError,
    SystemError,
    pa.ArrowException,
)


@dataclass(frozen=True, slots=True)
class Stamp:
    """What tells that a file was written to: if it shrinks, HDF5 reads zeros where it ended before."""

    byte_count: int
    modified_ns: int


def read_stamp(file: h5py.File) -> Stamp:
    """Return the stamp of the open file itself, whatever has its name by now."""
    status = os.fstat(file.id.get_vfd_handle())
    return Stamp(status.st_size, status.st_mtime_ns)


def check_stamp(file: h5py.File, name: str, stamp: Stamp) -> None:
    """Raise `InputError` if a file is not as it was when the stamp was taken."""
    if read_stamp(file) != stamp:
        raise InputError(name, "changed while it was read", remedy="run again when nobody writes to it")


@contextmanager
def reading(name: str, place: str | None = None) -> Iterator[None]:
    """Raise as `InputError` what goes wrong inside, naming the input and the place."""
    try:
        yield
    except RecshufError:
        raise
    except _FAILURES as error:
        said = " ".join(str(error).split()) or type(error).__name__
        raise InputError(name, f"cannot be read as HDF5 ({said})", place=place) from error


def open_file(given: InputFile) -> h5py.File:
    """Return an input opened for reading.

    Raises
    ------
    InputError
        When it is a stream, missing, unreadable, damaged, or no HDF5 file.
    """
    if given.path is None:
        raise InputError(given.name, "HDF5 cannot be read from a stream", remedy="save it to a file first")
    _check_regular(given.name, given.path)
    with reading(given.name):
        if not h5py.is_hdf5(given.path):
            raise InputError(given.name, "is not an HDF5 file")
        return h5py.File(given.path, "r", driver="sec2", locking="best-effort")


def _check_regular(name: str, path: Path) -> None:
    """Raise `InputError` if a file cannot be opened, or gives its bytes only once, if ever."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            with path.open("rb"):
                return
    except OSError as error:
        raise InputError(name, error.strerror or str(error)) from error
    raise InputError(name, "is no regular file, and HDF5 needs one", remedy="save it to a file first")
