"""Datasets that are not of the record, and that every shard repeats: which they are, and whether that is safe."""

from __future__ import annotations

import re
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from recshuf.errors import InputError
from recshuf.formats.hdf5.attributes import read_pieces
from recshuf.formats.hdf5.chunks import SizeLimit, ValueGuard
from recshuf.formats.hdf5.contents import (
    content_of,
    looking_into,
    read_stamp,
    reading,
    refuse_external_links,
    require_arrays,
)
from recshuf.formats.hdf5.inventory import find_records, find_scalar_obstacle
from recshuf.formats.hdf5.roles import SAME_VARIABLES, find_commonest, find_roles, is_of_variables
from recshuf.formats.hdf5.signs import LEAVE_OUT, check_independent, refuse_parts, shorten
from recshuf.formats.hdf5.storage import check_access, check_chunks, read_column, read_storage
from recshuf.formats.hdf5.types import Kind, describe_type, find_copy_obstacle
from recshuf.formats.meaning import Weight, weigh
from recshuf.formats.options import DATASETS, OTHERS
from recshuf.interfaces import MetadataKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import h5py
    from numpy.typing import NDArray

    from recshuf.formats.hdf5.contents import Contents
    from recshuf.formats.metadata import MetadataUnion
    from recshuf.interfaces import InputFile, ReadOptions


_SHARE = 8
"""Share of the memory limit that the values may have: the image of a shard, with copies of it, takes several times that."""
_NO_LIMIT = 1 << 62
_INDEX = re.compile(r"((?:.*?/)?)_i_([^/]+)")
"""Path of what PyTables keeps about a table: the folder and the name of the table."""
_LIST_OF_TEXTS = re.compile(r"(variable-length string|\|S\d+) \(\d+,\) ")
"""Beginning of the hash of a list of strings."""


def choose_others(input_file: InputFile, options: ReadOptions) -> ReadOptions:
    """Return options that name the datasets of the record, by the first input, and the others."""
    with looking_into(input_file) as contents:
        refuse_external_links(contents)
        require_arrays(contents)
        roles = find_roles(contents)
        if DATASETS.of(options) is None:
            commonest = find_commonest(contents, contents.arrays)
            if options.refuses_foreign and not roles.rows:
                refuse_parts(contents, commonest)
            options = options.found({DATASETS: tuple(commonest)})
        records = tuple(dict.fromkeys(find_records(contents, options).values()))
        others = _list_others(contents, records)
        check_independent(contents, records, others, roles)
    return options.found({DATASETS: records, OTHERS: others})


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
    dropped: dict[str, str] = {}
    for table in records:
        folder, _, leaf = table.rpartition("/")
        path = f"{folder}/_i_{leaf}".lstrip("/")
        if path in contents.groups:
            note = f"group {path!r}: left out, because it indexes the former order of {table!r}"
            dropped[path] = f"{contents.name}: {note}"
    tables = set(records)
    for paths in (contents.order, contents.groups, contents.arrays):
        paths[:] = [path for path in paths if _find_table(path) not in tables]
    return dropped


def _count_most_bytes(options: ReadOptions) -> int:
    return _NO_LIMIT if options.memory_bytes is None else options.memory_bytes // _SHARE


def check_whole(options: ReadOptions, contents: Contents, path: str) -> None:
    """Raise `InputError` if a dataset that is not of the record cannot be read as a whole."""
    dataset = contents.file[path]
    if dataset.shape:
        _Hasher(contents.file, contents.name, _count_most_bytes(options)).check(dataset, path)
    elif (problem := find_scalar_obstacle(dataset)) is not None:
        raise InputError(contents.name, problem, place=f"dataset {path!r}")


def hash_others(input_file: InputFile, options: ReadOptions) -> dict[str, str]:
    most_bytes = _count_most_bytes(options)
    with looking_into(input_file) as contents:
        others = _list_others(contents, find_records(contents, options).values())
        for path in sorted({*others} ^ {*(OTHERS.of(options) or ())}):
            problem = f"has {'a' if path in others else 'no'} dataset {path!r}, unlike the first input"
            raise InputError(input_file.name, problem, remedy=LEAVE_OUT)
        hasher = _Hasher(contents.file, input_file.name, most_bytes)
        return {path: hasher.hash(path) for path in others}


