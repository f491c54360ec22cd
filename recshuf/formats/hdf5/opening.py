"""Opens HDF5 files, and turns the exceptions of h5py for bad files into an `InputError`."""

from __future__ import annotations

import os
import re
import stat
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast

import h5py
import pyarrow as pa
from h5py import h5f
from h5py._objects import phil

from recshuf.errors import InputError, RecshufError, UnavailableInputError
from recshuf.formats.compression import explain_packed
from recshuf.formats.hdf5 import SIGNATURE, list_places
from recshuf.formats.hdf5.chunk_index import parse_node
from recshuf.formats.hdf5.types import IndexRoot, find_chunk
from recshuf.formats.pointers import POINTER_BYTES, refuse_pointer
from recshuf.storage.reading.local import LocalHandle, opener_of
from recshuf.storage.reading.objects import ObjectStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import WriteableBuffer
    from h5py import h5d

    from recshuf.interfaces import Handle, InputFile, Stamp
    from recshuf.storage.reading.objects import ObjectHandle


# Exceptions of h5py for damaged or hostile files; the type depends on the place of the damage.
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
_SYSTEM_ERROR = re.compile(r"file descriptor = \d+, errno = [1-9]")


class _FoundRoot(Exception):  # noqa: N818 # no error
    """Ends a walk through an index at its root."""

    def __init__(self, root: IndexRoot) -> None:
        super().__init__()
        self.root = root


class _IndexStream(ObjectStream):
    """An object whose indexes are read: all nodes below one are fetched at once, since HDF5 asks for one at a time."""

    root_axes = 0
    """Axes of the root at which a walk is to stop; 0 if it is not."""

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Raise `_FoundRoot` at such a root, unless it is a leaf."""
        place = self.tell()
        count = super().readinto(buffer)
        node = parse_node(memoryview(buffer)[:count])
        if node is not None and node.level:
            if node.is_root and node.axes == self.root_axes:
                raise _FoundRoot(IndexRoot(place, count))
            self.handle.expect([(child, child + count) for child in node.children])
        return count


class ObjectHdf5(h5py.File):  # type: ignore[misc] # h5py ships no types
    """An HDF5 file in an object store, open for reading."""

    def __init__(self, raw: ObjectStream) -> None:
        super().__init__(raw, "r")
        self.stream = raw


def find_index_root(file: h5py.File, dataset: h5d.DatasetID) -> IndexRoot | None:
    """Return the root of the index of chunks of a dataset in an object.

    None also if the root is a leaf, has another layout than is usual, or has been read before.
    """
    stream = file.stream if isinstance(file, ObjectHdf5) else None
    is_listed = find_chunk(dataset) is not None and hasattr(dataset, "chunk_iter")
    if not isinstance(stream, _IndexStream) or not is_listed or file.userblock_size:
        return None
    stream.root_axes = len(dataset.shape) + 1
    try:
        dataset.chunk_iter(lambda _: True)
    except _FoundRoot as end:
        return end.root
    finally:
        stream.root_axes = 0
    return None


def content_of(file: h5py.File) -> Handle:
    """Return the bytes of an open input; they are closed with it."""
    if isinstance(file, ObjectHdf5):
        return file.stream.handle
    return LocalHandle(file.filename, file.id.get_vfd_handle())


def read_stamp(file: h5py.File) -> Stamp:
    """Return the stamp of the open file, even if another file has its name now."""
    return content_of(file).stamp


def check_stamp(file: h5py.File, name: str, stamp: Stamp) -> None:
    """Raise `InputError` if a file has changed since the stamp was taken.

    If it has shrunk, HDF5 reads zeros in place of the missing bytes.
    """
    if read_stamp(file) != stamp:
        raise InputError(name, "changed while it was read", remedy="run again when nobody writes to it")


@contextmanager
def reading(name: str, place: str | None = None) -> Iterator[None]:
    """Turn errors inside the context into an `InputError` that names the input and the place."""
    try:
        yield
    except RecshufError:
        raise
    except _FAILURES as error:
        said = " ".join(str(error).split()) or type(error).__name__
        # h5py gives the number of an error of the system, for a `KeyError` in the text alone, and none for damage.
        is_of_system = isinstance(error, OSError) and error.errno
        kind = UnavailableInputError if is_of_system or _SYSTEM_ERROR.search(said) else InputError
        raise kind(name, f"cannot be read as HDF5 ({said})", place=place) from error


@contextmanager
def opened(input_file: InputFile) -> Iterator[h5py.File]:
    """Open an input to look into it, as `open_file` does, and close it at the end; errors in between are as in `reading`."""
    with reading(input_file.name):
        file = open_file(input_file, _IndexStream)
        try:
            yield file
        finally:
            close_file(file)


def open_file(input_file: InputFile, stream: type[ObjectStream] = ObjectStream) -> h5py.File:
    """Return an input opened for reading, an object by `stream`; `close_file` closes it."""
    if input_file.is_stream:
        raise InputError(
            input_file.name, "HDF5 cannot be read from a stream", remedy="save it to a file first"
        )
    if input_file.path is None:
        return _open_object(input_file, stream)
    _check_regular(input_file.name, input_file.path)
    with reading(input_file.name), phil:
        return h5py.File(input_file.path, "r", driver="sec2", locking="best-effort")


def _open_object(input_file: InputFile, stream: type[ObjectStream]) -> ObjectHdf5:
    raw = stream(cast("ObjectHandle", opener_of(input_file).open()))
    _check_signature(input_file.name, raw)
    with reading(input_file.name):
        return ObjectHdf5(raw)


def close_file(file: h5py.File) -> None:
    """Close an input and all that is open in it."""
    # HDF5 shares one descriptor between all openers of a file; the last one closes it. No lock of its own beside that of h5py,
    # since a collection of garbage may call this with that one held.
    with phil:
        if file and not isinstance(file, ObjectHdf5) and h5f.get_obj_count(file.id, h5f.OBJ_FILE) == 1:
            _give_up_descriptor(file.id.get_vfd_handle())
        file.close()


def _give_up_descriptor(descriptor: int) -> None:
    """Replace the file behind a descriptor: HDF5 aborts when the system fails to close one."""
    with suppress(OSError), Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), descriptor, inheritable=False)


def _check_regular(name: str, path: Path) -> None:
    """Raise `InputError` if a file cannot be opened, is not a regular file, or is not an HDF5 file."""
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode):
            with path.open("rb") as file:
                _check_signature(name, file)
                return
    except OSError as error:
        raise InputError.of_system(error, name) from error
    raise InputError(name, "is not a regular file, which HDF5 needs", remedy="save it to a file first")


def _check_signature(name: str, file: BinaryIO | ObjectStream) -> None:
    """Raise `InputError` if the signature is at no offset where HDF5 may begin."""
    for place in list_places(file.seek(0, os.SEEK_END)):
        file.seek(place)
        if file.read(len(SIGNATURE)) == SIGNATURE:
            return
    file.seek(0)
    head = file.read(POINTER_BYTES)
    refuse_pointer(name, head)
    raise explain_packed(name, head, "HDF5") or InputError(name, "is not an HDF5 file")
