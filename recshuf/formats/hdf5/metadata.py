"""What an HDF5 file says beside its records: attributes, scalars, and lists of the names of labels."""

from __future__ import annotations

from contextlib import suppress
from functools import cache, lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from h5py import h5, h5a, h5d, h5o, h5s, h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.attributes import BOOKKEEPING
from recshuf.formats.hdf5.contents import reading
from recshuf.formats.hdf5.roles import SHAPE
from recshuf.formats.hdf5.types import find_copy_obstacle, find_dtype, holds_variable_length
from recshuf.formats.meaning import Weight, describe, is_counted, weigh
from recshuf.interfaces import MetadataKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from recshuf.formats.hdf5.contents import Contents


_KNOWN_VALUES, _KNOWN_BYTES = 1 << 10, 1 << 10
"""Values whose texts are kept, as many files say the same, and the most bytes of one."""


class MetadataReader:
    """Reads what files say.

    `copies` are datasets that every shard repeats; `check_whole` raises an `InputError` for others that cannot be read.
    """

    def __init__(self, copies: Collection[str], check_whole: Callable[[Contents, str], object]) -> None:
        self._copies = copies
        self._check_whole = check_whole

    def read(
        self, contents: Contents, records: Mapping[str, str], *, is_whole: bool = False
    ) -> dict[MetadataKey, str]:
        """Return what an open file says of some datasets of the record, by its name and path, and of all records.

        What belongs to other datasets only is left out, unless it `is_whole`: the attributes and scalars of groups that hold
        no dataset of the record, but others.
        """
        taken, sparse = {*records.values()}, {matrix.path for matrix in contents.matrices.values()}
        others = [path for path in contents.arrays if path not in taken]
        left_out = [path for path in others if path not in self._copies]
        foreign = _list_folders(left_out) - _list_folders([*records.values(), *self._copies])

        def is_ours(path: str) -> bool:
            return is_whole or not foreign or foreign.isdisjoint(_list_folders([f"{path}/"]))

        owners = [("file", "", "")]
        owners += [("group", path, path) for path in contents.groups if is_ours(path)]
        owners += [("dataset", name, path) for name, path in records.items()]
        owners += [("dataset", path, path) for path in others if path in self._copies]
        wholes = [path for path in contents.scalars if is_counted(_leaf(path)) and is_ours(_folder(path))]
        wholes += [path for path in others if weigh(_leaf(path)) is Weight.LABELS and is_ours(_folder(path))]
        values: dict[MetadataKey, str] = {}
        for owner, name, path in owners:
            shown = (name,) if name else ()
            with reading(contents.name, repr(f"/{path}")):
                for key, text in _read_attributes(h5o.open(contents.file.id, _encode(f"/{path}"))):
                    if key != SHAPE or path not in sparse:  # which counts records
                        values[MetadataKey(owner, shown, key)] = text
        for path in wholes:
            with reading(contents.name, repr(path)), suppress(InputError):
                self._check_whole(contents, path)
                values |= _read_whole(h5d.open(contents.file.id, _encode(f"/{path}")), path)
        return values


@cache
def _is_passed_over(name: bytes) -> bool:
    shown = _decode(name)
    return shown in BOOKKEEPING or not is_counted(shown)


def is_list_of_labels(dataset: h5d.DatasetID, path: str) -> bool:
    """Tell whether a dataset that is not of the record is a list of the names of labels, by its name and type."""
    is_text = dataset.get_type().get_class() == h5t.STRING
    return bool(len(dataset.shape or ()) == 1 and is_text and weigh(_leaf(path)) is Weight.LABELS)


def _read_whole(dataset: h5d.DatasetID, path: str) -> Iterator[tuple[MetadataKey, str]]:
    """Yield the values of a scalar or a list of labels, and its attributes."""
    if dataset.shape and not is_list_of_labels(dataset, path):
        return
    text = _describe(dataset, lambda values, kind: dataset.read(h5s.ALL, h5s.ALL, values, kind))
    if text is not None:
        yield MetadataKey("dataset", (path,), ""), text
    for key, inner in _read_attributes(dataset):
        yield MetadataKey("dataset", (path,), key), inner


def _read_attributes(owner: Any) -> Iterator[tuple[str, str]]:
    """Yield name and text of each attribute of an object, without those that hold references."""
    names: list[bytes] = []
    h5a.iterate(owner, names.append, order=h5.ITER_NATIVE)  # as they were written, where the file tells
    for name in names:
        text = None if _is_passed_over(name) else _describe_attribute(owner, name)
        if text is not None:
            yield _decode(name), text


def _describe_attribute(owner: Any, name: bytes) -> str | None:
    attribute = h5a.open(owner, name)
    return _describe(attribute, attribute.read)


def _describe(source: h5a.AttrID | h5d.DatasetID, read: Callable[[Any, Any], object]) -> str | None:
    """Return the text of all values; None if they are references, or have a type that is not copied."""
    tid, shape = source.get_type(), source.shape
    if shape is None:
        return describe(None)
    if tid.detect_class(h5t.REFERENCE):
        return None
    if holds_variable_length(tid):
        if find_copy_obstacle(tid):
            return None
        values: Any = np.zeros(shape, tid.dtype)
        read(values, h5t.py_create(values.dtype))
        return describe(values)
    raw = np.zeros(prod(shape) * tid.get_size(), np.uint8)
    read(raw, tid)
    describe_raw = _describe_raw if raw.size <= _KNOWN_BYTES else _describe_raw.__wrapped__
    return describe_raw(tid.encode(), shape, raw.tobytes())


@lru_cache(_KNOWN_VALUES)
def _describe_raw(type_code: bytes, shape: tuple[int, ...], raw: bytes) -> str:
    dtype = find_dtype(h5t.decode(type_code))
    return describe(raw.hex() if dtype is None else np.frombuffer(raw, dtype).reshape(shape))


def _list_folders(paths: Any) -> set[str]:
    """Return all groups that some paths lead through, without the first one."""
    folders: set[str] = set()
    for path in paths:
        while path := _folder(path):
            folders.add(path)
    return folders


def _folder(path: str) -> str:
    return path.rpartition("/")[0]


def _leaf(path: str) -> str:
    return path.rpartition("/")[2]


def _decode(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _encode(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
