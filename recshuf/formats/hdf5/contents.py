"""Opens HDF5 files, lists their objects without following links out of them, and turns exceptions of h5py into an `InputError`."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import h5py
import pyarrow as pa
from h5py import h5a, h5d, h5ds, h5f, h5g, h5s, h5t
from h5py._objects import phil

from recshuf.errors import InputError, RecshufError, UnavailableInputError
from recshuf.formats.compression import explain_packed
from recshuf.formats.files import POINTER_BYTES, check_regular, refuse_pointer
from recshuf.formats.hdf5 import SIGNATURE, list_places
from recshuf.formats.hdf5.columns import check_access
from recshuf.formats.hdf5.guards import IndexStream, check_chunks, check_content, check_small_file
from recshuf.formats.hdf5.roles import MARKS, Matrix, adopt_matrices
from recshuf.formats.hdf5.types import kind_of
from recshuf.storage.reading.local import LocalHandle, opener_of
from recshuf.storage.reading.objects import ObjectStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np
    from numpy.typing import NDArray

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
_SCALES = b"DIMENSION_LIST"
_MOST_READ = 1 << 24
_MOST_HOPS = 64
_MOST_LEVELS = 128
_SHOWN_LETTERS = 40


class ObjectHdf5(h5py.File):  # type: ignore[misc] # h5py ships no types
    """An HDF5 file in an object store, open for reading."""

    def __init__(self, raw: ObjectStream) -> None:
        super().__init__(raw, "r")
        self.stream = raw


def content_of(file: h5py.File) -> Handle:
    """Return the bytes of an open input, even if another file has its name now; they are closed with it."""
    if isinstance(file, ObjectHdf5):
        return file.stream.handle
    return LocalHandle(file.filename, file.id.get_vfd_handle())


def check_stamp(file: h5py.File, name: str, stamp: Stamp) -> None:
    """Raise `InputError` if a file has changed since the stamp was taken; HDF5 reads zeros in place of bytes that it has lost.

    Another machine may have taken it, where the file has another inode.
    """
    if content_of(file).stamp.find_change(stamp._replace(inode=0)):
        raise InputError(name, "changed while it was read", remedy="run again when nobody writes to it")


class reading:  # noqa: N801 - called like the functions of contextlib
    """A context that turns errors inside into an `InputError` that names the input and the place.

    From a generator's, newer Pythons would keep the error, and the open file it refers to, until garbage is collected.
    """

    def __init__(self, name: str, place: str | None = None) -> None:
        self._name, self._place = name, place

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, RecshufError) or not isinstance(error, _FAILURES):
            return
        said = " ".join(str(error).split()) or type(error).__name__
        # h5py gives the number of an error of the system, for a `KeyError` in the text alone, and none for damage.
        is_of_system = isinstance(error, OSError) and error.errno
        kind = UnavailableInputError if is_of_system or _SYSTEM_ERROR.search(said) else InputError
        raise kind(self._name, f"cannot be read as HDF5 ({said})", place=self._place) from error


def open_file(input_file: InputFile, stream: type[ObjectStream] = ObjectStream) -> h5py.File:
    name = input_file.name
    check_regular(input_file, "HDF5")
    if input_file.path is None:
        raw = stream(cast("ObjectHandle", opener_of(input_file).open()))
        _check_signature(name, raw)
        with reading(name):
            return ObjectHdf5(raw)
    try:
        with input_file.path.open("rb") as file:
            _check_signature(name, file)
    except OSError as error:
        raise InputError.of_system(error, name) from error
    with reading(name), phil:
        return h5py.File(input_file.path, "r", driver="sec2", locking="best-effort")


def close_file(file: h5py.File) -> None:
    # HDF5 shares one descriptor between all openers of a file; the last one closes it. No lock of its own beside that of h5py,
    # since a collection of garbage may call this with that one held.
    with phil:
        if file and not isinstance(file, ObjectHdf5) and h5f.get_obj_count(file.id, h5f.OBJ_FILE) == 1:
            # Another file behind the descriptor: HDF5 aborts when the system fails to close one.
            with suppress(OSError), Path(os.devnull).open("rb") as nothing:
                os.dup2(nothing.fileno(), file.id.get_vfd_handle(), inheritable=False)
        file.close()


def _check_signature(name: str, file: BinaryIO | ObjectStream) -> None:
    for place in list_places(file.seek(0, os.SEEK_END)):
        file.seek(place)
        if file.read(len(SIGNATURE)) == SIGNATURE:
            return
    file.seek(0)
    head = file.read(POINTER_BYTES)
    refuse_pointer(name, head)
    raise explain_packed(name, head, "HDF5") or InputError(name, "is not an HDF5 file")


@dataclass(slots=True)
class Contents:
    """An open file, and the paths of all its objects, without the leading slash, parents first; each object once."""

    file: h5py.File
    name: str
    order: list[str] = field(default_factory=list)
    """All paths, in the order in which groups list their members."""
    groups: list[str] = field(default_factory=list)
    arrays: list[str] = field(default_factory=list)
    """Datasets with a first axis."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    marked: list[str] = field(default_factory=list)
    """Groups with an attribute by which AnnData or pandas says what they hold; the empty path is the whole file."""
    scalars: list[str] = field(default_factory=list)
    """Datasets of one value without an axis."""
    nulls: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    soft_links: dict[str, str] = field(default_factory=dict)
    hard_links: dict[str, str] = field(default_factory=dict)
    """Other paths of objects, and the path under which each is listed."""
    external_links: list[str] = field(default_factory=list)
    addresses: dict[int, str] = field(default_factory=dict)
    """Path of the object at an address in the file."""
    matrices: dict[str, Matrix] = field(default_factory=dict)
    """Sparse matrices whose rows are of the record, by the paths of their parts."""

    def open_checked(self, path: str) -> h5py.Dataset:
        dataset = self.file[path]
        check_access(dataset.id, path, self.name)
        check_chunks(dataset.id, path, self.name, content_of(self.file).stamp.size)
        check_content(dataset.id)
        return dataset

    def read_integers(self, path: str) -> NDArray[np.integer[Any]] | None:
        """Return a dataset of integers, of one axis or of pairs; None if it is another one, or a very large one."""
        dataset = self.file[path]
        shape, is_number = dataset.shape, dataset.id.get_type().get_class() == h5t.INTEGER
        if not is_number or shape[1:] not in ((), (2,)) or prod(shape) > _MOST_READ:
            return None
        with reading(self.name, f"dataset {path!r}"):
            values: NDArray[np.integer[Any]] = self.open_checked(path)[()]
            return values


