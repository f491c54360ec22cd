"""A reader of pile stores written from docs/store.md alone: it shares no code with recshuf."""

import base64
import io
import json
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import lz4.block
import numpy as np
import pyarrow as pa
import xxhash
import zstandard


class Row(NamedTuple):
    """A record, by what sorts it: key, number of its source, and row."""

    key: int
    source: int
    row: int
    name: str
    record: bytes | dict[str, Any]


def read_snapshot(store: Path) -> dict[str, Any]:
    """Return the newest whole snapshot."""
    for path in sorted(store.glob("snapshot-*.json"), key=lambda one: int(one.stem[9:]), reverse=True):
        digits, _, text = path.read_bytes().removesuffix(b"\n").partition(b" ")
        if digits == b"%016x" % xxhash.xxh3_64_intdigest(text):
            found: dict[str, Any] = json.loads(text)
            assert re.fullmatch(rf"snapshot-0*{found['snapshot']}\.json", path.name)
            assert found["version"] in (1, 2)
            assert found["order"] == 1
            return found
    raise AssertionError("no whole snapshot")


def read_store(store: Path) -> list[Row]:
    """Return all records in the order of epoch 0."""
    rows = [row for own in read_sets(store).values() for row in own]
    return sorted(rows, key=lambda one: one[:3])


def read_sets(store: Path) -> dict[str, list[Row]]:
    """Return the records of each set by its name."""
    snapshot = read_snapshot(store)
    sets = []
    for entry in snapshot["sets"]:
        content = (store / "sets" / f"{entry['name']}.piles").read_bytes()
        assert len(content) == entry["file_bytes"]
        assert content[-16:-8] == int(entry["checksum"], 16).to_bytes(8, "little")
        assert content.endswith(base64.b64decode(entry.get("footer", "")))
        sets.append((entry, content, *read_footer(content)))
    names = (snapshot["origin"] or {}).get("names", [])
    ends: dict[tuple[int, ...], int] = {(): len(names)}
    for _, _, header, *_ in sets:
        numbers = [source[0] + 1 for source in header["sources"]]
        ends[tuple(header["stream"])] = max(ends.get(tuple(header["stream"]), 0), *numbers)
    streams = list(ends)
    found: dict[str, list[Row]] = {}
    for entry, content, header, parts, sums, lengths in sets:
        base = sum(ends[one] for one in streams[: streams.index(tuple(header["stream"]))])
        own = list(read_set(content, header, parts, base))
        piles = [((row.key >> 32) * snapshot["pile_count"]) >> 32 for row in own]
        assert np.array_equal(np.bincount(piles, minlength=snapshot["pile_count"]), sums[0])
        assert len(own) == entry["records"]
        assert np.array_equal(sum_lengths(own, piles, header, snapshot["pile_count"]), lengths)
        found[entry["name"]] = own
    return found


def read_footer(content: bytes) -> tuple[dict[str, Any], np.ndarray, np.ndarray, np.ndarray]:
    """Return the header of a set, its parts, the records and bytes of its regions, and the sums of their lengths."""
    offset, header_bytes, checksum = np.frombuffer(content[-32:-8], "<u8").tolist()
    assert content[-8:] == b"rspiles6"
    assert xxhash.xxh3_64_intdigest(content[offset:-16]) == checksum
    header: dict[str, Any] = json.loads(content[offset : offset + header_bytes])
    numbers = np.frombuffer(content[offset + header_bytes : -32], "<i8")
    n, r, m = header["part_count"], header["region_count"], header["pile_count"]
    c = len(header["variable_columns"])
    assert len(numbers) == 3 * n + 2 * r + c * r + 3 * m
    parts, sums, lengths, _ = np.split(numbers, np.cumsum([3 * n, 2 * r, c * r]))
    return header, parts.reshape(n, 3), sums.reshape(2, r), lengths.reshape(c, r)


def sum_lengths(rows: list[Row], piles: list[int], header: dict[str, Any], pile_count: int) -> np.ndarray:
    """Return the sums of lengths in the columns that have them, for each pile. Nulls have none here."""
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(header["schema"])))
    sums = np.zeros((len(header["variable_columns"]), pile_count), np.int64)
    for row, pile in zip(rows, piles, strict=True):
        for line, column in zip(sums, header["variable_columns"], strict=True):
            value = row.record[schema.names[column]] if isinstance(row.record, dict) else row.record
            value = value.encode() if isinstance(value, str) else value
            line[pile] += 0 if value is None else len(value)
    return sums


