"""The Thrift compact protocol, the encoding of Parquet footers and page headers.

A struct is its fields and a zero byte. A field is a byte and its value; the high half of the byte is the difference to
the number of the field before, the low half the type. A number is a zigzag varint of seven bits per byte. A list is a
byte, with its length in the high half and the type of its items in the low half, and the items (https://github.com/apache/thrift, doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

from typing import NamedTuple

TRUE, FALSE, BYTE, INT16, INT32, INT64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_SIZES = {TRUE: 0, FALSE: 0, BYTE: 1, DOUBLE: 8}
RawFields = dict[int, tuple[int, bytes]]
"""The type and the encoded value of each field of a struct, by field number."""


class Struct(NamedTuple):
    """The numbers, booleans among them, and the structs in a struct, by field number."""

    numbers: dict[int, int]
    structs: dict[int, Struct]


class ThriftReader:
    """Reads bytes in the compact protocol.

    Every method raises `IndexError` if the bytes end too early or a type is unknown, and `RecursionError` if structs nest
    too deep.
    """

    def __init__(self, data: bytes, place: int = 0) -> None:
        self._data = data
        self.place = place
        """Offset of the next byte."""

    def read_struct(self) -> Struct:
        struct = Struct({}, {})
        field, kind = self.read_field(0)
        while kind:
            if kind == STRUCT:
                struct.structs[field] = self.read_struct()
            elif INT16 <= kind <= INT64:
                struct.numbers[field] = self.read_number()
            elif kind <= FALSE:
                struct.numbers[field] = int(kind == TRUE)
            else:
                self.skip(kind)
            field, kind = self.read_field(field)
        return struct

    def read_raw_fields(self) -> RawFields:
        """Read a struct up to its end, without decoding its fields."""
        fields: RawFields = {}
        field, kind = self.read_field(0)
        while kind:
            start = self.place
            self.skip(kind)
            fields[field] = kind, self._data[start : self.place]
            field, kind = self.read_field(field)
        return fields

    def read_field(self, before: int) -> tuple[int, int]:
        """Read number and type of the field after the one with number `before`; type 0 is the end of a struct."""
        head = self._data[self.place]
        self.place += 1
        step, kind = head >> 4, head & 15
        if not kind:
            return 0, 0
        return before + step if step else self.read_number(), kind

    def find_list(self, wanted: int) -> int:
        """Go to the first item of a list that a struct has as a field, and return how many it has; 0 without such a field."""
        field, kind = self.read_field(0)
        while kind and (field, kind) != (wanted, LIST):
            self.skip(kind)
            field, kind = self.read_field(field)
        return self.read_list()[0] if kind else 0

    def read_list(self) -> tuple[int, int]:
        """Read how many items a list has, and their type."""
        head = self._read_byte()
        count = head >> 4
        return (self._read_varint() if count == 15 else count), head & 15

    def read_number(self) -> int:
        number = self._read_varint()
        return number >> 1 ^ -(number & 1)

    def skip(self, kind: int) -> None:
        if INT16 <= kind <= INT64:
            self._read_varint()
        elif kind in _SIZES:
            self.place += _SIZES[kind]
        elif kind == BINARY:
            size = self._read_varint()  # moves the place
            self.place += size
        elif kind in (LIST, SET):
            count, inner = self.read_list()
            for _ in range(count):
                self._skip_item(inner)
        elif kind == MAP:
            count = self._read_varint()
            kinds = self._read_byte() if count else 0
            for _ in range(count):
                self._skip_item(kinds >> 4)
                self._skip_item(kinds & 15)
        elif kind == STRUCT:
            self.read_struct()
        else:
            raise IndexError

    def _skip_item(self, kind: int) -> None:
        # Booleans are part of the head of a field, but separate bytes in a list.
        if kind in (TRUE, FALSE):
            self._read_byte()
        else:
            self.skip(kind)

    def _read_varint(self) -> int:
        data, place = self._data, self.place
        number = shift = 0
        while (byte := data[place]) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            place += 1
        self.place = place + 1
        return number | byte << shift

    def _read_byte(self) -> int:
        byte = self._data[self.place]
        self.place += 1
        return byte


def encode_number(number: int) -> bytes:
    r"""Return an encoded integer.

    >>> encode_number(-1), encode_number(150)
    (b'\x01', b'\xac\x02')
    """
    return _encode_varint(number << 1 if number >= 0 else ~number << 1 | 1)


def encode_list(count: int, kind: int) -> bytes:
    r"""Return the head of a list, which precedes its items.

    >>> encode_list(2, STRUCT), encode_list(15, STRUCT)
    (b',', b'\xfc\x0f')
    """
    return bytes((count << 4 | kind,)) if count < 15 else bytes((0xF0 | kind,)) + _encode_varint(count)


def encode_fields(fields: RawFields) -> bytes:
    r"""Return an encoded struct.

    >>> encode_fields({1: (INT32, encode_number(-1)), 20: (TRUE, b"")})
    b'\x15\x01\x01(\x00'
    """
    encoded, before = bytearray(), 0
    for field, (kind, value) in sorted(fields.items()):
        step = field - before
        encoded += bytes((step << 4 | kind,)) if step < 16 else bytes((kind,)) + encode_number(field)
        encoded += value
        before = field
    return bytes(encoded) + b"\0"


def _encode_varint(number: int) -> bytes:
    """Return a non-negative number, seven bits per byte, lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
