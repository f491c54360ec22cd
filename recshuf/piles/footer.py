"""The footer of a pile set, by which the file alone can be read.

    header: JSON, padded with spaces to 8 bytes | n x (region, start, bytes) (24 n) | records of each region (8 R) | bytes
    of its slices before compression (8 R) | sums of lengths in C columns (8 C R) | records, bytes and fingerprints of each
    pile (24 M) | trailer

    trailer (32): byte offset of the header (8) | bytes of the header (8) | xxh3 of everything from the header to here (8)
    | magic (8)

Numbers are little-endian. docs/store.md describes the header.
"""

from __future__ import annotations

import json
import secrets
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from recshuf.dataclass import dataclass
from recshuf.errors import PileError
from recshuf.piles.layout import SPILL_COMPRESSIONS
from recshuf.records.arrays import pack_schema, unpack_schema
from recshuf.records.digests import Digests, InputCount
from recshuf.records.keys import ORDER_VERSION

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.piles.set_folder import PileFile


_TRAILER = struct.Struct("<QQQ8s")
_HASHED = struct.Struct("<QQ")
TRAILER_BYTES = _TRAILER.size
_MAGIC = b"rspiles6"
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class SetSource:
    """A source of the records in a set."""

    index: int
    """Its number in the provenance of its records."""
    name: str
    count: InputCount


@dataclass(frozen=True, slots=True)
class SetDescription:
    """Where the records of a set come from."""

    seed: int
    sources: tuple[SetSource, ...]
    stream: tuple[int, ...] = ()
    """First numbers of the spawn keys of its keys; see `draw_keys`. Sets of one stream number their sources together."""

    @property
    def counts(self) -> dict[int, InputCount]:
        return {source.index: source.count for source in self.sources}


@dataclass(frozen=True, slots=True)
class Footer:
    """Everything that the footer of a set holds."""

    description: SetDescription
    schema: pa.Schema
    """Schema of the records, without keys."""
    compression: str
    parts: NDArray[np.int64]
    """Region, start and bytes of each part of the file, shape ``(n, 3)``."""
    sums: NDArray[np.int64]
    """Records of each region, and bytes of its slices before compression, shape ``(2, R)``."""
    variable_columns: tuple[int, ...]
    """Numbers of the columns whose values vary in length."""
    lengths: NDArray[np.int64]
    """Sum of the lengths in each of these columns, for each region, shape ``(C, R)``."""
    digests: Digests
    """Digests of the piles."""
    checksum: str = ""
    """That of the footer as read, as `format_checksum` gives it; no two sets have the same."""

    def pack(self, offset: int) -> bytes:
        """Return the footer's bytes, to be written at this offset of the file."""
        about = self.description
        header: dict[str, Any] = {
            "id": secrets.token_hex(8),
            "order": ORDER_VERSION,
            "seed": str(about.seed),
            "stream": list(about.stream),
            "schema": pack_schema(self.schema),
            "compression": self.compression,
            "pile_count": len(self.digests.counts),
            "region_piles": 1,
            "region_count": self.sums.shape[1],
            "part_count": len(self.parts),
            "variable_columns": list(self.variable_columns),
            "sources": [[one.index, one.name, *one.count.pack()] for one in about.sources],
        }
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % _ALIGNMENT)
        arrays = (self.parts, self.sums, self.lengths, self.digests.table)
        content = text + b"".join(array.tobytes() for array in arrays)
        hashed = content + _HASHED.pack(offset, len(text))
        return content + _TRAILER.pack(offset, len(text), xxhash.xxh3_64_intdigest(hashed), _MAGIC)


def format_checksum(trailer: bytes | memoryview) -> str:
    """Return the checksum in a trailer as 16 hexadecimal digits."""
    return f"{_TRAILER.unpack(trailer)[2]:016x}"


def read_footer(file: PileFile) -> memoryview:
    """Return the bytes of the footer of an open set, up to its end."""
    size, name = file.size, file.name
    trailer = file.read(max(0, size - TRAILER_BYTES), min(size, TRAILER_BYTES)).tobytes()
    if len(trailer) < TRAILER_BYTES or trailer[-8:] != _MAGIC:
        raise PileError(f"{name}: is no complete pile set, or is cut short")
    offset = _TRAILER.unpack(trailer)[0]
    if offset > size - TRAILER_BYTES:
        raise PileError(f"{name}: is cut short")
    return file.read(offset, size - offset).data


def parse_footer(content: bytes | memoryview, name: str) -> Footer:
    """Return the footer in these bytes; `name` is that of the set, for messages."""
    trailer = content[len(content) - TRAILER_BYTES :]
    _, header_bytes, checksum, _ = _TRAILER.unpack(trailer)
    if checksum != xxhash.xxh3_64_intdigest(content[: len(content) - TRAILER_BYTES + _HASHED.size]):
        raise PileError(f"{name}: its footer does not read back as it was written")
    header = json.loads(bytes(content[:header_bytes]))
    if header["order"] != ORDER_VERSION:
        raise PileError(f"{name}: has order version {header['order']}; this recshuf reads {ORDER_VERSION}")
    if header["compression"] not in SPILL_COMPRESSIONS:
        raise PileError(
            f"{name}: has compression {header['compression']!r}, which this recshuf does not read"
        )
    numbers = np.frombuffer(
        content, np.int64, offset=header_bytes, count=(len(content) - TRAILER_BYTES - header_bytes) // 8
    )
    part_count, region_count = header["part_count"], header["region_count"]
    variable = tuple(header["variable_columns"])
    edges = np.cumsum([3 * part_count, 2 * region_count, len(variable) * region_count])
    parts, sums, lengths, rows = np.split(numbers, edges)
    digests = Digests(header["pile_count"])
    digests.table = rows.reshape(3, -1).copy()
    sources = (
        SetSource(index, source, InputCount.unpack(count)) for index, source, *count in header["sources"]
    )
    return Footer(
        SetDescription(int(header["seed"]), tuple(sources), tuple(header["stream"])),
        unpack_schema(header["schema"]),
        header["compression"],
        parts.reshape(-1, 3),
        sums.reshape(2, -1).copy(),
        variable,
        lengths.reshape(len(variable), region_count),
        digests,
        format_checksum(trailer),
    )
