"""The attributes in an object header, as bytes: those that are the same as in a file before need no call of the library.

Each object of h5py costs some 20 us, and an attribute takes five: 8 attributes made 10,000 small files a quarter slower. What is
not of the usual layout, or damaged, is left to the library. A header is followed by its messages, of which some are attributes::

    1, 0, count, references | size, 0 || type, size, flags, 0 | message || ...
    OHDR, 2, flags | times | phases | size || type, size, flags | order | message || ...

An attribute has its name, type and dataspace before its values, padded to words in the oldest version. Values of variable
length are numbers: a length, the address of a heap (see `heap`), and an index in it.
"""

from __future__ import annotations

from struct import Struct, error
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


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


class RawAttribute(NamedTuple):
    """An attribute in a header."""

    name: bytes
    content: bytes
    """Equal for attributes of the same name, type, shape and values."""


class HeaderReader:
    """Reads object headers of one file.

    Parameters
    ----------
    read
        Returns up to so many bytes from a place in the file on.
    """

    def __init__(self, read: Callable[[int, int], bytes]) -> None:
        self._read_at = read
        self._heaps: dict[int, dict[int, bytes]] = {}

    def list_attributes(self, address: int, skips: Callable[[bytes], bool]) -> list[RawAttribute] | None:
        """Return the attributes of the object at an address, without those to skip by name; None if they lie elsewhere."""
        try:
            found = []
            for kind, flags, message in self._list_messages(address):
                if kind == _ATTRIBUTE_INFO and message[4 if message[1] & 1 else 2 :][:8] != _NOWHERE:
                    return None
                if kind == _ATTRIBUTE:
                    if flags & _SHARED:
                        return None
                    raw = self._cut(message, skips)
                    if raw is None:
                        return None
                    found += [raw] if raw.name else []
        except (error, IndexError, KeyError):
            return None
        return found

    def _read(self, place: int, size: int) -> bytes:
        """Return bytes of a file; `IndexError` if they cannot be there, as in a damaged one."""
        if place > _MOST_BYTES or size > _LARGEST_BLOCK:
            raise IndexError
        return self._read_at(place, size)

    def _list_messages(self, address: int) -> Iterator[tuple[int, int, bytes]]:
        """Yield type, flags and content of each message."""
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
        """Return the objects of a heap by their index."""
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
