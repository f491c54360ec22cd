"""Slices: the records of one batch for one region, as bytes in a file.

    input (4) | records (4) | first row (8) | payload bytes (8) | bytes before compression (8) | xxh3 of these and the
    payload (8) | payload | 0-7 zeros

A payload is not compressed if both byte counts are equal.

`PackedRecords` are those of several slices, as they lie in memory, until their order is known. `JoinedRecords` are the same of
piles in memory.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from recshuf.errors import PileError
from recshuf.piles.planes import Order
from recshuf.records.batch import concat_records
from recshuf.records.key_makers import find_words
from recshuf.records.provenance import find_origins, shift_origins, shift_sources
from recshuf.system.buffers import allocate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from recshuf.piles.codec import RecordCodec
    from recshuf.records.batch import Records
    from recshuf.system.buffers import Allocate


class PackedRecords:
    """The records of one or more slices, one after the other.

    Each is given with what to add to the numbers of the sources of its records. If that is not 0, they have provenance.
    """

    def __init__(self, codec: RecordCodec, slices: Sequence[tuple[int, Slice]]) -> None:
        self._codec = codec
        self._payloads = [(piece.payload, piece.record_count) for _, piece in slices]
        bases = [base for base, _ in slices]
        self._added = np.repeat(bases, [count for _, count in self._payloads]) if any(bases) else None

    @cached_property
    def keys(self) -> NDArray[np.uint64]:
        """Their keys, shape ``(n,)``."""
        return self._codec.unpack_keys(self._payloads)

    @cached_property
    def origins(self) -> NDArray[np.uint64]:
        """Their provenance, as `find_origins` returns it; only if they have one."""
        origins = self._codec.unpack_words(self._payloads)
        return origins if self._added is None else shift_origins(origins, self._added)

    def find_words(self, word_count: int) -> list[NDArray[np.uint64]]:
        """Return the words of their keys, the further ones of which are their last columns."""
        others = (self._codec.unpack_words(self._payloads, place) for place in range(word_count - 2, -1, -1))
        return [self.keys, *others]

    def __len__(self) -> int:
        return len(self.keys)

    def join(self) -> Records:
        """Return them in their order; they may be views of the slices."""
        records = self._codec.unpack(self._payloads)
        return records if self._added is None else shift_sources(records, self._added)

    def take(self, index: NDArray[np.intp], memory: Allocate = allocate) -> Records:
        """Return them in the order of a permutation, copied. Frees the slices: it can be called once.

        In `memory`, columns of a fixed size lie afterwards, and others are joined before.
        """
        records = self._codec.unpack_ordered(self._payloads, Order(index), memory)
        return records if self._added is None else shift_sources(records, self._added[index])


class JoinedRecords:
    """The same of records that are in memory as such."""

    def __init__(self, parts: Sequence[Records]) -> None:
        self._records = concat_records(parts)

    @property
    def keys(self) -> NDArray[np.uint64]:
        return self._records.keys

    @property
    def origins(self) -> NDArray[np.uint64]:
        return find_origins(self._records.batch)

    def find_words(self, word_count: int) -> list[NDArray[np.uint64]]:
        return find_words(self._records, word_count)

    def join(self) -> Records:
        return self._records

    def take(self, index: NDArray[np.intp], _: Allocate = allocate) -> Records:
        return self._records.take(index)


Packed = PackedRecords | JoinedRecords
"""Records before they are ordered."""
_HEADER = struct.Struct("<IIQQQ")
_CHECKSUM = struct.Struct("<Q")
PREFIX_BYTES = _HEADER.size + _CHECKSUM.size
"""Bytes before the payload."""
ALIGNMENT = 8
"""Slices begin at multiples of this."""
_ZEROS = bytes(ALIGNMENT)
_MOST_COMPRESSED = 8 << 20
"""A longer payload holds a single huge record; two more copies of it would exceed the memory limit."""
_ZSTD_LEVEL = 1
_DAMAGED = "a slice does not have its checksum"


class Origin(NamedTuple):
    """Input and row of the first record of a batch; origins sort in input order."""

    input_index: int
    first_row: int

    def shift(self, base: int) -> Origin:
        """Return the origin with a number added to its input."""
        return Origin(self.input_index + base, self.first_row)


class Slice(NamedTuple):
    """The records of one batch for one region, as bytes."""

    origin: Origin
    record_count: int
    payload: NDArray[np.uint8]
    """Decompressed."""


class SliceFormat:
    """Encodes and decodes slices; used by many threads. The compression is one of `SPILL_COMPRESSIONS`."""

    def __init__(self, compression: str) -> None:
        self.compression = compression
        self._codec: pa.Codec | None = None
        if compression == "lz4":
            self._codec = pa.Codec("lz4_raw")
        elif compression == "zstd":
            self._codec = pa.Codec("zstd", compression_level=_ZSTD_LEVEL)

    def frame(self, buffers: list[memoryview], count: int, origin: Origin) -> list[bytes | memoryview]:
        """Return the buffers to write for a slice."""
        plain_bytes = sum(map(len, buffers))
        if self._codec is not None and 0 < plain_bytes <= _MOST_COMPRESSED:
            buffers = _compress(self._codec, buffers, plain_bytes)
        payload_bytes = sum(map(len, buffers))
        header = _HEADER.pack(origin.input_index, count, origin.first_row, payload_bytes, plain_bytes)
        digest = xxhash.xxh3_64(header)
        for buffer in buffers:
            digest.update(buffer)
        prefix = header + _CHECKSUM.pack(digest.intdigest())
        return [prefix, *buffers, _ZEROS[: -payload_bytes % ALIGNMENT]]

    def parse(self, content: NDArray[np.uint8]) -> list[Slice]:
        """Return the slices of a region, decompressed. Others are views."""
        found, view, offset = [], content.data, 0
        while offset < len(content):
            start = offset + PREFIX_BYTES
            if start > len(content):
                raise PileError(_DAMAGED)
            header = view[offset : offset + _HEADER.size]
            input_index, count, first_row, payload_bytes, plain_bytes = _HEADER.unpack(header)
            end = start + payload_bytes
            digest = xxhash.xxh3_64(header)
            digest.update(view[start:end])
            if (
                end > len(content)
                or _CHECKSUM.unpack_from(view, start - _CHECKSUM.size)[0] != digest.intdigest()
            ):
                raise PileError(_DAMAGED)
            payload = content[start:end]
            if plain_bytes != payload_bytes and self._codec is not None:
                payload = np.frombuffer(self._codec.decompress(payload, plain_bytes), np.uint8)
            found.append(Slice(Origin(input_index, first_row), count, payload))
            offset = end + -end % ALIGNMENT
        return found


def _compress(codec: pa.Codec, buffers: list[memoryview], plain_bytes: int) -> list[memoryview]:
    """Return the buffers compressed into one, or unchanged if that is not smaller."""
    # As bytes, because a memoryview of the output buffer would have its full capacity.
    packed = codec.compress(b"".join(buffers), asbytes=True)
    return [memoryview(packed)] if len(packed) < plain_bytes else buffers