@contextmanager
def looking_into(input_file: InputFile) -> Iterator[Contents]:
    """Open an input, walk through it, and close it at the end; errors in between are as in `reading`."""
    with reading(input_file.name):
        file = open_file(input_file, IndexStream)
        try:
            check_small_file(content_of(file))
            yield walk_file(file, input_file.name)
        finally:
            close_file(file)


def walk_file(file: h5py.File, name: str) -> Contents:
    contents = Contents(file, name)
    contents.addresses[find_address(file.id)] = ""
    _note_marks(file["/"], "", contents)
    pending = [("", path) for path in reversed(list(file))]
    while pending:
        parent, child = pending.pop()
        if isinstance(child, bytes):  # as h5py gives it
            problem = f"{child!r} in group {'/' + parent!r} is a name that is not UTF-8"
            raise InputError(name, problem, remedy="rename it")
        if parent.count("/") >= _MOST_LEVELS - 1:
            problem = f"groups are nested more than {_MOST_LEVELS} deep"
            raise InputError(name, problem, place=f"group {parent[:_SHOWN_LETTERS] + '...'!r}")
        path = f"{parent}/{child}" if parent else child
        group = file["/" + parent]
        link = group.get(child, getlink=True)
        contents.order.append(path)
        if isinstance(link, h5py.ExternalLink):
            contents.external_links.append(path)
        elif isinstance(link, h5py.SoftLink):
            contents.soft_links[path] = link.path
        else:
            pending += [(path, inner) for inner in reversed(_visit_object(group[child], path, contents))]
    adopt_matrices(contents)
    return contents


