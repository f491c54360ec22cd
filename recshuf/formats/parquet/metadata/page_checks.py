"""Compares page headers with the memory limit and with the decoded rows: no checksum covers headers, and pyarrow trusts them.

Memory for a page is allocated as its header claims, before anything is unpacked. If a page claims more values than it has, padding is read as values, and the values of later pages move, without an error.
Other fields of headers are not compared with the footer: even sound files disagree in encodings, in whether counts
include nulls, and in levels that a column does not need.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import InputError
from recshuf.formats.parquet.metadata.file import explained
from recshuf.formats.parquet.metadata.thrift import ThriftReader
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow.parquet as pq

    from recshuf.formats.parquet.metadata.entries import EntryCount
    from recshuf.formats.parquet.metadata.file import OpenFile
    from recshuf.formats.parquet.metadata.thrift import Struct

_WINDOW_BYTES = (1 << 13, 1 << 16, 1 << 24)
"""Bytes read for a header, in turn until it is complete: its statistics may hold long values."""
# Field numbers in parquet.thrift: in a page header, its sizes before compression and in the file, and the headers of
# dictionaries and of data pages of both versions; in these, the number of values.
_UNPACKED_BYTES, _STORED_BYTES = 2, 3
_DICTIONARY_PAGE, _DATA_PAGES = 7, (5, 8)
_VALUES = 1


class PageClaims:
    """What the page headers of row groups claim, read before any page is unpacked.

    Parameters
    ----------
    most_bytes
        Most memory for the pages of a row group. Default: no limit.

    Raises
    ------
    InputError
        When the pages of a row group take more, or its metadata cannot be read.
    """

    def __init__(
        self, file: OpenFile, groups: Sequence[int], leaves: Sequence[int], most_bytes: int | None = None
    ) -> None:
        self._file = file
        self._groups = groups
        self._leaves = leaves
        headers = _Headers(file)
        self._chunks = [self._read(headers, group) for group in groups]
        self.page_bytes = max((_count_page_bytes(chunks) for chunks in self._chunks), default=0)
        """Memory of the pages of one row group."""
        if most_bytes is not None and self.page_bytes > most_bytes:
            self._refuse(most_bytes)

    def check(self, entries: EntryCount) -> None:
        """Check that the pages claim as many values as their rows have entries.

        Parameters
        ----------
        entries
            Entries of the row groups in these columns.

        Raises
        ------
        InputError
            When they claim more or fewer.
        """
        for index, (group, chunks) in enumerate(zip(self._groups, self._chunks, strict=True)):
            for chunk, count in zip(chunks, entries.of(index), strict=True):
                if count is not None:
                    self._check(group, chunk, count)

    def _read(self, headers: _Headers, group: int) -> list[_ChunkClaims]:
        if not self._leaves:
            return []
        with explained(self._file.name, f"row group {group}"):
            # pyarrow aborts the process on column metadata that it cannot parse, but raises an error on reading rows.
            deque(self._file.batches([group], self._leaves, 0), maxlen=0)
            row_group = self._file.metadata.row_group(group)
            return [headers.read(row_group.column(leaf)) for leaf in self._leaves]

    def _refuse(self, most_bytes: int) -> None:
        found = (
            (_count_page_bytes(chunks), group)
            for group, chunks in zip(self._groups, self._chunks, strict=True)
        )
        needed, group = max(found)
        raise InputError(
            self._file.name,
            f"its pages unpack to {format_size(needed)} of memory, more than the {format_size(most_bytes)} allowed",
            place=f"row group {group}",
            remedy="raise --memory, or check where the file comes from",
        )

    def _check(self, group: int, chunk: _ChunkClaims, count: int) -> None:
        claimed, needed = chunk.values, chunk.footer_values
        if claimed is None:
            problem = "the header of a page cannot be read"
        # Pages of lists that claim too few values make rows shorter, so pages and rows agree; the footer then has more.
        # Wrong footers leave out nulls, and so have fewer.
        elif claimed == count and (claimed >= needed or "." not in chunk.path):
            return
        else:
            problem = f"its pages claim {claimed} values, its rows have {count}, and its footer {needed}"
        place = f"row group {group}, column {chunk.path!r}"
        remedy = "fetch or write the file again"
        raise InputError(self._file.name, f"is damaged: {problem}", place=place, remedy=remedy)


class _ChunkClaims(NamedTuple):
    """Claims on one column chunk."""

    path: str
    footer_values: int
    values: int | None
    """Values that the data pages claim; None if there is a page without a header."""
    page_bytes: int
    """Bytes of the largest page and of the dictionary before compression."""


class _PageSums:
    """Sums over the page headers of a column chunk."""

    def __init__(self) -> None:
        self.values = 0
        self.dictionary = 0
        """Bytes of the dictionary before compression."""
        self.largest = 0
        """Bytes of the largest other page before compression."""
        self.is_whole = True

    def add(self, header: Struct) -> None:
        for kind in _DATA_PAGES:
            if kind in header.structs:
                self.values += header.structs[kind].numbers.get(_VALUES, 0)
        size = header.numbers.get(_UNPACKED_BYTES, 0)
        if _DICTIONARY_PAGE in header.structs:
            self.dictionary = max(self.dictionary, size)
        else:
            self.largest = max(self.largest, size)


def _count_page_bytes(chunks: list[_ChunkClaims]) -> int:
    # Each page is held as stored, or as values, besides.
    return 2 * sum(chunk.page_bytes for chunk in chunks)


class _Headers:
    """The page headers of a file; one read serves for all headers near it."""

    def __init__(self, file: OpenFile) -> None:
        self.file = file
        self._window = b""
        self._start = 0

    def read(self, chunk: pq.ColumnChunkMetaData) -> _ChunkClaims:
        """Return the claims of the pages, up to the page at which pyarrow stops."""
        place = chunk.data_page_offset
        if 0 < (dictionary := chunk.dictionary_page_offset or 0) < place:
            place = dictionary
        end = place + chunk.total_compressed_size
        claims = _PageSums()
        try:
            while claims.values < chunk.num_values and place < end:
                header, place = self._read(place)
                claims.add(header)
                if (stored_bytes := header.numbers.get(_STORED_BYTES, -1)) < 0:
                    raise IndexError
                place += stored_bytes
        except (IndexError, RecursionError):
            claims.is_whole = False
        values = claims.values if claims.is_whole else None
        return _ChunkClaims(
            chunk.path_in_schema, chunk.num_values, values, claims.dictionary + claims.largest
        )

    def _read(self, place: int) -> tuple[Struct, int]:
        """Return the header at an offset, and its end."""
        for size in (0, *_WINDOW_BYTES):
            if size:
                self._window, self._start = self.file.read_at(place, size), place
            if 0 <= place - self._start < len(self._window):
                reader = ThriftReader(self._window, place - self._start)
                try:
                    return reader.read_struct(), self._start + reader.place
                except IndexError:
                    pass
        raise IndexError