def check_same(
    union: MetadataUnion, hashes: Mapping[str, str], first: Mapping[str, str], first_name: str, name: str
) -> None:
    """Raise `InputError` if the other datasets of two inputs differ, by their hashes; a lenient union takes a note.

    Lists of labels are left to the union.
    """
    for path in hashes:
        if hashes[path] == first[path] or (
            weigh(path.rpartition("/")[2]) is Weight.LABELS
            and all(_LIST_OF_TEXTS.match(each) for each in (first[path], hashes[path]))
        ):
            continue
        if union.is_lenient:
            union.note(MetadataKey("dataset", (path,), ""), first[path], hashes[path], name)
            continue
        problem = f"differs from that in {first_name}, and every shard repeats only one"
        same = f"{SAME_VARIABLES}, " if is_of_variables(path) or "/features/" in path else ""
        remedy = f"{same}{LEAVE_OUT}, or give --first-metadata for those of the first input"
        raise InputError(name, problem, place=f"dataset {path!r}", remedy=remedy)


def _list_others(contents: Contents, records: Iterable[str]) -> tuple[str, ...]:
    taken = set(records)
    every = (*contents.arrays, *contents.nulls)
    return tuple(path for path in every if path not in taken and _find_table(path) not in taken)


def _find_table(path: str) -> str | None:
    """Return the path of the table that PyTables describes at a path; None if there is none."""
    parts = _INDEX.match(path)
    return parts and parts[1] + parts[2]


class _Hasher:
    """Hashes datasets of a file one after the other, as long as all fit a number of bytes."""

    def __init__(self, file: h5py.File, name: str, most_bytes: int) -> None:
        self._file = file
        self._name = name
        self._stamp = read_stamp(file)
        self._most_bytes = most_bytes
        self._byte_count = 0

    def hash(self, path: str) -> str:
        """Return the hash of type, shape and values of a dataset, and check its storage first."""
        dataset, digest = self._file[path], xxhash.xxh3_128()
        with reading(self._name, f"dataset {path!r}"):
            tid = dataset.id.get_type()
            if dataset.shape is None:
                return f"{describe_type(tid)} null"
            self.check(dataset, path)
            for _, values, _ in read_pieces(dataset.id, tid):
                for part in _list_bytes(values):
                    digest.update(part)
                    self._byte_count += memoryview(part).nbytes
                self._check_size(0)
            return f"{describe_type(tid)} {dataset.shape} {digest.hexdigest()}"

    def check(self, dataset: h5py.Dataset, path: str) -> None:
        check_access(dataset.id, path, self._name)
        tid = dataset.id.get_type()
        problem = find_copy_obstacle(tid)
        if problem:
            raise InputError(self._name, problem, place=f"dataset {path!r}", remedy=LEAVE_OUT)
        column, storage = read_column(dataset.id, path), read_storage(dataset.id, path)
        self._check_size(max(prod(dataset.shape) * tid.get_size(), storage.chunk_bytes, storage.stored_bytes))
        check_chunks(dataset.id, path, self._name, self._stamp.size)
        if column.kind is not Kind.FIXED and not column.row_shape:
            guard = ValueGuard(self._file, content_of(self._file), dataset.id, column, self._name)
            guard.check(0, dataset.shape[0], SizeLimit(self._most_bytes, "--memory"))

    def _check_size(self, byte_count: int) -> None:
        """Raise `InputError` if these bytes, with all before, are too many."""
        if self._byte_count + byte_count > self._most_bytes:
            problem = f"the datasets of other lengths hold more than the {self._most_bytes} bytes that fit"
            raise InputError(self._name, problem, remedy=f"raise --memory, or {LEAVE_OUT}")


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
        if items:
            yield from (
                [b"".join(items)] if isinstance(items[0], bytes) else _list_bytes(np.concatenate(items))
            )