def _visit_object(member: h5py.HLObject, path: str, contents: Contents) -> list[str]:
    address = find_address(member.id)
    if address in contents.addresses:
        contents.hard_links[path] = contents.addresses[address]
        return []
    contents.addresses[address] = path
    if isinstance(member, h5py.Group):
        contents.groups.append(path)
        _note_marks(member, path, contents)
        return list(member)
    if isinstance(member, h5py.Datatype):
        contents.types.append(path)
        return []
    spaces = {h5s.SIMPLE: contents.arrays, h5s.SCALAR: contents.scalars}
    space = member.id.get_space()
    spaces.get(space.get_simple_extent_type(), contents.nulls).append(path)
    if space.get_simple_extent_type() == h5s.SIMPLE:
        contents.shapes[path] = space.get_simple_extent_dims()
    return []


def _note_marks(group: h5py.Group, path: str, contents: Contents) -> None:
    if any(h5a.exists(group.id, key) for key in MARKS):
        contents.marked.append(path)


def find_address(object_id: h5d.DatasetID | h5g.GroupID | h5t.TypeID) -> int:
    """Return the address of an object in its file, without reading anything else of it.

    Other calls of HDF5 read the size of its indexes too, and a damaged one aborts the process.
    """
    low, high = h5g.get_objinfo(object_id, b".").objno
    return int(low) | int(high) << 32


def list_scales(dataset: h5d.DatasetID) -> Iterator[tuple[int, int]]:
    """Yield the axis and the address of each dimension scale that is attached to a dataset."""
    if not h5a.exists(dataset, _SCALES):
        return
    # The following calls read this attribute without checking its type.
    kind_of(h5a.open(dataset, _SCALES).get_type())
    for axis in range(dataset.rank):
        scales: list[h5d.DatasetID] = []
        if h5ds.get_num_scales(dataset, axis) > 0:
            h5ds.iterate(dataset, axis, scales.append)
        yield from ((axis, find_address(scale)) for scale in scales)


def resolve_path(contents: Contents, path: str) -> str:
    """Return the path under which the object at a path is listed; another one if there is no object."""
    done, todo, hops = "", _split_path(path), 0
    while todo and hops <= _MOST_HOPS:
        group, done = done, f"{done}/{todo.pop(0)}".lstrip("/")
        if done in contents.external_links:
            raise _external_link_error(contents, done)
        link = contents.soft_links.get(done)
        if link is None:
            done = contents.hard_links.get(done, done)
        else:
            hops += 1
            done, todo = "" if link.startswith("/") else group, _split_path(link) + todo
    return done


def _split_path(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _external_link_error(contents: Contents, path: str) -> InputError:
    remedy = (
        "copy what it leads to into the file, or name other datasets with --datasets, without --keep-others"
    )
    return InputError(contents.name, "external links are not followed", place=f"link {path!r}", remedy=remedy)


def check_objects(contents: Contents, *, copies_nulls: bool) -> None:
    """Raise `InputError` if a file has links to other files, nulls that are not copied, or no dataset that could hold records."""
    if contents.external_links:
        raise _external_link_error(contents, contents.external_links[0])
    if contents.nulls and not copies_nulls:
        problem, remedy = (
            "a dataset with a null dataspace has no records",
            "name the datasets of the record with --datasets",
        )
        raise InputError(contents.name, problem, place=f"dataset {contents.nulls[0]!r}", remedy=remedy)
    if not contents.arrays:
        raise InputError(contents.name, "has no dataset with a first axis, so no records")
