"""The objects of an HDF5 file, listed without following links out of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import h5py
from h5py import h5d, h5g, h5s, h5t

from recshuf.errors import InputError

_MOST_HOPS = 64
_MOST_NAMES = 20
_MOST_LEVELS = 128
_SHOWN_LETTERS = 40


@dataclass(slots=True)
class Contents:
    """Paths of all objects of a file, without the leading slash, parents first; each object once."""

    order: list[str] = field(default_factory=list)
    """All paths, in the order in which groups list their members."""
    groups: list[str] = field(default_factory=list)
    arrays: list[str] = field(default_factory=list)
    """Datasets with a first axis."""
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

    def list_datasets(self) -> str:
        """Return the names of the arrays, for a message."""
        shown = ", ".join(self.arrays[:_MOST_NAMES])
        return shown + (", ..." if len(self.arrays) > _MOST_NAMES else "")


def walk_file(file: h5py.File, name: str) -> Contents:
    """Return the contents of a file; `name` is its name for messages."""
    contents = Contents()
    contents.addresses[find_address(file.id)] = ""
    pending = [("", path) for path in reversed(list(file))]
    while pending:
        parent, child = pending.pop()
        path = _join_path(parent, child, name)
        group = file[parent] if parent else file
        pending += [(path, inner) for inner in reversed(_visit(group, child, path, contents))]
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
        return list(member)
    if isinstance(member, h5py.Datatype):
        contents.types.append(path)
    else:
        spaces = {h5s.SIMPLE: contents.arrays, h5s.SCALAR: contents.scalars}
        spaces.get(member.id.get_space().get_simple_extent_type(), contents.nulls).append(path)
    return []


def find_address(object_id: h5d.DatasetID | h5g.GroupID | h5t.TypeID) -> int:
    """Return the address of an object in its file, without reading anything else of it.

    Other calls of HDF5 read the size of its indexes too, and a damaged one aborts the process.
    """
    low, high = h5g.get_objinfo(object_id, b".").objno
    return int(low) | int(high) << 32


def resolve_path(file: h5py.File, path: str, name: str) -> str | None:
    """Return the path of an object without links, or None if there is no object."""
    done: list[str] = []
    todo = _split_path(path)
    hops = 0
    while todo:
        part = todo.pop(0)
        group = file["/".join(done)] if done else file
        link = group.get(part, getlink=True) if isinstance(group, h5py.Group) else None
        if link is None:
            return None
        if isinstance(link, h5py.ExternalLink):
            raise _external_link_error("/".join([*done, part]), name)
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


def _external_link_error(path: str, name: str) -> InputError:
    remedy = "copy what it leads to into the file, or name other datasets with --datasets"
    return InputError(name, "external links are not followed", place=f"link {path!r}", remedy=remedy)


def refuse_elsewhere(dataset: h5d.DatasetID, path: str, name: str) -> None:
    """Raise `InputError` if the values of a dataset lie in other files."""
    plist = dataset.get_create_plist()
    place = f"dataset {path!r}"
    if plist.get_layout() == h5d.VIRTUAL:
        raise InputError(
            name, "virtual datasets read other files", place=place, remedy="make a copy of the data"
        )
    if plist.get_external_count() > 0:
        problem = "external storage reads other files"
        raise InputError(name, problem, place=place, remedy="make a copy of the data")


def require_arrays(contents: Contents, name: str) -> None:
    """Raise `InputError` if a file has no dataset that could hold records."""
    if not contents.arrays:
        raise InputError(name, "has no dataset with a first axis, so no records")


def refuse_external_links(contents: Contents, name: str) -> None:
    """Raise `InputError` if a file has links to other files."""
    if contents.external_links:
        raise _external_link_error(contents.external_links[0], name)


def refuse_leftovers(contents: Contents, name: str) -> None:
    """Raise `InputError` if a file has an object that can be neither shuffled nor copied to every shard."""
    refuse_external_links(contents, name)
    if contents.nulls:
        place = f"dataset {contents.nulls[0]!r}"
        remedy = "name the datasets of the record with --datasets"
        raise InputError(name, "a dataset with a null dataspace has no records", place=place, remedy=remedy)
