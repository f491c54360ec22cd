"""The dictionaries of a column over all inputs: how many values they hold, and the order of those that are ordered.

Readers give all values of a column one dictionary, with the index type that the file declares. They fail if it is too
narrow for the union of the dictionaries of all row groups that came into a shard.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import xxhash

from recshuf.formats.parquet.file import explained
from recshuf.formats.parquet.pages import (
    DICTIONARY_PAGE,
    PAGE_ENCODINGS,
    STORED_BYTES,
    UNPACKED_BYTES,
    PageHeaders,
    check_pages,
    list_chunks,
)
from recshuf.formats.parquet.types import child_fields, is_narrow, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow.parquet as pq

    from recshuf.formats.parquet.file import Footer, OpenFile
    from recshuf.formats.parquet.types import Path


_MOST_BYTES = 4 << 20
"""Most bytes of a dictionary that is looked into. Writers give up a dictionary at 1 MiB."""
_MOST_VALUES = 1 << 16
"""Values of the widest narrow index."""
_PLAIN, _DICTIONARIES = 0, (2, 8)
"""Encodings: of values themselves, and by a dictionary; older files say the latter of its page, too."""
_CODECS = {"LZ4": "lz4_raw"}


class DictionarySizes:
    """The numbers of values of all narrow dictionaries of the files added so far."""

    def __init__(self) -> None:
        self._columns: dict[Path, _Values] = {}

    @property
    def counts(self) -> dict[Path, int | None]:
        """The number of values of each; None if it is not known."""
        return {path: values.count for path, values in self._columns.items()}

    def add(self, file: OpenFile, footer: Footer, column: int) -> None:
        leaves, field = footer.leaves([column]), footer.schema.field(column)
        parts = walk(field, (field.name,))
        paths = [(path, inner.type) for path, inner in parts if not child_fields(inner.type)]
        narrow = {
            leaf: self._columns.setdefault(path, _Values())
            for leaf, (path, kind) in zip(leaves, paths, strict=True)
            if is_narrow(kind)
        }
        for group, rows in enumerate(footer.group_rows):
            wanted = [leaf for leaf, values in narrow.items() if rows and not values.is_full]
            with explained(footer.name, f"row group {group}"):
                for leaf, chunk in zip(
                    wanted, list_chunks(file, group, wanted) if wanted else (), strict=True
                ):
                    narrow[leaf].add(file, chunk)


class _Values:
    """The values of one dictionary over column chunks, by their hashes."""

    def __init__(self) -> None:
        self._hashes: set[int] = set()
        self._pages: set[bytes] = set()
        self._chunks = 0
        self._is_known = True

    @property
    def is_full(self) -> bool:
        return self._chunks > 1 and (not self._is_known or len(self._hashes) > _MOST_VALUES)

    @property
    def count(self) -> int | None:
        """Number of values; None if it is not known, and 0 for a single chunk, which had room for its own."""
        if self._chunks <= 1:
            return 0
        return len(self._hashes) if self._is_known else None

    def add(self, file: OpenFile, chunk: pq.ColumnChunkMetaData) -> None:
        self._chunks += 1
        page = _find_dictionary(file, chunk)
        # The row groups of one writer mostly have the same dictionary.
        if page is None or (mark := xxhash.xxh3_128_digest(page[0])) not in self._pages:
            values = page and _unpack(*page, chunk.compression)
            if values is None:
                self._is_known = False
            else:
                self._pages.add(mark)
                self._hashes.update(map(xxhash.xxh3_64_intdigest, _split(values)))


def _unpack(stored: bytes, unpacked_bytes: int, compression: str) -> bytes | None:
    if compression == "UNCOMPRESSED":
        return stored
    try:
        codec = pa.Codec(_CODECS.get(compression, compression.lower()))
        return bytes(codec.decompress(stored, unpacked_bytes, asbytes=True))
    except (pa.ArrowException, OSError, ValueError):
        return None


def _find_dictionary(file: OpenFile, chunk: pq.ColumnChunkMetaData) -> tuple[bytes, int] | None:
    """Return the dictionary of a column chunk of text or bytes as stored, and its size before compression.

    None if it may not hold all values, or is too large.
    """
    if chunk.physical_type != "BYTE_ARRAY":
        return None
    page = None
    headers = PageHeaders(file)
    for header, place in headers.walk(chunk):
        for kind in PAGE_ENCODINGS.keys() & header.structs.keys():
            encoding = header.structs[kind].numbers.get(PAGE_ENCODINGS[kind])
            if kind == DICTIONARY_PAGE and encoding in (_PLAIN, *_DICTIONARIES):
                stored, unpacked = (header.numbers.get(size, -1) for size in (STORED_BYTES, UNPACKED_BYTES))
                if max(stored, unpacked) > _MOST_BYTES or min(stored, unpacked) < 0:
                    return None
                page = headers.read_bytes(place, stored), unpacked
            elif encoding not in _DICTIONARIES:
                return None
    return page


def _split(page: bytes) -> Iterator[bytes]:
    place = 0
    while place < len(page):
        start = place + 4
        place = start + int.from_bytes(page[place:start], "little")
        yield page[start:place]


class CategoryOrder:
    """The values of an ordered dictionary over all inputs, in an order that fits that of each; else by first appearance."""

    def __init__(self, value_type: pa.DataType) -> None:
        self._values = pa.array([], value_type)
        self.contrary: str | None = None
        """The first file whose order contradicts that of the files before."""

    @property
    def values(self) -> pa.Array:
        return self._values

    def add(self, file: OpenFile, footer: Footer, column: int, memory_bytes: int | None) -> None:
        """Add the dictionaries of one column of a file, one per row group, within the memory limit of the run."""
        for group, rows in enumerate(footer.group_rows):
            if rows:
                check_pages(file, group, footer.leaves([column]), memory_bytes)
                batch = next(file.batches([group], footer.leaves([column]), 1))
                self._merge(batch.column(0).dictionary, footer.name)

    def _merge(self, dictionary: pa.Array, name: str) -> None:
        if dictionary.equals(self._values):
            return
        import pyarrow.compute as pc  # takes long, and few files have ordered dictionaries

        values = dictionary.cast(self._values.type).drop_null().unique()
        places = pc.index_in(values, value_set=self._values)
        ranks = places.cast(pa.float64()).fill_null(math.inf).to_numpy(zero_copy_only=False)
        known = ranks[np.isfinite(ranks)]
        if (np.diff(known) < 0).any():
            self.contrary = self.contrary or name
            ranks = np.full_like(ranks, math.inf)
        # What is new stands before the next value that is known.
        following = np.minimum.accumulate(ranks[::-1])[::-1] - 0.5
        new = places.is_null().to_numpy(zero_copy_only=False)
        keys = np.concatenate([np.arange(len(self._values)), following[new]])
        merged = pa.concat_arrays([self._values, values.filter(pa.array(new))])
        self._values = merged.take(pa.array(np.argsort(keys, kind="stable")))
