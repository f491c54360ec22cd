"""What a file holds beside its records: datasets that every shard repeats, attributes, scalars, and lists of the names of labels."""

from __future__ import annotations

import re
from contextlib import suppress
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash
from h5py import h5, h5a, h5d, h5o, h5s, h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.columns import read_column, read_storage
from recshuf.formats.hdf5.contents import content_of, reading
from recshuf.formats.hdf5.guards import SizeLimit, ValueGuard
from recshuf.formats.hdf5.inventory import find_scalar_obstacle
from recshuf.formats.hdf5.roles import SAME_VARIABLES, SHAPE, explain_storage, is_of_variables
from recshuf.formats.hdf5.signs import LEAVE_OUT
from recshuf.formats.hdf5.template import BOOKKEEPING, make_buffer, read_pieces
from recshuf.formats.hdf5.types import (
    Kind,
    describe_type,
    find_copy_obstacle,
    find_dtype,
    holds_variable_length,
)
from recshuf.formats.meaning import Weight, describe, is_counted, weigh
from recshuf.formats.options import DATASETS, OTHERS, shorten
from recshuf.interfaces import MetadataKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from numpy.typing import NDArray

    from recshuf.formats.hdf5.contents import Contents
    from recshuf.formats.metadata import MetadataUnion
    from recshuf.interfaces import ReadOptions


_SHARE = 8
"""Share of the memory limit that the copies may have: the image of a shard, with copies of it, takes several times that."""
_NO_LIMIT = 1 << 62
_INDEX = re.compile(r"((?:.*?/)?)_i_([^/]+)")
"""Path of what PyTables keeps about a table: the folder and the name of the table."""
_LIST_OF_TEXTS = re.compile(r"(variable-length string|\|S\d+) \(\d+,\) ")
"""Beginning of the hash of a list of strings."""


def describe_choice(options: ReadOptions, name: str) -> dict[str, str]:
    """Return a sentence about the datasets of the record and the others, by the path of what it is about."""
    datasets, others = DATASETS.of(options), OTHERS.of(options)
    if not others or not datasets:
        return {}
    by_use = sorted(others, key=lambda path: _INDEX.match(path) is not None)
    shuffled, copied = shorten(datasets), shorten(by_use)
    return {"": f"{name}: shuffled are the rows of {shuffled}; copied unchanged are {copied}"}


def drop_indexes(contents: Contents, records: Iterable[str]) -> dict[str, str]:
    """Drop what PyTables keeps about the order of the records, and return a sentence about each by its path."""
    tables, dropped = {*records}, {}
    for path in contents.groups:
        table = _find_table(path)
        if table in tables and _INDEX.fullmatch(path):
            note = f"group {path!r}: left out, because it indexes the former order of {table!r}"
            dropped[path] = f"{contents.name}: {note}"
    for paths in (contents.order, contents.groups, contents.arrays):
        paths[:] = [path for path in paths if _find_table(path) not in tables]
    return dropped


def _find_table(path: str) -> str | None:
    """Return the path of the table that PyTables describes at a path; None if there is none."""
    parts = _INDEX.match(path)
    return parts and parts[1] + parts[2]


def list_others(contents: Contents, records: Iterable[str]) -> tuple[str, ...]:
    taken, every = {*records}, (*contents.arrays, *contents.nulls)
    return tuple(path for path in every if path not in taken and _find_table(path) not in taken)


