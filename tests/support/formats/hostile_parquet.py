"""Parquet files put together by hand, with a thrift writer of our own: what no library would write.

Values are ``(type, value)`` pairs of the compact protocol; a struct is a dict of field number and value.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, MAP, STRUCT = 1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 12
INT64 = 2
PLAIN, RLE = 0, 3
CODECS = {"none": 0, "zstd": 6}
_DATA_PAGE = 0

Value = tuple[int, Any]
Struct = dict[int, Value]


def varint(number: int) -> bytes:
    """Return an unsigned integer in 7-bit groups."""
    groups = []
    while number > 0x7F:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*groups, number])


def _encode(kind: int, value: Any) -> bytes:
    if kind in (I16, I32, I64):
        return varint(value << 1 if value >= 0 else ~(value << 1))
    if kind in (TRUE, FALSE):
        return b""
    if kind == BYTE:
        return bytes([value])
    if kind == BINARY:
        return varint(len(value)) + value
    if kind == STRUCT:
        return encode_struct(value)
    if kind in (DOUBLE, MAP):
        return bytes(value)  # encoded already
    return encode_list(*value)


def encode_struct(fields: Struct) -> bytes:
    """Return a struct in the compact protocol."""
    parts, last = [], 0
    for number, (kind, value) in sorted(fields.items()):
        step = number - last
        head = bytes([step << 4 | kind]) if step < 16 else bytes([kind]) + _encode(I32, number)
        parts.append(head + _encode(kind, value))
        last = number
    return b"".join(parts) + b"\0"


def encode_list(kind: int, values: list[Any], claimed: int | None = None) -> bytes:
    """Return a list in the compact protocol, which may claim another length than it has."""
    size = len(values) if claimed is None else claimed
    head = bytes([size << 4 | kind]) if size < 15 else bytes([0xF0 | kind]) + varint(size)
    return head + b"".join(_encode(kind, value) for value in values)


def _decode_varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while data[place] > 0x7F:
        number |= (data[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return number | data[place] << shift, place + 1


def _decode(kind: int, data: bytes, place: int) -> tuple[Any, int]:
    if kind in (TRUE, FALSE):
        return None, place
    if kind == BYTE:
        return data[place], place + 1
    if kind == STRUCT:
        return decode_struct(data, place)
    if kind == LIST:
        head, place = data[place], place + 1
        size, place = _decode_varint(data, place) if head >> 4 == 15 else (head >> 4, place)
        values = []
        for _ in range(size):
            value, place = _decode(head & 15, data, place)
            values.append(value)
        return (head & 15, values), place
    number, place = _decode_varint(data, place)
    if kind == BINARY:
        return data[place : place + number], place + number
    return number >> 1 ^ -(number & 1), place


def decode_struct(data: bytes, place: int = 0) -> tuple[Struct, int]:
    """Return a struct in the compact protocol, and where it ends."""
    fields: Struct = {}
    number = 0
    while kind := data[place] & 15:
        step, place = data[place] >> 4, place + 1
        if step:
            number += step
        else:
            number, place = _decode(I32, data, place)
        value, place = _decode(kind, data, place)
        fields[number] = (kind, value)
    return fields, place + 1


def edit_footer(path: Path, change: Callable[[Struct], None]) -> None:
    """Change the footer of a file; `change` gets `FileMetaData` of parquet.thrift."""
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    metadata, _ = decode_struct(data, start)
    change(metadata)
    path.write_bytes(wrap(data[4:start], encode_struct(metadata)))


def edit_chunks(path: Path, change: Callable[[Struct], None]) -> None:
    """Change what the footer of a file says of each column chunk; `change` gets `ColumnMetaData` of parquet.thrift."""

    def change_all(metadata: Struct) -> None:
        for row_group in metadata[4][1][1]:
            for one in row_group[1][1][1]:
                change(one[3][1])

    edit_footer(path, change_all)


def elements_of(path: Path) -> dict[str, Struct]:
    """Return the elements of the schema of a file by their names."""
    data = path.read_bytes()
    metadata, _ = decode_struct(data, len(data) - 8 - int.from_bytes(data[-8:-4], "little"))
    return {element[4][1].decode(): element for element in metadata[2][1][1]}


def leaf(name: str, kind: int = INT64, *, repetition: int = 0) -> Struct:
    """Return the schema element of a column; `repetition` 0 is required, 1 optional, 2 repeated."""
    return {1: (I32, kind), 3: (I32, repetition), 4: (BINARY, name.encode())}


def group(name: str, children: int, *, repetition: int = 0) -> Struct:
    """Return the schema element of a group of columns."""
    return {3: (I32, repetition), 4: (BINARY, name.encode()), 5: (I32, children)}


def chunk(
    path: list[str],
    *,
    values: int,
    size: int,
    stored: int,
    offset: int = 4,
    kind: int = INT64,
    codec: str = "none",
) -> Struct:
    """Return a column chunk: bytes before compression, bytes stored, and where its data begin."""
    metadata: Struct = {
        1: (I32, kind),
        2: (LIST, (I32, [PLAIN, RLE])),
        3: (LIST, (BINARY, [part.encode() for part in path])),
        4: (I32, CODECS[codec]),
        5: (I64, values),
        6: (I64, size),
        7: (I64, stored),
        9: (I64, offset),
    }
    return {2: (I64, offset), 3: (STRUCT, metadata)}


def row_group(chunks: list[Struct], *, rows: int, size: int) -> Struct:
    """Return a row group."""
    return {1: (LIST, (STRUCT, chunks)), 2: (I64, size), 3: (I64, rows)}


def data_page(
    body: bytes, *, values: int, size: int, stored: int | None = None, encoding: int = PLAIN
) -> bytes:
    """Return a data page: `size` bytes before compression, which `body` need not have."""
    header: Struct = {1: (I32, values), 2: (I32, encoding), 3: (I32, RLE), 4: (I32, RLE)}
    claimed = len(body) if stored is None else stored
    return (
        encode_struct({1: (I32, _DATA_PAGE), 2: (I32, size), 3: (I32, claimed), 5: (STRUCT, header)}) + body
    )


def footer(schema: list[Struct], groups: list[Struct], *, rows: int, **claimed: int) -> bytes:
    """Return the metadata of a file; ``claimed_schema`` and ``claimed_groups`` are lengths to claim."""
    fields = {
        1: (I32, 1),
        2: (LIST, (STRUCT, schema, claimed.get("claimed_schema"))),
        3: (I64, rows),
        4: (LIST, (STRUCT, groups, claimed.get("claimed_groups"))),
        6: (BINARY, b"parquet-cpp-arrow version 1.0.0"),
    }
    return encode_struct(fields)


def wrap(data: bytes, metadata: bytes) -> bytes:
    """Return a whole file: pages, which begin at byte 4, and metadata."""
    return b"PAR1" + data + metadata + len(metadata).to_bytes(4, "little") + b"PAR1"
