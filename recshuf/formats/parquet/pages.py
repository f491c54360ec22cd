"""Compares page headers with the memory limit and with the decoded rows: no checksum covers headers, and pyarrow trusts them.

Memory for a page is allocated as its header claims, before anything is unpacked. If a page claims more values than it has, padding is read as values, and the values of later pages move, without an error.
Other fields of headers are not compared with the footer: even sound files disagree in encodings, in whether counts
include nulls, and in levels that a column does not need.

Counts the entries of decoded rows, to be compared with the footer.

A column chunk holds one entry for each value, null and empty list; only repetition levels assign them to rows. If rows
moved from one row group into another, the numbers of entries differ.

Row groups of a Parquet file, and runs of them that are read together.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats.parquet.file import OpenFile, explained
from recshuf.formats.parquet.thrift import ThriftReader
from recshuf.formats.parquet.types import is_countable, leaf_types
from recshuf.records.arrays import has_offsets, view_offsets
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from recshuf.formats.parquet.footer import Footer
    from recshuf.formats.parquet.thrift import Struct


class EntryCount:
    """The entries of row groups that are read together, counted batch by batch."""

    def __init__(self, rows: Sequence[int], kinds: Sequence[pa.DataType]) -> None:
        self._edges = np.array([0, *accumulate(rows)])
        self.rows = 0
        """Rows that have been counted."""
        # For each column its Parquet columns, and of each of these the entries in each row group.
        self._counts: list[list[Any]] = [_count_flat(kind, rows) for kind in kinds]
        self._nested = [index for index, leaves in enumerate(self._counts) if not leaves]

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the entries of the next rows."""
        if self._nested:
            edges = np.minimum(np.maximum(self._edges - self.rows, 0), batch.num_rows)
            for index in self._nested:
                found = list(_count_entries(batch.column(index), edges))
                counts = self._counts[index]
                self._counts[index] = list(map(np.add, counts, found)) if counts else found
        self.rows += batch.num_rows

    def of(self, group: int) -> list[int | None]:
        """Return the entries of each Parquet column in one of the row groups, None for those that cannot be counted."""
        return [None if leaf is None else int(leaf[group]) for leaves in self._counts for leaf in leaves]


def _count_flat(kind: pa.DataType, rows: Sequence[int]) -> list[Any]:
    """Return the entries of each Parquet column if the type determines them; empty if they have to be counted."""
    if not is_countable(kind):
        return [None for _ in leaf_types(kind)]
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return [] if pa.types.is_nested(storage) else [rows]


def _count_entries(column: pa.Array, edges: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
    """Yield, for each Parquet column below a column, the entries of the rows between each two edges.

    >>> [found.tolist() for found in _count_entries(pa.array([[1, 2], [], None, [3]]), np.array([0, 1, 4]))]
    [[2, 3]]
    """
    kind, types = column.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        yield from _count_entries(column.storage, edges)
    elif types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _count_entries(column.field(index), edges)
    elif types.is_fixed_size_list(kind):
        nulls = (
            _count_between(column.is_null().to_numpy(zero_copy_only=False), edges) if column.null_count else 0
        )
        yield (edges[1:] - edges[:-1] - nulls) * kind.list_size + nulls
    elif types.is_nested(kind) and has_offsets(kind):
        offsets = view_offsets(column)
        empty = _count_between(offsets[1:] == offsets[:-1], edges)
        for found in _count_entries(column.values, offsets[edges]):
            yield found + empty
    else:
        yield edges[1:] - edges[:-1]


def _count_between(flags: NDArray[np.bool_], edges: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many flags are set between each two edges."""
    if len(edges) == 2:
        return np.array([np.count_nonzero(flags[edges[0] : edges[1]])])
    found: NDArray[np.int64] = np.diff(np.cumsum(np.concatenate(([False], flags)))[edges])
    return found


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


class FileOpener:
    """Opens one file, in any thread. Its footer is read and checked the first time, and then reused."""

    def __init__(self, footer: Footer) -> None:
        self.footer = footer
        self._metadata: pq.FileMetaData | None = None
        self._lock = threading.Lock()

    def open(self) -> OpenFile:
        """Open the file; the caller closes it.

        Raises
        ------
        InputError
            When it cannot be read, or its footer has changed since the census.
        """
        with self._lock:
            if self._metadata is None:
                file = self._open()
                try:
                    self._check(file)
                except BaseException:
                    file.close()
                    raise
                self._metadata = file.metadata
                return file
        return self._open()

    def _open(self) -> OpenFile:
        footer = self.footer
        return OpenFile(footer.given, metadata=self._metadata, int96_unit=footer.int96_unit)

    def _check(self, file: OpenFile) -> None:
        with explained(file.name):
            metadata = file.metadata
            rows = tuple(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
            if rows != self.footer.group_rows or not file.schema.equals(self.footer.schema):
                raise InputError(file.name, "was changed while it was being read")


@dataclass(frozen=True, slots=True)
class Group:
    """One row group of one file."""

    opener: FileOpener
    """Opener of its file."""
    index: int
    first_row: int
    """Row of the file that is the first of the group."""
    rows: int
    stored_bytes: int
    """Bytes before compression, every column."""

    @property
    def footer(self) -> Footer:
        """The footer of its file."""
        return self.opener.footer

    def place(self, row: int) -> str:
        """Return the position of a row of the group in words."""
        return f"row group {self.index}, row {self.first_row + row}"


def list_groups(opener: FileOpener) -> Iterator[Group]:
    """Yield each row group that has rows."""
    first_row = 0
    footer = opener.footer
    for index, (rows, stored_bytes) in enumerate(zip(footer.group_rows, footer.group_bytes, strict=True)):
        if rows:
            yield Group(opener, index, first_row, rows, stored_bytes)
        first_row += rows


def join_groups(groups: Iterable[Group], most_bytes: int) -> Iterator[list[Group]]:
    """Yield runs of row groups, each of one group or of at most so many bytes before compression."""
    run: list[Group] = []
    run_bytes = 0
    for group in groups:
        if run and run_bytes + group.stored_bytes > most_bytes:
            yield run
            run, run_bytes = [], 0
        run.append(group)
        run_bytes += group.stored_bytes
    if run:
        yield run
