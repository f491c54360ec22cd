"""Thrift in the compact protocol, which footers and page headers of Parquet are written in.

A struct is its fields and a zero byte. A field is a byte, the step from the number of the field before above and its
type below, then its value; a number is a varint of seven bits a byte, zigzag; a list is a byte, its length above and
the type of its items below, then these (https://github.com/apache/thrift, doc/specs/thrift-compact-protocol.md).
"""

from __future__ import annotations

TRUE, FALSE, BYTE, INT16, INT32, INT64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)


class Struct:
    """What is of use of a struct, by the number of the field."""

    __slots__ = ("numbers", "structs")

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.structs: dict[int, Struct] = {}


class ThriftReader:
    """Bytes in the compact protocol, and how far they have been read.

    Every method raises `IndexError` where the bytes end too early or a type is unknown, and `RecursionError` where they
    nest too deep.
    """

    def __init__(self, data: bytes, place: int = 0) -> None:
        self._data = data
        self.place = place
        """Of the next byte."""

    def read_struct(self) -> Struct:
        """Read the fields of a struct up to its end."""
        found = Struct()
        data, field = self._data, 0
        # As `read_field`, with few calls: there is a header for each page, and row groups may be tiny.
        while kind := (head := data[self.place]) & 15:
            self.place += 1
            field = field + (head >> 4) if head > 15 else self.read_number()
            if kind <= FALSE:
                continue
            if kind == STRUCT:
                found.structs[field] = self.read_struct()
            elif INT16 <= kind <= INT64:
                if (byte := data[self.place]) < 0x80:
                    self.place += 1
                    found.numbers[field] = byte >> 1 ^ -(byte & 1)
                else:
                    found.numbers[field] = self.read_number()
            elif kind == BINARY and (size := data[self.place]) < 0x80:
                self.place += 1 + size
            else:
                self.skip(kind)
        self.place += 1
        return found

    def read_field(self, before: int) -> tuple[int, int]:
        """Read number and type of the field after the one with number `before`; type 0 is the end of a struct."""
        head = self._read_byte()
        step, kind = head >> 4, head & 15
        if not kind:
            return 0, 0
        return before + step if step else self.read_number(), kind

    def read_list(self) -> tuple[int, int]:
        """Read how many items a list has, and their type."""
        head = self._read_byte()
        count = head >> 4
        return (self._read_varint() if count == 15 else count), head & 15

    def read_number(self) -> int:
        """Read the value of a field that is a whole number."""
        byte = self._data[self.place]
        if byte < 0x80:
            self.place += 1
            number = byte
        else:
            number = self._read_varint()
        return number >> 1 ^ -(number & 1)

    def skip(self, kind: int) -> None:
        """Go past the value of a field of that type."""
        if INT16 <= kind <= INT64:
            self._read_varint()
        elif kind == BYTE:
            self.place += 1
        elif kind == DOUBLE:
            self.place += 8
        elif kind == BINARY:
            size = self._read_varint()
            self.place += size
        elif kind in (LIST, SET):
            count, inner = self.read_list()
            for _ in range(count):
                self._skip_item(inner)
        elif kind == MAP:
            self._skip_map()
        elif kind == STRUCT:
            self.read_struct()
        elif kind not in (TRUE, FALSE):
            raise IndexError

    def _skip_map(self) -> None:
        count = self._read_varint()
        kinds = self._read_byte() if count else 0
        for _ in range(count):
            self._skip_item(kinds >> 4)
            self._skip_item(kinds & 15)

    def _skip_item(self, kind: int) -> None:
        # Truth values are part of the head of a field, but bytes of their own in a list.
        if kind in (TRUE, FALSE):
            self._read_byte()
        else:
            self.skip(kind)

    def _read_varint(self) -> int:
        byte = self._data[self.place]
        self.place += 1
        if byte < 0x80:
            return byte
        number, shift = byte & 0x7F, 7
        while (byte := self._read_byte()) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
        return number | byte << shift

    def _read_byte(self) -> int:
        byte = self._data[self.place]
        self.place += 1
        return byte


def encode_number(number: int) -> bytes:
    r"""Return the value of a field that is a whole number.

    >>> encode_number(-1), encode_number(150)
    (b'\x01', b'\xac\x02')
    """
    return _encode_varint(number << 1 if number >= 0 else ~number << 1 | 1)


def encode_list(count: int, kind: int) -> bytes:
    r"""Return what the items of a list come behind.

    >>> encode_list(2, STRUCT), encode_list(15, STRUCT)
    (b',', b'\xfc\x0f')
    """
    return bytes((count << 4 | kind,)) if count < 15 else bytes((0xF0 | kind,)) + _encode_varint(count)


def _encode_varint(number: int) -> bytes:
    """Return a number that is not negative, seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
