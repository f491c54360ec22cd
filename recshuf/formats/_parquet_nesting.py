"""How deep the schema of a Parquet file nests, found before the library builds it: some versions do that recursively.

The footer is thrift in the compact protocol: a field is a byte, the step to its number above and its type below, then
its value; a list is a byte, its length above and the type below. The schema is the list in field 2, the groups and
columns in order, and a group tells in its field 5 how many of those behind it are its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats._parquet_file import explained

if TYPE_CHECKING:
    from pathlib import Path

_MOST_LEVELS = 100
_FEW_ELEMENTS = 1000
"""A schema of so few elements cannot nest deep enough to matter."""
_HEAD_BYTES = 32
_CHILDREN = 5
_BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 3, 7, 8, 9, 10, 11, 12
_NUMBERS = (4, 5, 6)


def check_nesting(name: str, path: Path, file_bytes: int) -> None:
    """Refuse a file whose schema nests too deep; what cannot be followed is left to the library to refuse.

    Raises
    ------
    InputError
        When the schema has more than 100 levels.
    """
    with explained(name), path.open("rb") as stream:
        stream.seek(file_bytes - 8)
        footer_bytes = int.from_bytes(stream.read(4), "little")
        stream.seek(max(0, file_bytes - 8 - footer_bytes))
        try:
            if _Compact(stream.read(min(footer_bytes, _HEAD_BYTES))).find_schema() <= _FEW_ELEMENTS:
                return
            stream.seek(max(0, file_bytes - 8 - footer_bytes))
            depth = _find_depth(_Compact(stream.read(footer_bytes)))
        except (IndexError, RecursionError):
            return
    if depth > _MOST_LEVELS:
        raise InputError(name, f"its schema nests more than {_MOST_LEVELS} levels deep")


def _find_depth(footer: _Compact) -> int:
    """Return how many levels there are, or one more than allowed."""
    open_groups: list[int] = []  # how many elements each group still lacks
    deepest = 0
    for _ in range(footer.find_schema()):
        if open_groups:
            open_groups[-1] -= 1
        if children := footer.read_children():
            open_groups.append(children)
        deepest = max(deepest, len(open_groups))
        while open_groups and open_groups[-1] <= 0:
            open_groups.pop()
        if deepest > _MOST_LEVELS:
            break
    return deepest


class _Compact:
    """Bytes in the compact protocol, and how far they have been read; `IndexError` where they end too early."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def find_schema(self) -> int:
        """Go to the first element of the schema and return how many there are; 0 where there is no schema."""
        field, kind = self._read_field(0)
        while kind and (field, kind) != (2, _LIST):
            self._skip(kind)
            field, kind = self._read_field(field)
        return self._read_list()[0] if kind else 0

    def read_children(self) -> int:
        """Read one element of the schema and return how many children it claims."""
        children = 0
        field, kind = self._read_field(0)
        while kind:
            if field == _CHILDREN and kind in _NUMBERS:
                number = self._read_varint()
                children = number >> 1 ^ -(number & 1)
            else:
                self._skip(kind)
            field, kind = self._read_field(field)
        return max(children, 0)

    def _read_field(self, before: int) -> tuple[int, int]:
        """Return number and type of the next field; type 0 is the end of a struct."""
        head = self._read_byte()
        step, kind = head >> 4, head & 15
        if not kind:
            return 0, 0
        if step:
            return before + step, kind
        number = self._read_varint()
        return number >> 1 ^ -(number & 1), kind

    def _read_list(self) -> tuple[int, int]:
        head = self._read_byte()
        count = head >> 4
        return (self._read_varint() if count == 15 else count), head & 15

    def _skip(self, kind: int) -> None:
        if kind in _NUMBERS:
            self._read_varint()
        elif kind == _BYTE:
            self._at += 1
        elif kind == _DOUBLE:
            self._at += 8
        elif kind == _BINARY:
            size = self._read_varint()
            self._at += size
        elif kind in (_LIST, _SET):
            self._skip_all(*self._read_list())
        elif kind == _MAP:
            self._skip_map()
        elif kind == _STRUCT:
            field, inner = self._read_field(0)
            while inner:
                self._skip(inner)
                field, inner = self._read_field(field)

    def _skip_map(self) -> None:
        count = self._read_varint()
        kinds = self._read_byte() if count else 0
        for _ in range(count):
            self._skip_item(kinds >> 4)
            self._skip_item(kinds & 15)

    def _skip_all(self, count: int, kind: int) -> None:
        for _ in range(count):
            self._skip_item(kind)

    def _skip_item(self, kind: int) -> None:
        # Truth values are part of the head of a field, but bytes of their own in a list.
        if kind in (1, 2):
            self._read_byte()
        else:
            self._skip(kind)

    def _read_varint(self) -> int:
        number = shift = 0
        while (byte := self._read_byte()) & 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
        return number | byte << shift

    def _read_byte(self) -> int:
        byte = self._data[self._at]
        self._at += 1
        return byte