class Copies:
    """Reads what every shard repeats of an open file, as long as all of it fits the memory for that."""

    def __init__(self, contents: Contents, options: ReadOptions) -> None:
        self._contents = contents
        self._name = contents.name
        self._others = OTHERS.of(options) or ()
        self._most_bytes = _NO_LIMIT if options.memory_bytes is None else options.memory_bytes // _SHARE
        self._byte_count = 0

    def hash_others(self, records: Iterable[str]) -> dict[str, str]:
        """Return the hash of each dataset that is not of the record; `InputError` if they are not those of the first input."""
        others = list_others(self._contents, records)
        for path in sorted({*others} ^ {*self._others}):
            group = path.rpartition("/")[0]
            if known := explain_storage(self._contents, [group]):
                raise InputError(self._name, known[0], place=f"group {group!r}", remedy=known[1])
            problem = f"has {'a' if path in others else 'no'} dataset {path!r}, unlike the first input"
            raise InputError(self._name, problem, remedy=LEAVE_OUT)
        return {path: self.hash(path) for path in others}

    def hash(self, path: str) -> str:
        """Return the hash of type, shape and values of a dataset, and check its storage first."""
        dataset, digest = self._contents.file[path], xxhash.xxh3_128()
        with reading(self._name, f"dataset {path!r}"):
            tid = dataset.id.get_type()
            if dataset.shape is None:
                return f"{describe_type(tid)} null"
            self._check(path, self._byte_count)
            for _, values, _ in read_pieces(dataset.id, tid):
                for part in _list_bytes(values):
                    digest.update(part)
                    self._byte_count += memoryview(part).nbytes
                self._check_size(self._byte_count)
            return f"{describe_type(tid)} {dataset.shape} {digest.hexdigest()}"

    def _check(self, path: str, held_bytes: int = 0) -> None:
        dataset = self._contents.open_checked(path)
        tid = dataset.id.get_type()
        problem = find_copy_obstacle(tid)
        if problem:
            raise InputError(self._name, problem, place=f"dataset {path!r}", remedy=LEAVE_OUT)
        column, storage = read_column(dataset.id, path), read_storage(dataset.id, path)
        own_bytes = max(prod(dataset.shape) * tid.get_size(), storage.chunk_bytes, storage.stored_bytes)
        self._check_size(held_bytes + own_bytes)
        if column.kind is not Kind.FIXED and not column.row_shape:
            file = self._contents.file
            guard = ValueGuard(file, content_of(file), dataset.id, column, self._name)
            guard.check(0, dataset.shape[0], SizeLimit(self._most_bytes, "--memory"))

    def _check_size(self, byte_count: int) -> None:
        if byte_count > self._most_bytes:
            problem = f"the datasets of other lengths hold more than the {self._most_bytes} bytes that fit"
            raise InputError(self._name, problem, remedy=f"raise --memory, or {LEAVE_OUT}")

    def read_metadata(self, records: Mapping[str, str], *, is_whole: bool = False) -> dict[MetadataKey, str]:
        """Return what the file says of some datasets of the record, by its name and path, and of all records.

        What belongs to other datasets only is left out, unless it `is_whole`: the attributes and scalars of groups that hold
        no dataset of the record, but others.
        """
        contents, taken = self._contents, {*records.values()}
        sparse = {matrix.path for matrix in contents.matrices.values()}
        others = [path for path in contents.arrays if path not in taken]
        left_out = _list_folders(path for path in others if path not in self._others)
        foreign = left_out - _list_folders([*taken, *self._others])

        def is_ours(path: str) -> bool:
            return is_whole or not foreign or foreign.isdisjoint(_list_folders([f"{path}/"]))

        owners = [("file", "", "")]
        owners += [("group", path, path) for path in contents.groups if is_ours(path)]
        owners += [("dataset", name, path) for name, path in records.items()]
        owners += [("dataset", path, path) for path in others if path in self._others]
        values: dict[MetadataKey, str] = {}
        for owner, name, path in owners:
            shown = (name,) if name else ()
            with reading(self._name, repr(f"/{path}")):
                for key, text in _read_attributes(h5o.open(contents.file.id, _encode(f"/{path}"))):
                    if key != SHAPE or path not in sparse:  # which counts records
                        values[MetadataKey(owner, shown, key)] = text
        wholes = [path for path in contents.scalars if is_counted(_leaf(path)) and is_ours(_folder(path))]
        wholes += [path for path in others if weigh(_leaf(path)) is Weight.LABELS and is_ours(_folder(path))]
        for path in wholes:
            with reading(self._name, repr(path)), suppress(InputError):
                values |= self._read_whole(path)
        return values

    def _read_whole(self, path: str) -> Iterator[tuple[MetadataKey, str]]:
        """Yield the values of a scalar or a list of labels, and its attributes; raise `InputError` if it cannot be read."""
        dataset = self._contents.file[path]
        if dataset.shape:
            self._check(path)
        elif (problem := find_scalar_obstacle(dataset)) is not None:
            raise InputError(self._name, problem)
        is_text = dataset.id.get_type().get_class() == h5t.STRING
        if dataset.shape and not (
            len(dataset.shape) == 1 and is_text and weigh(_leaf(path)) is Weight.LABELS
        ):
            return
        text = _describe(dataset.id, lambda values, kind: dataset.id.read(h5s.ALL, h5s.ALL, values, kind))
        if text is not None:
            yield MetadataKey("dataset", (path,), ""), text
        for key, inner in _read_attributes(dataset.id):
            yield MetadataKey("dataset", (path,), key), inner


