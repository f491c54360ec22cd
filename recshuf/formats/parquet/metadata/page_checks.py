"""Page headers held against the footer: no checksum covers them, and the library believes what they say.

Where a page claims too many values, padding can be read as some, and all behind them move along; where it claims another
encoding, the same bytes make other values. Neither is an error to the library.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import InputError
from recshuf.formats.parquet.metadata.file import explained, name_groups
from recshuf.formats.parquet.metadata.page_headers import (
    MANY,
    STORED_BYTES,
    VALUES,
    VERSIONS,
    allowed_encodings,
    read_headers,
)
from recshuf.formats.parquet.metadata.thrift import ThriftReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow.parquet as pq

    from recshuf.formats.parquet.metadata.entries import EntryCount
    from recshuf.formats.parquet.metadata.file import OpenFile
    from recshuf.formats.parquet.metadata.page_headers import PageVersion
    from recshuf.formats.parquet.metadata.thrift import Struct

_WINDOW_BYTES = (1 << 12, 1 << 16, 1 << 24)
"""What is read from the beginning of a page, until its header is whole: the statistics may hold long values."""
_GROUPS_AT_ONCE = 1024
"""What is known of a column chunk takes a KB, once it is asked for."""


def check_pages(file: OpenFile, groups: Sequence[int], leaves: Sequence[int]) -> list[list[int]]:
    """Check the page headers of row groups in the columns with these leaf indices.

    Their rows must have been read before: pyarrow ends the process over metadata that it cannot parse.

    Returns
    -------
    list[list[int]]
        For each row group how many values the footer claims for each of the columns.

    Raises
    ------
    InputError
        When the pages of a column are not what the footer says.
    """
    claims = []
    for start in range(0, len(groups), _GROUPS_AT_ONCE):
        claims += _check_pages(file, groups[start : start + _GROUPS_AT_ONCE], leaves)
    return claims


def _check_pages(file: OpenFile, groups: Sequence[int], leaves: Sequence[int]) -> list[list[int]]:
    with explained(file.name, name_groups(groups)):
        rows = [file.metadata.row_group(group) for group in groups]
        chunks = [row.column(leaf) for row in rows for leaf in leaves]
        headers = _Headers(file)
        doubtful = _find_doubtful(file, chunks, leaves, headers)
    for index in doubtful:
        group, leaf = groups[index // len(leaves)], leaves[index % len(leaves)]
        with explained(file.name, f"row group {group}"):
            if problem := _find_problem(headers, chunks[index], leaf):
                raise _damaged(file, group, chunks[index], problem)
    values = iter([chunk.num_values for chunk in chunks])
    return [list(islice(values, len(leaves))) for _ in groups]


def _find_doubtful(
    file: OpenFile, chunks: Sequence[pq.ColumnChunkMetaData], leaves: Sequence[int], headers: _Headers
) -> Iterable[int]:
    """Return which chunks of row groups have to be looked at one by one."""
    if len(chunks) < MANY:
        return range(len(chunks))
    found = read_headers(file, chunks, len(leaves))
    doubtful = ~found.are_sound
    for column, leaf in enumerate(leaves):
        has_levels = found.have_levels[column :: len(leaves)]
        if has_levels.any() and not headers.has_levels(leaf):
            doubtful[column :: len(leaves)] |= has_levels
    indices: list[int] = np.flatnonzero(doubtful).tolist()
    return indices


def check_entries(
    file: OpenFile, groups: Sequence[int], leaves: Sequence[int], claims: list[list[int]], entries: EntryCount
) -> None:
    """Check that rows have as many entries as `check_pages` has returned.

    Raises
    ------
    InputError
        When they have not.
    """
    for index, group in enumerate(groups):
        for leaf, claim, count in zip(leaves, claims[index], entries.of(index), strict=True):
            if count != claim:
                problem = f"its rows have {count} values, and the footer claims {claim}"
                raise _damaged(file, group, file.metadata.row_group(group).column(leaf), problem)


def _damaged(file: OpenFile, group: int, chunk: pq.ColumnChunkMetaData, problem: str) -> InputError:
    place = f"row group {group}, column {chunk.path_in_schema!r}"
    remedy = "fetch or write the file again"
    return InputError(file.name, f"is damaged: {problem}", place=place, remedy=remedy)


def _find_problem(headers: _Headers, chunk: pq.ColumnChunkMetaData, leaf: int) -> str | None:
    values = 0
    allowed = allowed_encodings(chunk)
    try:
        for version, page in headers.read_data_pages(chunk):
            values += page.get(VALUES, 0)
            encoding = page.get(version.encoding, -1)
            # Some old writers list none.
            if allowed and (encoding < 0 or not allowed >> encoding & 1):
                return "a page claims an encoding that its column does not have"
            if any(page.get(field) for field in version.level_bytes) and not headers.has_levels(leaf):
                return "a page claims levels that its column does not have"
    except (IndexError, RecursionError):
        # pyarrow reads no further than the last value either.
        if values != chunk.num_values:
            return "the header of a page cannot be read"
    if values != chunk.num_values:
        return f"its pages claim {values} values, and the footer {chunk.num_values}"
    return None


class _Headers:
    """The headers in a file; what is read for one serves for those that lie near."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._window = b""
        self._start = 0

    def has_levels(self, leaf: int) -> bool:
        """Tell whether the values of a column have levels: whether it may have nulls or lists."""
        column = self._file.columns.column(leaf)
        return bool(column.max_definition_level or column.max_repetition_level)

    def read_data_pages(self, chunk: pq.ColumnChunkMetaData) -> Iterator[tuple[PageVersion, dict[int, int]]]:
        """Yield the numbers in the header of each data page; `IndexError` where there is no header."""
        place = chunk.data_page_offset
        end = min(place, chunk.dictionary_page_offset or place) + chunk.total_compressed_size
        while place < end:
            header, header_bytes = self._read(place)
            for version in VERSIONS:
                if version.header in header.structs:
                    yield version, header.structs[version.header].numbers
            stored_bytes = header.numbers.get(STORED_BYTES, -1)
            if stored_bytes < 0:
                raise IndexError
            place += header_bytes + stored_bytes

    def _read(self, place: int) -> tuple[Struct, int]:
        """Return a header and its size in bytes."""
        sizes = iter(_WINDOW_BYTES)
        while True:
            if 0 <= place - self._start < len(self._window):
                reader = ThriftReader(self._window, place - self._start)
                try:
                    return reader.read_struct(), self._start + reader.place - place
                except IndexError:
                    pass
            if (size := next(sizes, None)) is None:
                raise IndexError
            self._window, self._start = self._file.read_at(place, size), place