def read_set(content: bytes, header: dict[str, Any], parts: np.ndarray, base: int) -> Iterator[Row]:
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(header["schema"])))
    names = {source[0]: source[1] for source in header["sources"]}
    for _, start, size in parts.tolist():
        at = start
        while at < start + size:
            _, count, _, packed_bytes, plain_bytes, checksum = np.frombuffer(
                content, "<u4,<u4,<u8,<u8,<u8,<u8", 1, at
            )[0].tolist()
            payload = content[at + 40 : at + 40 + packed_bytes]
            assert xxhash.xxh3_64_intdigest(content[at : at + 32] + payload) == checksum
            if packed_bytes != plain_bytes:
                payload = unpack(payload, plain_bytes, header["compression"])
            keys = np.frombuffer(payload, "<u8", count).tolist()
            records, origins = read_records(payload[8 * count :], count, schema)
            for key, record, origin in zip(keys, records, origins, strict=True):
                source = origin >> 42
                yield Row(key, base + source, origin & (1 << 42) - 1, names[source], record)
            at += 40 + packed_bytes + -packed_bytes % 8


def unpack(payload: bytes, size: int, compression: str) -> bytes:
    if compression == "zstd":
        return zstandard.ZstdDecompressor().decompress(payload, size)
    assert compression == "lz4"
    plain: bytes = lz4.block.decompress(payload, uncompressed_size=size)
    return plain


def read_records(content: bytes, count: int, schema: pa.Schema) -> tuple[list[Any], list[int]]:
    """Return the records and their provenance. Records of bytes are the bytes of all their columns, joined."""
    nodes = sum(map(count_nodes, schema.types))
    planes, flags = io.BytesIO(content[: len(content) - nodes]), iter(content[len(content) - nodes :])
    columns = [read_node(kind, count, planes, flags) for kind in schema.types]
    assert not planes.read()
    assert not list(flags)
    *values, provenance = columns
    origins = [int.from_bytes(value, "little") for value in provenance]
    if all(kind == pa.large_binary() or pa.types.is_fixed_size_binary(kind) for kind in schema.types):
        return [b"".join(row) for row in zip(*values, strict=True)], origins
    return [dict(zip(schema.names, row, strict=False)) for row in zip(*values, strict=True)], origins


def inner_types(kind: pa.DataType) -> list[pa.DataType]:
    if pa.types.is_map(kind):
        return [pa.struct([kind.key_field, kind.item_field])]
    return [kind.field(index).type for index in range(kind.num_fields)]


def count_nodes(kind: pa.DataType) -> int:
    return 0 if pa.types.is_null(kind) else 1 + sum(map(count_nodes, inner_types(kind)))


def read_node(kind: pa.DataType, count: int, planes: io.BytesIO, flags: Iterator[int]) -> list[Any]:
    """Return the values of a node."""
    if pa.types.is_null(kind):
        return [None] * count
    valid = planes.read(count) if next(flags) else b"\1" * count
    values = read_values(kind, count, planes, flags)
    return [value if is_valid else None for value, is_valid in zip(values, valid, strict=True)]


def read_values(kind: pa.DataType, count: int, planes: io.BytesIO, flags: Iterator[int]) -> list[Any]:
    types = pa.types
    if types.is_struct(kind):
        fields = [read_node(field.type, count, planes, flags) for field in kind]
        names = [field.name for field in kind]
        return [dict(zip(names, row, strict=True)) for row in zip(*fields, strict=True)] or [{}] * count
    if types.is_fixed_size_list(kind):
        size = kind.list_size
        inner = read_node(kind.value_type, count * size, planes, flags)
        return [inner[row * size : (row + 1) * size] for row in range(count)]
    if types.is_boolean(kind):
        return [value == 1 for value in planes.read(count)]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        ends = np.cumsum(np.frombuffer(planes.read(4 * count), "<u4")).tolist()
        inner = read_node(inner_types(kind)[0], ends[-1] if ends else 0, planes, flags)
        if types.is_map(kind):
            inner = [tuple(entry.values()) for entry in inner]
        return [inner[start:end] for start, end in pairwise([0, *ends])]
    if types.is_string(kind) or types.is_large_string(kind):
        return [value.decode() for value in read_bytes(count, planes)]
    if types.is_binary(kind) or types.is_large_binary(kind):
        return read_bytes(count, planes)
    content = pa.py_buffer(planes.read(count * kind.bit_width // 8))
    values: list[Any] = pa.Array.from_buffers(kind, count, [None, content]).to_pylist()
    return values


def read_bytes(count: int, planes: io.BytesIO) -> list[bytes]:
    return [planes.read(length) for length in np.frombuffer(planes.read(4 * count), "<u4").tolist()]
