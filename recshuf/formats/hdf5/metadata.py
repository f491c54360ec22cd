"""What an HDF5 file says beside its records: attributes, scalars, and lists of the names of labels.

Attributes whose bytes in an object header are those of a file before need no call of the library. Each object of h5py costs some
20 us, and an attribute takes five: 8 attributes made 10,000 small files a quarter slower. What is not of the usual layout, or
damaged, is left to the library. A header is followed by its messages, of which some are attributes::

    1, 0, count, references | size, 0 || type, size, flags, 0 | message || ...
    OHDR, 2, flags | times | phases | size || type, size, flags | order | message || ...

An attribute has its name, type and dataspace before its values, padded to words in the oldest version. Values of variable
length are numbers: a length, the address of a heap (see `chunks`), and an index in it.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from math import prod
from struct import Struct, error
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from h5py import h5a, h5d, h5o, h5s, h5t

from recshuf.errors import InputError
from recshuf.formats.hdf5 import SIGNATURE
from recshuf.formats.hdf5.attributes import BOOKKEEPING
from recshuf.formats.hdf5.contents import ObjectHdf5, content_of, reading
from recshuf.formats.hdf5.roles import SHAPE
from recshuf.formats.hdf5.types import find_copy_obstacle, find_dtype, holds_variable_length
from recshuf.formats.meaning import Weight, describe, is_counted, weigh
from recshuf.interfaces import MetadataKey

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

    from recshuf.formats.hdf5.contents import Contents


_KNOWN_VALUES = 1 << 12
_CONTINUATION, _ATTRIBUTE, _ATTRIBUTE_INFO = 0x10, 0x0C, 0x15
_SHARED = 0x02
_NOWHERE = b"\xff" * 8
_FIXED_CLASSES = {0, 1, 2, 3, 4, 5, 8}
_VARIABLE_CLASS = 9
_MESSAGE_1, _MESSAGE_2, _BLOCK = Struct("<HHB3x"), Struct("<BHB"), Struct("<QQ")
_ATTRIBUTE_HEAD, _VALUE, _HEAP_OBJECT = Struct("<BBHHH"), Struct("<IQI"), Struct("<HHIQ")
_HEADER_BYTES = 512
_MOST_BLOCKS = 64
_LARGEST_BLOCK = 1 << 24
_MOST_BYTES = 1 << 62


class MetadataReader:
    """Reads what files say; what several of them say in the same bytes is described once.

    `copies` are datasets that every shard repeats; `check_whole` raises an `InputError` for others that cannot be read.
    """

    def __init__(self, copies: Collection[str], check_whole: Callable[[Contents, str], object]) -> None:
        self._copies = copies
        self._check_whole = check_whole
        self._texts: dict[bytes, str | None] = {}

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
        headers = _open_headers(contents)
        addresses = {path: address for address, path in contents.addresses.items()} if headers else {}
        for owner, name, path in owners:
            shown = (name,) if name else ()
            with reading(contents.name, repr(f"/{path}")):
                raw = headers.list_attributes(addresses[path], _is_passed_over) if headers else None
                for key, text in self._read_attributes(contents, path, raw):
                    if key != SHAPE or path not in sparse:  # which counts records
                        values[MetadataKey(owner, shown, key)] = text
        for path in wholes:
            with reading(contents.name, repr(path)), suppress(InputError):
                self._check_whole(contents, path)
                values |= _read_whole(h5d.open(contents.file.id, _encode(f"/{path}")), path)
        return values

    def _read_attributes(
        self, contents: Contents, path: str, raw: list[RawAttribute] | None
    ) -> Iterator[tuple[str, str]]:
        """Yield name and text of the attributes of an object; those in its header are read only if they are new."""
        owner = None
        if raw is None:
            yield from _read_attributes(h5o.open(contents.file.id, _encode(f"/{path}")))
            return
        for name, content in raw:
            if content not in self._texts:
                owner = owner or h5o.open(contents.file.id, _encode(f"/{path}"))
                if len(self._texts) > _KNOWN_VALUES:
                    self._texts.clear()
                self._texts[content] = _describe_attribute(owner, name)
            text = self._texts[content]
            if text is not None:
                yield _decode(name), text


def _open_headers(contents: Contents) -> HeaderReader | None:
    """Return what reads the headers of a local file; None for objects, and for addresses that are no places in the file."""
    if isinstance(contents.file, ObjectHdf5):
        return None
    read = content_of(contents.file).read_at
    head = read(0, 16)
    address_bytes = head[13 if head[8] < 2 else 9]
    return HeaderReader(read) if head.startswith(SIGNATURE) and address_bytes == 8 else None


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
    h5a.iterate(owner, names.append)
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
    dtype = find_dtype(tid)
    return describe(raw.tobytes().hex() if dtype is None else raw.view(dtype).reshape(shape))


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


class RawAttribute(NamedTuple):
    """An attribute in a header."""

    name: bytes
    content: bytes
    """Equal for attributes of the same name, type, shape and values."""


class HeaderReader:
    """Reads object headers of one file; `read` returns up to so many bytes from a place in it on."""

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read_at = read
        self._heaps: dict[int, dict[int, bytes]] = {}

    def list_attributes(self, address: int, skips: Callable[[bytes], bool]) -> list[RawAttribute] | None:
        """Return the attributes of the object at an address, without those to skip by name; None if they lie elsewhere."""
        try:
            attributes: list[RawAttribute] = []
            for kind, flags, message in self._list_messages(address):
                if kind == _ATTRIBUTE_INFO and message[4 if message[1] & 1 else 2 :][:8] != _NOWHERE:
                    return None
                if kind == _ATTRIBUTE:
                    if flags & _SHARED:
                        return None
                    raw = self._cut(message, skips)
                    if raw is None:
                        return None
                    attributes += [raw] if raw.name else []
        except (error, IndexError, KeyError):
            return None
        return attributes

    def _read(self, place: int, size: int) -> bytes:
        """Return bytes of a file; `IndexError` if they cannot be there, as in a damaged one."""
        if place > _MOST_BYTES or size > _LARGEST_BLOCK:
            raise IndexError
        return self._read_at(place, size)

    def _list_messages(self, address: int) -> Iterator[tuple[int, int, bytes]]:
        head = self._read(address, _HEADER_BYTES)
        if head[:4] == b"OHDR":
            flags = head[5]
            start = 6 + 16 * bool(flags & 0x20) + 4 * bool(flags & 0x10)
            width = 1 << (flags & 3)
            size = int.from_bytes(head[start : start + width], "little")
            blocks = [(address + start + width, size)]
            struct, gap, frame = _MESSAGE_2, 2 * bool(flags & 4), 4
        elif head[:1] == b"\1":
            blocks = [(address + 16, int.from_bytes(head[8:12], "little"))]
            struct, gap, frame = _MESSAGE_1, 0, 0
        else:
            raise IndexError
        for begin, size in blocks:
            offset = begin - address
            data = (
                head[offset : offset + size]
                if offset >= 0 and offset + size <= len(head)
                else self._read(begin, size)
            )
            if len(data) < size:
                raise IndexError
            place = 0
            while place + struct.size <= len(data):
                kind, length, flags = struct.unpack_from(data, place)
                place += struct.size + gap
                message = data[place : place + length]
                place += length
                if kind == _CONTINUATION:
                    there, room = _BLOCK.unpack_from(message)
                    # Later blocks of the newer layout have a signature and a checksum around.
                    blocks.append((there + frame, room - 2 * frame))
                    if len(blocks) > _MOST_BLOCKS:
                        raise IndexError
                else:
                    yield kind, flags, message

    def _cut(self, message: bytes, skips: Callable[[bytes], bool]) -> RawAttribute | None:
        """Return an attribute, one without a name if it is to be skipped; None if its values lie elsewhere in an unknown way."""
        version, flags, name_bytes, type_bytes, space_bytes = _ATTRIBUTE_HEAD.unpack_from(message)
        if version == 1:
            begin, step = 8, 8
        elif version in (2, 3) and not flags:
            begin, step = (8 if version == 2 else 9), 1
        else:
            return None
        name = message[begin : begin + name_bytes].rstrip(b"\0")
        if skips(name):
            return RawAttribute(b"", b"")
        kind = begin + -(-name_bytes // step) * step
        type_class = message[kind] & 0xF
        if type_class in _FIXED_CLASSES:
            return RawAttribute(name, message)
        if type_class != _VARIABLE_CLASS or message[kind + 8] & 0xF not in _FIXED_CLASSES:
            return None
        values = kind + -(-type_bytes // step) * step + -(-space_bytes // step) * step
        parts = [message[:values]]
        for place in range(values, len(message) - _VALUE.size + 1, _VALUE.size):
            length, heap, index = _VALUE.unpack_from(message, place)
            parts += [length.to_bytes(4, "little"), self._read_heap(heap)[index] if length else b""]
        return RawAttribute(name, b"".join(parts))

    def _read_heap(self, address: int) -> dict[int, bytes]:
        if address not in self._heaps:
            size = int.from_bytes(self._read(address + 8, 8), "little")
            data = self._read(address, size)
            objects: dict[int, bytes] = {}
            place = 16
            while place + _HEAP_OBJECT.size <= len(data):
                index, _, _, length = _HEAP_OBJECT.unpack_from(data, place)
                if not index:
                    break
                place += _HEAP_OBJECT.size
                objects[index] = data[place : place + length]
                place += -(-length // 8) * 8
            self._heaps[address] = objects
        return self._heaps[address]
