"""Page headers of many column chunks, read in step: alone, each takes longer than its page where row groups are tiny.

Headers of one writer mostly have the same fields in the same order, so that one look at the fields of the first serves
for all, and the numbers in a field are read from all at once. Those that look different are read in step with each
other, and what cannot be told so is left to be looked at alone.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recshuf.formats.parquet.metadata.thrift import BINARY, BYTE, DOUBLE, FALSE, INT16, INT64, STRUCT, TRUE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow.parquet as pq
    from numpy.typing import NDArray

    from recshuf.formats.parquet.metadata.file import OpenFile

_MOST_BYTES = 4 << 20
"""Beyond this, to read all that lies between the headers takes longer than to look at them one by one."""
MANY = 64
"""So many column chunks are worth looking at together."""
_FEW = 8
"""So many headers are not worth reading in step."""
_MOST_SHAPES = 8
_MOST = 1 << 40
"""What no page has more of, bytes or values."""
_SKIPPED = {TRUE: 0, FALSE: 0, BYTE: 1, DOUBLE: 8}
"""Bytes of the values of other types."""


class PageVersion(NamedTuple):
    """Where the header of a data page says what; the structs and fields of `PageHeader` in parquet.thrift."""

    header: int
    encoding: int
    level_bytes: tuple[int, ...]


VERSIONS = (PageVersion(5, 2, ()), PageVersion(8, 4, (5, 6)))
_ENCODINGS = {
    "PLAIN": (0,),
    "PLAIN_DICTIONARY": (2, 8),  # two names of the same
    "RLE": (3,),
    "BIT_PACKED": (4,),
    "DELTA_BINARY_PACKED": (5,),
    "DELTA_LENGTH_BYTE_ARRAY": (6,),
    "DELTA_BYTE_ARRAY": (7,),
    "RLE_DICTIONARY": (2, 8),
    "BYTE_STREAM_SPLIT": (9,),
}
STORED_BYTES = 3
"""Field of every header."""
VALUES = 1
"""Field of that of a data page."""


class Findings(NamedTuple):
    """What the page headers of column chunks say, an item for each chunk."""

    are_sound: NDArray[np.bool_]
    """Whether all pages are surely what the footer says, levels aside."""
    have_levels: NDArray[np.bool_]
    """Whether a page claims levels beside its values."""


def read_headers(file: OpenFile, chunks: Sequence[pq.ColumnChunkMetaData], columns: int) -> Findings:
    """Return what the page headers of row groups say, each of so many column chunks, in the order of the file.

    Nothing is known of those that are few or lie far apart.
    """
    sizes = np.array([chunk.total_compressed_size for chunk in chunks], np.int64)
    places = np.array([chunk.data_page_offset for chunk in chunks], np.int64)
    starts = np.array([chunk.dictionary_page_offset or 0 for chunk in chunks], np.int64)
    starts = np.where(starts, np.minimum(starts, places), places)
    ends = starts + np.minimum(sizes, _MOST)
    values = np.array([chunk.num_values for chunk in chunks], np.int64)
    encodings = np.array([allowed_encodings(chunk) for chunk in chunks], np.int64)
    found = Findings(np.zeros(len(chunks), np.bool_), np.zeros(len(chunks), np.bool_))
    firsts, lasts = starts.reshape(-1, columns).min(axis=1), ends.reshape(-1, columns).max(axis=1)
    for run in _list_runs(firsts.tolist(), lasts.tolist()):
        part = slice(run.start * columns, run.stop * columns)
        if part.stop - part.start < MANY:
            continue
        first, last = int(firsts[run.start]), int(lasts[run.start : run.stop].max())
        if first >= 0 and 0 < last - first <= _MOST_BYTES:
            data = np.frombuffer(file.read_at(first, last - first), np.uint8)
            read = _look(data, places[part] - first, ends[part] - first, values[part], encodings[part])
            found.are_sound[part], found.have_levels[part] = read
    return found


def _list_runs(firsts: list[int], lasts: list[int]) -> Iterator[range]:
    """Yield runs of row groups, of which each begins and ends here, that can be read in one go."""
    begin = 0
    for index, (first, last) in enumerate(zip(firsts, lasts, strict=True)):
        if first < firsts[begin] or last - firsts[begin] > _MOST_BYTES:
            yield range(begin, index)
            begin = index
    yield range(begin, len(firsts))


def _look(
    data: NDArray[np.uint8],
    places: NDArray[np.int64],
    ends: NDArray[np.int64],
    values: NDArray[np.int64],
    encodings: NDArray[np.int64],
) -> Findings:
    """Return what the pages say that begin at these places, and those behind them up to these ends.

    Parameters
    ----------
    values, encodings
        How many values the pages of each should have, and in which encodings, see `allowed_encodings`. The arrays are
        changed.
    """
    known = np.ones(len(places), np.bool_)
    levels = np.zeros(len(places), np.bool_)
    while (left := np.flatnonzero(known & (places < ends))).size:
        for _ in range(_MOST_SHAPES):
            pages = _read_alike(data, places[left]) if left.size >= _FEW else None
            if pages is None:
                break
            chosen = left[pages.rows]
            places[chosen] = pages.ends
            counts = pages.count_values()
            values[chosen] -= counts
            known[chosen] &= (counts >= 0) & (counts <= _MOST) & (pages.ends <= ends[chosen])
            known[chosen] &= pages.have_encodings(encodings[chosen])
            levels[chosen] |= pages.have_levels()
            left = np.delete(left, pages.rows)
        known[left] = False
    return Findings(known & (values == 0), levels)


def allowed_encodings(chunk: pq.ColumnChunkMetaData) -> int:
    """Return the encodings that the pages of a column chunk may have, as bits; 0 where the footer does not say."""
    return _number_encodings(chunk.encodings)


@cache
def _number_encodings(names: tuple[str, ...]) -> int:
    return sum(1 << number for number in {number for name in names for number in _ENCODINGS.get(name, ())})


def _read_alike(data: NDArray[np.uint8], places: NDArray[np.int64]) -> _Pages | None:
    """Return what the headers say that begin at some of these places, and look like the first; None for an unusual one."""
    headers = _Pages(data, places)
    try:
        headers.read_struct()
        headers.skip(headers.numbers[0, STORED_BYTES])
    except (IndexError, KeyError, RecursionError):
        return None
    return headers


class _Pages:
    """Headers that are read in step, as `ThriftReader` reads one; whose fields differ from the first are left behind.

    Every method that reads raises `IndexError` where that does not work.
    """

    def __init__(self, data: NDArray[np.uint8], places: NDArray[np.int64]) -> None:
        self._data = data
        self.rows = np.arange(len(places))
        """Which of the headers these are."""
        self.ends = places.copy()
        """How far each has been read, in the end where the next begins."""
        self.numbers: dict[tuple[int, int], NDArray[np.int64]] = {}
        """By the field of the struct, 0 for the header itself, and the field in there."""
        self._structs = {0}

    def count_values(self) -> NDArray[np.int64]:
        """Return how many values each page claims."""
        values = np.zeros(len(self.rows), np.int64)
        for version in self._versions():
            values += self.numbers.get((version.header, VALUES), 0)
        return values

    def have_encodings(self, allowed: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell of each page whether it has one of the encodings that are allowed for it, as bits; 0 allows any."""
        found = np.ones(len(self.rows), np.bool_)
        for version in self._versions():
            encodings = self.numbers.get((version.header, version.encoding), np.full(len(self.rows), -1))
            is_listed = (encodings >= 0) & (encodings < 63) & (allowed >> (encodings & 63) & 1 > 0)
            found &= is_listed | (allowed == 0)
        return found

    def have_levels(self) -> NDArray[np.bool_]:
        """Tell of each page whether it claims levels beside its values."""
        found = np.zeros(len(self.rows), np.bool_)
        for version in self._versions():
            for field in version.level_bytes:
                found |= self.numbers.get((version.header, field), 0) != 0
        return found

    def _versions(self) -> list[PageVersion]:
        return [version for version in VERSIONS if version.header in self._structs]

    def read_struct(self, outer: int = 0) -> None:
        """Read the fields of a struct up to its end."""
        field = 0
        while kind := (head := self._read_head()) & 15:
            field = field + (head >> 4) if head > 15 else self._keep_alike(self._read_number())
            if INT16 <= kind <= INT64:
                self.numbers[outer, field] = self._read_number()
            elif kind == STRUCT:
                self._read_inner(outer, field)
            elif kind == BINARY:
                self.skip(self._read_varint())
            elif kind in _SKIPPED:
                self.ends += _SKIPPED[kind]
            else:
                raise IndexError

    def _read_inner(self, outer: int, field: int) -> None:
        if outer:
            field = -1  # nothing of use
        elif field in self._structs:
            raise IndexError
        self._structs.add(field)
        self.read_struct(field)

    def skip(self, sizes: NDArray[np.int64]) -> None:
        """Go past so many bytes in each."""
        if sizes.min() < 0 or sizes.max() > _MOST:
            raise IndexError
        self.ends += sizes

    def _read_head(self) -> int:
        """Read the byte at the beginning of a field."""
        head = self._keep_alike(self._data[self.ends])
        self.ends += 1
        return head

    def _keep_alike(self, found: NDArray[Any]) -> int:
        """Leave all headers behind in which something else was found than in the first, and return what that is."""
        alike = found == found[0]
        if not alike.all():
            self.rows, self.ends = self.rows[alike], self.ends[alike]
            self.numbers = {place: numbers[alike] for place, numbers in self.numbers.items()}
        return int(found[0])

    def _read_number(self) -> NDArray[np.int64]:
        number = self._read_varint()
        return number >> 1 ^ -(number & 1)

    def _read_varint(self) -> NDArray[np.int64]:
        byte = self._data[self.ends]
        self.ends += 1
        number = (byte & 0x7F).astype(np.int64)
        longer = np.flatnonzero(byte > 0x7F)
        for shift in range(7, 63, 7):  # as far as it surely fits 64 bits
            if not longer.size:
                return number
            byte = self._data[self.ends[longer]]
            self.ends[longer] += 1
            number[longer] |= (byte & 0x7F).astype(np.int64) << shift
            longer = longer[byte > 0x7F]
        raise IndexError
