"""Row groups of a Parquet file, runs of them that are read together, and the memory of their pages.

Memory for a page is allocated as its header claims, before anything is unpacked. No checksum covers headers, so they are
read first, and their sizes compared with the memory limit. What else they claim is no reason to refuse a file: even sound
ones disagree with the footer in encodings, in whether counts include nulls, and in levels that a column does not need.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from contextlib import ExitStack, suppress
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import InputError
from recshuf.formats.parquet.file import OpenFile, explained
from recshuf.formats.parquet.thrift import ThriftReader
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow.parquet as pq

    from recshuf.formats.parquet.file import Footer
    from recshuf.formats.parquet.thrift import Struct


GROWTH = 16
"""Largest growth of the rows of one batch over the one before."""
_BLIND_ROWS = 1024


class FileOpener:
    """Opens one file, in any thread. Its footer is read and checked the first time, and then reused."""

    def __init__(self, footer: Footer) -> None:
        self.footer = footer
        self.starts = [0, *accumulate(footer.group_rows)]
        """First row of each row group."""
        self._metadata: pq.FileMetaData | None = None
        self._lock = threading.Lock()

    def open(self) -> OpenFile:
        """Open the file; the caller closes it. A footer that has changed since the census is an `InputError`."""
        footer = self.footer
        with self._lock, ExitStack() as stack:  # footers may be large, and are read once
            file = OpenFile(footer.input_file, metadata=self._metadata, int96_unit=footer.int96_unit)
            stack.enter_context(file)
            if self._metadata is None:
                self._check(file)
                self._metadata = file.metadata
            stack.pop_all()
            return file

    def _check(self, file: OpenFile) -> None:
        with explained(file.name):
            metadata = file.metadata
            rows = tuple(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
            if rows != self.footer.group_rows or not file.read_schema()[0].equals(self.footer.schema):
                raise InputError(file.name, "was changed while it was being read")

    def name_row(self, row: int) -> str:
        """Return where a row of the file is."""
        group = bisect_right(self.starts, row) - 1
        return f"row group {group}, row {row}"

    def join_groups(self, groups: Iterable[int], most_bytes: int) -> Iterator[list[int]]:
        """Yield runs of row groups, each of one group or of at most so many bytes before compression."""
        run: list[int] = []
        run_bytes = 0
        for group in groups:
            size = self.footer.group_bytes[group]
            if run and run_bytes + size > most_bytes:
                yield run
                run, run_bytes = [], 0
            run.append(group)
            run_bytes += size
        if run:
            yield run


def first_batch_rows(footer: Footer, group: int, budget: int) -> int:
    """Return the rows of a row group to read first within `budget` bytes, while their size is unknown.

    A value in a dictionary takes its full size in every row: a few KB of file can hold 1 GiB a row.
    """
    return min(_BLIND_ROWS, max(1, budget // max(1, footer.group_bytes[group])))


class Pages(NamedTuple):
    """The pages of a row group, by their headers."""

    memory_bytes: int
    values: set[int]
    """Numbers of values of its column chunks, nulls included."""
    have_checksums: bool


def check_pages(file: OpenFile, group: int, leaves: Sequence[int], most_bytes: int | None) -> Pages:
    """Return what the headers of the pages of some columns claim; memory of more than `most_bytes` is an `InputError`."""
    if not leaves:
        return Pages(0, set(), False)
    headers = PageHeaders(file)
    with explained(file.name, f"row group {group}"):
        chunks = [headers.measure(chunk) for chunk in list_chunks(file, group, leaves)]
    # Each page is held as stored, or as values, besides.
    memory_bytes = 2 * sum(page_bytes for page_bytes, _, _ in chunks)
    if most_bytes is not None and memory_bytes > most_bytes:
        problem = f"its pages unpack to {format_size(memory_bytes)} of memory, more than the {format_size(most_bytes)} allowed"
        remedy = "raise --memory, or check where the file comes from"
        raise InputError(file.name, problem, place=f"row group {group}", remedy=remedy)
    return Pages(memory_bytes, {values for _, values, _ in chunks}, all(summed for _, _, summed in chunks))


def list_chunks(file: OpenFile, group: int, leaves: Sequence[int]) -> list[pq.ColumnChunkMetaData]:
    """Return what the footer says of column chunks of a row group, which has its bytes fetched."""
    # pyarrow aborts the process on column metadata that it cannot parse, but raises an error on reading rows.
    deque(file.batches([group], leaves, 0), maxlen=0)
    row_group = file.metadata.row_group(group)
    return [row_group.column(leaf) for leaf in leaves]


# Field numbers in parquet.thrift: in a footer, its row groups; in these, what is said of column chunks, and its part that
# describes one; in this, the number of values and the statistics; in these, the number of nulls.
_SCHEMA, _GROUPS, _CHUNKS, _DESCRIPTION = 2, 4, 1, 3
_ALL_VALUES, _STATISTICS, _NULLS = 5, 12, 3


def find_valued(file: OpenFile, footer: Footer) -> set[int]:
    """Return the Parquet columns that have values, as far as the counts of nulls in the footer tell.

    pyarrow decodes the least and largest value, too, and aborts the process if these do not fit the type.
    """
    reader = ThriftReader(file.read_at(footer.groups_place, footer.file_bytes - footer.groups_place))
    valued = set()
    with suppress(IndexError, KeyError, RecursionError):  # what is unknown is looked for
        for _ in range(reader.find_list(_GROUPS - _SCHEMA)):
            for leaf in range(reader.find_list(_CHUNKS)):
                told = reader.read_struct().structs[_DESCRIPTION]
                nulls = told.structs[_STATISTICS].numbers.get(_NULLS) if _STATISTICS in told.structs else None
                if nulls is not None and nulls < told.numbers.get(_ALL_VALUES, 0):
                    valued.add(leaf)
            if len(valued) == len(footer.stored_leaves):
                break
            reader.read_struct()  # the rest of the row group
    return valued


_WINDOW_BYTES = (1 << 13, 1 << 16, 1 << 24)
"""Bytes read for a header, in turn until it is complete: its statistics may hold long values."""
# Field numbers in parquet.thrift: in a page header, its sizes before compression and in the file, its checksum, and the
# headers of dictionaries and of data pages of both versions; in these, the number of values.
_UNPACKED_BYTES, _STORED_BYTES, _CHECKSUM = 2, 3, 4
_DICTIONARY_PAGE, _DATA_PAGES = 7, (5, 8)
_VALUES = 1


class PageHeaders:
    """The page headers of a row group; one read serves for all headers near it."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._window = b""
        self._start = 0

    def measure(self, chunk: pq.ColumnChunkMetaData) -> tuple[int, int, bool]:
        """Return the unpacked bytes of the largest page and of the dictionary, all values, and whether all have checksums.

        The last page is the one at which pyarrow stops.
        """
        place, most_values = chunk.data_page_offset, chunk.num_values
        if 0 < (dictionary_place := chunk.dictionary_page_offset or 0) < place:
            place = dictionary_place
        end = place + chunk.total_compressed_size
        values = dictionary = largest = stored = 0
        have_checksums = True
        while values < most_values and place < end and stored >= 0:
            try:
                header, place = self._read(place)
            except (IndexError, RecursionError):
                break
            have_checksums &= _CHECKSUM in header.numbers
            unpacked = header.numbers.get(_UNPACKED_BYTES, 0)
            if _DICTIONARY_PAGE in header.structs:
                dictionary = max(dictionary, unpacked)
            else:
                largest = max(largest, unpacked)
            pages = (header.structs[kind] for kind in _DATA_PAGES if kind in header.structs)
            values += sum(page.numbers.get(_VALUES, 0) for page in pages)
            stored = header.numbers.get(_STORED_BYTES, -1)
            place += stored
        return dictionary + largest, values, have_checksums

    def _read(self, place: int) -> tuple[Struct, int]:
        for size in (0, *_WINDOW_BYTES):
            if size:
                self._window, self._start = self._file.read_at(place, size), place
            if 0 <= place - self._start < len(self._window):
                reader = ThriftReader(self._window, place - self._start)
                try:
                    return reader.read_struct(), self._start + reader.place
                except IndexError:
                    pass
        raise IndexError
