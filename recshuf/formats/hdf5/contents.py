"""The objects of an HDF5 file, listed without following links out of it."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import h5py
from h5py import h5a, h5d, h5g, h5s, h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.filters import refuse_unknown_filters
from recshuf.formats.hdf5.heap import check_small_file
from recshuf.formats.hdf5.opening import content_of, opened, read_stamp
from recshuf.formats.hdf5.sparse import Matrix, adopt_matrices

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.interfaces import InputFile

MARKS = (b"encoding-type", b"pandas_type")
_MOST_HOPS = 64
_MOST_NAMES = 20
_MOST_LEVELS = 128
_SHOWN_LETTERS = 40


@dataclass(slots=True)
class Contents:
    """An open file, and the paths of all its objects, without the leading slash, parents first; each object once."""

    file: h5py.File
    name: str
    """Name of the file for messages."""
    order: list[str] = field(default_factory=list)
    """All paths, in the order in which groups list their members."""
    groups: list[str] = field(default_factory=list)
    arrays: list[str] = field(default_factory=list)
    """Datasets with a first axis."""
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Shape of each array."""
    marked: list[str] = field(default_factory=list)
    """Groups with an attribute by which AnnData or pandas says what they hold; the empty path is the whole file."""
    scalars: list[str] = field(default_factory=list)
    """Datasets of one value without an axis."""
    nulls: list[str] = field(default_factory=list)
    """Datasets with a null dataspace."""
    types: list[str] = field(default_factory=list)
    """Named datatypes."""
    soft_links: dict[str, str] = field(default_factory=dict)
    """Path and target of each."""
    hard_links: dict[str, str] = field(default_factory=dict)
    """Other paths of objects, and the path under which each is listed."""
    external_links: list[str] = field(default_factory=list)
    addresses: dict[int, str] = field(default_factory=dict)
    """Path of the object at an address in the file."""
    matrices: dict[str, Matrix] = field(default_factory=dict)
    """Sparse matrices whose rows are of the record, by the paths of their parts."""

    def list_datasets(self) -> str:
        """Return the names of the arrays, for a message."""
        shown = ", ".join(self.arrays[:_MOST_NAMES])
        return shown + (", ..." if len(self.arrays) > _MOST_NAMES else "")


@contextmanager
def looking_into(input_file: InputFile) -> Iterator[Contents]:
    """Open an input, walk through it, and close it at the end; errors are as of `opened`."""
    with opened(input_file) as file:
        check_small_file(content_of(file), read_stamp(file).size)
        yield walk_file(file, input_file.name)


def walk_file(file: h5py.File, name: str) -> Contents:
    """Return the contents of a file; `name` is its name for messages."""
    contents = Contents(file, name)
    contents.addresses[find_address(file.id)] = ""
    _note_marks(file["/"], "", contents)
    pending = [("", path) for path in reversed(list(file))]
    while pending:
        parent, child = pending.pop()
        path = _join_path(parent, child, name)
        pending += [(path, inner) for inner in reversed(_visit(file["/" + parent], child, path, contents))]
    adopt_matrices(contents)
    return contents


def _join_path(parent: str, child: str | bytes, name: str) -> str:
    """Return the path of a member; h5py gives its name as bytes if it is not UTF-8."""
    if isinstance(child, bytes):
        problem = f"{child!r} in group {'/' + parent!r} is a name that is not UTF-8"
        raise InputError(name, problem, remedy="rename it")
    if parent.count("/") >= _MOST_LEVELS - 1:
        problem = f"groups are nested more than {_MOST_LEVELS} deep"
        raise InputError(name, problem, place=f"group {parent[:_SHOWN_LETTERS] + '...'!r}")
    return f"{parent}/{child}" if parent else child


def _visit(group: h5py.Group, child: str, path: str, contents: Contents) -> list[str]:
    """Add one member of a group, and return the names of its own members, if any."""
    link = group.get(child, getlink=True)
    contents.order.append(path)
    if isinstance(link, h5py.ExternalLink):
        contents.external_links.append(path)
    elif isinstance(link, h5py.SoftLink):
        contents.soft_links[path] = link.path
    else:
        return _visit_object(group[child], path, contents)
    return []


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
    else:
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


def resolve_path(contents: Contents, path: str) -> str | None:
    """Return the path of an object without links, or None if there is no object."""
    done: list[str] = []
    todo = _split_path(path)
    hops = 0
    while todo:
        part = todo.pop(0)
        group = contents.file["/" + "/".join(done)]
        link = group.get(part, getlink=True) if isinstance(group, h5py.Group) else None
        if link is None:
            return None
        if isinstance(link, h5py.ExternalLink):
            raise _external_link_error(contents, "/".join([*done, part]))
        if not isinstance(link, h5py.SoftLink):
            done.append(part)
            continue
        hops += 1
        if hops > _MOST_HOPS:
            return None
        done = [] if link.path.startswith("/") else done
        todo = _split_path(link.path) + todo
    return "/".join(done)


def _split_path(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _external_link_error(contents: Contents, path: str) -> InputError:
    remedy = "copy what it leads to into the file, or name other datasets with --datasets"
    return InputError(contents.name, "external links are not followed", place=f"link {path!r}", remedy=remedy)


def refuse_elsewhere(dataset: h5d.DatasetID, path: str, name: str) -> None:
    """Raise `InputError` if the values of a dataset lie in other files."""
    plist = dataset.get_create_plist()
    is_virtual = plist.get_layout() == h5d.VIRTUAL
    if is_virtual or plist.get_external_count() > 0:
        problem = f"{'virtual datasets read' if is_virtual else 'external storage reads'} other files"
        raise InputError(name, problem, place=f"dataset {path!r}", remedy="make a copy of the data")


def check_access(dataset: h5py.Dataset, path: str, name: str) -> None:
    """Raise `InputError` if the values of a dataset lie in other files or need a filter that is not installed."""
    refuse_elsewhere(dataset.id, path, name)
    refuse_unknown_filters(dataset.id.get_create_plist(), name, f"dataset {path!r}")


def require_arrays(contents: Contents) -> None:
    """Raise `InputError` if a file has no dataset that could hold records."""
    if not contents.arrays:
        raise InputError(contents.name, "has no dataset with a first axis, so no records")


def refuse_external_links(contents: Contents) -> None:
    """Raise `InputError` if a file has links to other files."""
    if contents.external_links:
        raise _external_link_error(contents, contents.external_links[0])


def refuse_leftovers(contents: Contents) -> None:
    """Raise `InputError` if a file has an object that can be neither shuffled nor copied to every shard."""
    refuse_external_links(contents)
    if contents.nulls:
        place = f"dataset {contents.nulls[0]!r}"
        remedy = "name the datasets of the record with --datasets"
        problem = "a dataset with a null dataspace has no records"
        raise InputError(contents.name, problem, place=place, remedy=remedy)
