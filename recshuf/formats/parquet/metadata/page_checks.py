"""Compares the value counts of page headers with the decoded rows: no checksum covers headers, and pyarrow trusts them.

If a page claims more values than it has, padding is read as values, and the values of later pages move, without an error.
Other fields of headers are not compared with the footer: even sound files disagree in encodings, in whether counts
include nulls, and in levels that a column does not need.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats.parquet.metadata.file import explained
from recshuf.formats.parquet.metadata.thrift import ThriftReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow.parquet as pq

    from recshuf.formats.parquet.metadata.entries import EntryCount
    from recshuf.formats.parquet.metadata.file import OpenFile
    from recshuf.formats.parquet.metadata.thrift import Struct

_WINDOW_BYTES = (1 << 13, 1 << 16, 1 << 24)
"""Bytes read for a header, in turn until it is complete: its statistics may hold long values."""
# Field numbers in parquet.thrift: in a page header, the size in the file and the headers of data pages of both versions; in
# these, the number of values.
_STORED_BYTES = 3
_DATA_PAGES = (5, 8)
_VALUES = 1


def check_pages(file: OpenFile, groups: Sequence[int], leaves: Sequence[int], entries: EntryCount) -> None:
    """Check that the pages of row groups claim as many values as their rows have entries.

    The rows must have been read before: pyarrow aborts the process on column metadata that it cannot parse.

    Parameters
    ----------
    entries
        Entries of the row groups in these columns.

    Raises
    ------
    InputError
        When they claim more or fewer.
    """
    headers = _Headers(file)
    for index, group in enumerate(groups):
        with explained(file.name, f"row group {group}"):
            row_group = file.metadata.row_group(group)
            for leaf, count in zip(leaves, entries.of(index), strict=True):
                if count is not None:
                    _check_chunk(headers, group, row_group.column(leaf), count)


def _check_chunk(headers: _Headers, group: int, chunk: pq.ColumnChunkMetaData, count: int) -> None:
    try:
        claimed = headers.count_values(chunk)
    except (IndexError, RecursionError):
        problem = "the header of a page cannot be read"
    else:
        # Pages of lists that claim too few values make rows shorter, so pages and rows agree; the footer then has more.
        # Wrong footers leave out nulls, and so have fewer.
        if claimed == count and (claimed >= chunk.num_values or "." not in chunk.path_in_schema):
            return
        problem = (
            f"its pages claim {claimed} values, its rows have {count}, and its footer {chunk.num_values}"
        )
    place = f"row group {group}, column {chunk.path_in_schema!r}"
    remedy = "fetch or write the file again"
    raise InputError(headers.file.name, f"is damaged: {problem}", place=place, remedy=remedy)


class _Headers:
    """The page headers of a file; one read serves for all headers near it."""

    def __init__(self, file: OpenFile) -> None:
        self.file = file
        self._window = b""
        self._start = 0

    def count_values(self, chunk: pq.ColumnChunkMetaData) -> int:
        """Return the values that the data pages claim, up to the page at which pyarrow stops.

        Raises `IndexError` or `RecursionError` where there is no header.
        """
        place = chunk.data_page_offset
        if 0 < (dictionary := chunk.dictionary_page_offset or 0) < place:
            place = dictionary
        end = place + chunk.total_compressed_size
        needed, values = chunk.num_values, 0
        while values < needed and place < end:
            header, place = self._read(place)
            for kind in _DATA_PAGES:
                if kind in header.structs:
                    values += header.structs[kind].numbers.get(_VALUES, 0)
            if (stored_bytes := header.numbers.get(_STORED_BYTES, -1)) < 0:
                raise IndexError
            place += stored_bytes
        return values

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