def check_same(
    union: MetadataUnion, hashes: Mapping[str, str], first: Mapping[str, str], first_name: str, name: str
) -> None:
    """Raise `InputError` if the other datasets of two inputs differ, by their hashes; a lenient union takes a note.

    Lists of labels are left to the union.
    """
    for path in hashes:
        both = (first[path], hashes[path])
        is_list = weigh(_leaf(path)) is Weight.LABELS and all(map(_LIST_OF_TEXTS.match, both))
        if both[0] == both[1] or is_list:
            continue
        if union.is_lenient:
            union.note(MetadataKey("dataset", (path,), ""), *both, name)
            continue
        problem = f"differs from that in {first_name}, and every shard repeats only one"
        same = f"{SAME_VARIABLES}, " if is_of_variables(path) or "/features/" in path else ""
        remedy = f"{same}{LEAVE_OUT}, or give --first-metadata for those of the first input"
        raise InputError(name, problem, place=f"dataset {path!r}", remedy=remedy)


def _list_bytes(values: NDArray[Any]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of values; those of variable length after their numbers of elements."""
    if not values.dtype.hasobject:
        yield np.ascontiguousarray(values).data
    elif values.dtype.names:
        for name in values.dtype.names:
            yield from _list_bytes(values[name])
    else:
        items = values.ravel().tolist()
        yield np.fromiter(map(len, items), np.int64, len(items)).data
        if items and isinstance(items[0], bytes):
            yield b"".join(items)
        elif items:
            yield from _list_bytes(np.concatenate(items))


def _read_attributes(owner: Any) -> Iterator[tuple[str, str]]:
    names: list[bytes] = []
    h5a.iterate(owner, names.append, order=h5.ITER_NATIVE)  # as they were written, where the file tells
    for name in names:
        shown = name.decode("utf-8", "surrogateescape")
        if shown not in BOOKKEEPING and is_counted(shown):
            attribute = h5a.open(owner, name)
            text = _describe(attribute, attribute.read)
            if text is not None:
                yield shown, text


def _describe(source: h5a.AttrID | h5d.DatasetID, read: Callable[[Any, Any], object]) -> str | None:
    """Return the text of all values; None if they are references, or have a type that is not copied."""
    tid, shape = source.get_type(), source.shape
    if shape is None:
        return describe(None)
    if tid.detect_class(h5t.REFERENCE):
        return None
    is_variable = holds_variable_length(tid)
    if is_variable and find_copy_obstacle(tid):
        return None
    values, memory_type = make_buffer(shape, tid)
    read(values, memory_type)
    if is_variable:
        return describe(values)
    dtype = find_dtype(tid)
    return describe(values.tobytes().hex() if dtype is None else values.view(dtype).reshape(shape))


def _list_folders(paths: Iterable[str]) -> set[str]:
    """Return all groups that some paths lead through, without the first one."""
    folders: set[str] = set()
    for path in paths:
        folder = path
        while folder := _folder(folder):
            folders.add(folder)
    return folders


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _leaf(path: str) -> str:
    return path.rpartition("/")[2]


def _encode(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
