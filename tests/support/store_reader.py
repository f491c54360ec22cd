"""A reader of pile stores written from docs/store.md alone: it shares no code with recshuf."""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import lz4.block
import numpy as np
import pyarrow as pa
import xxhash
import zstandard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


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
            assert (found["version"], found["order"]) == (1, 1)
            return found
    raise AssertionError("no whole snapshot")


def read_store(store: Path) -> list[Row]:
    """Return all records in the order of epoch 0."""
    snapshot = read_snapshot(store)
    sets = []
    for entry in snapshot["sets"]:
        content = (store / "sets" / f"{entry['name']}.piles").read_bytes()
        assert len(content) == entry["file_bytes"]
        assert content[-16:-8] == int(entry["checksum"], 16).to_bytes(8, "little")
        sets.append((entry, content, *read_footer(content)))
    names = (snapshot["origin"] or {}).get("names", [])
    ends: dict[tuple[int, ...], int] = {(): len(names)}
    for _, _, header, _, _ in sets:
        numbers = [source[0] + 1 for source in header["sources"]]
        ends[tuple(header["stream"])] = max(ends.get(tuple(header["stream"]), 0), *numbers)
    streams = list(ends)
    rows: list[Row] = []
    for entry, content, header, parts, sums in sets:
        base = sum(ends[one] for one in streams[: streams.index(tuple(header["stream"]))])
        own = list(read_set(content, header, parts, base))
        piles = [((row.key >> 32) * snapshot["pile_count"]) >> 32 for row in own]
        assert np.array_equal(np.bincount(piles, minlength=snapshot["pile_count"]), sums[0])
        assert len(own) == entry["records"]
        rows += own
    return sorted(rows, key=lambda one: one[:3])


def read_footer(content: bytes) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Return the header of a set, its parts, and the records and bytes of its regions."""
    offset, header_bytes, checksum = np.frombuffer(content[-32:-8], "<u8").tolist()
    assert content[-8:] == b"rspiles4"
    assert xxhash.xxh3_64_intdigest(content[offset:-16]) == checksum
    header: dict[str, Any] = json.loads(content[offset : offset + header_bytes])
    numbers = np.frombuffer(content[offset + header_bytes : -32], "<i8")
    n, r, m = header["part_count"], header["region_count"], header["pile_count"]
    assert len(numbers) == 3 * n + 2 * r + 3 * m
    return header, numbers[: 3 * n].reshape(n, 3), numbers[3 * n : 3 * n + 2 * r].reshape(2, r)


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
    """Return the records and their provenance. Flat records are the bytes of all their columns, joined."""
    if not all(kind == pa.large_binary() or pa.types.is_fixed_size_binary(kind) for kind in schema.types):
        records = pa.ipc.read_record_batch(pa.py_buffer(content), schema).to_pylist()
        origins = [int.from_bytes(record.pop("provenance"), "little") for record in records]
        return records, origins
    at, columns = 0, []
    for kind in schema.types:
        lengths = [kind.byte_width] * count if kind != pa.large_binary() else []
        if not lengths:
            lengths = np.frombuffer(content, "<u4", count, at).tolist()
            at += 4 * count
        ends = at + np.cumsum(lengths)
        columns.append([content[end - length : end] for end, length in zip(ends, lengths, strict=True)])
        at = int(ends[-1])
    assert at == len(content)
    return [b"".join(values) for values in zip(*columns[:-1], strict=True)], [
        int.from_bytes(value, "little") for value in columns[-1]
    ]
