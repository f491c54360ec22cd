"""What an HDF5 file says beside its records: attributes, scalars, and lists of the names of labels."""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from h5py import h5a, h5d, h5o, h5s, h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5.attributes import BOOKKEEPING
from recshuf.formats.hdf5.opening import reading
from recshuf.formats.hdf5.types import find_copy_obstacle, find_dtype, holds_variable_length
from recshuf.formats.metadata import Weight, describe, is_counted, weigh
from recshuf.interfaces import MetadataKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from recshuf.formats.hdf5.contents import Contents


_KNOWN_VALUES = 1 << 12


def read_metadata(
    contents: Contents,
    records: Mapping[str, str],
    copies: Collection[str],
    check_whole: Callable[[str], object],
) -> dict[MetadataKey, str]:
    """Return what an open file says of some datasets of the record, by its name and path, and of all records.

    What belongs to other datasets only is left out: the attributes and scalars of groups that hold no dataset of the record, but
    others.

    Parameters
    ----------
    copies
        Datasets that every shard repeats.
    check_whole
        Checks whether a dataset that is not of the record can be read, and raises an `InputError` if not.
    """
    taken = {*records.values()}
    others = [path for path in contents.arrays if path not in taken]
    foreign = _list_folders(others) - _list_folders(records.values())

    def is_ours(path: str) -> bool:
        return not foreign or foreign.isdisjoint(_list_folders([f"{path}/"]))

    values: dict[MetadataKey, str] = {}
    owners = [("file", "", "")]
    owners += [("group", path, path) for path in contents.groups if is_ours(path)]
    owners += [("dataset", name, path) for name, path in records.items()]
    owners += [("dataset", path, path) for path in others if path in copies]
    wholes = [path for path in contents.scalars if is_counted(_leaf(path)) and is_ours(_folder(path))]
    wholes += [path for path in others if weigh(_leaf(path)) is Weight.LABELS and is_ours(_folder(path))]
    for owner, name, path in owners:
        with reading(contents.name, repr(f"/{path}")):
            found = h5o.open(contents.file.id, _encode(f"/{path}"))
            shown = (name,) if name else ()
            for key, text in _read_attributes(found):
                values[MetadataKey(owner, shown, key)] = text
    for path in wholes:
        with reading(contents.name, repr(path)), suppress(InputError):
            check_whole(path)
            dataset = h5d.open(contents.file.id, _encode(f"/{path}"))
            values |= _read_whole(dataset, path)
    return values


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
    h5a.iterate(owner, names.append)
    for encoded in names:
        name = encoded.decode("utf-8", "surrogateescape")
        if name not in BOOKKEEPING and is_counted(name):
            attribute = h5a.open(owner, encoded)
            text = _describe(attribute, attribute.read)
            if text is not None:
                yield name, text


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
    return _describe_raw(tid.encode(), shape, raw.tobytes())


@lru_cache(_KNOWN_VALUES)
def _describe_raw(type_code: bytes, shape: tuple[int, ...], raw: bytes) -> str:
    """Return the text of values of a type of fixed size; the same are in many files."""
    dtype = find_dtype(h5t.decode(type_code))
    if dtype is None or dtype.hasobject:
        return describe(raw.hex())
    return describe(np.frombuffer(raw, dtype).reshape(shape))


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


def _encode(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
