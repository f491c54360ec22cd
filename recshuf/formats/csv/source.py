"""CSV inputs: their common header or the union of several, their line ends, and their records.

Any number of threads read ranges of uncompressed files, and one reads blocks of other inputs. Both end with an error where a
quoted field is open at the end of the input.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import numpy as np

from recshuf.dataclass import dataclass
from recshuf.errors import InputError, UsageError
from recshuf.formats.csv import DELIMITER, PADS_QUOTES, QUOTE, SKIP_LINES
from recshuf.formats.csv.cutter import UNITED_SCHEMA, CleanFragment, Cleaning, CsvCutter
from recshuf.formats.csv.quotes import OddQuote, State
from recshuf.formats.files import fill
from recshuf.formats.lines import HEADER
from recshuf.formats.lines.cutting import CRLF, MARK, cut_batches, view_records
from recshuf.formats.lines.files import BlockReader
from recshuf.formats.lines.source import LineLayout, LineSource, count_batch_records
from recshuf.interfaces import Fragment, Joined
from recshuf.records.arrays import list_known

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from recshuf.formats.csv.quotes import Dialect
    from recshuf.formats.lines.census import LineInput
    from recshuf.formats.lines.cutting import Bytes, RecordLimit
    from recshuf.interfaces import Decoder, InputFile, ReadOptions, ValueReader


_STEP_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CsvLayout(LineLayout):
    """Properties of CSV inputs that CSV shards keep."""

    delimiter: bytes
    headers: tuple[tuple[str, ...], ...] = ()
    """Names of the columns, for each header of the inputs; empty where records are not told apart by them."""
    columns: tuple[str, ...] | None = None
    """Columns to keep, in this order; None for all."""
    differing: tuple[str, ...] = ()
    """An input and another one with other columns; empty if CSV can hold the records of all as they are."""
    notes: tuple[str, ...] = ()
    quote: bytes = b'"'
    is_padded: bool = False
    above: int = 0
    """Bytes of `header` that stand above the header record."""

    @property
    def form(self) -> tuple[object, ...]:
        return self.delimiter, self.quote, self.is_padded, self.headers, self.columns


class CsvSource(LineSource):
    """Inputs in CSV."""

    spans_lines = True

    def __init__(self, files: Sequence[InputFile], options: ReadOptions) -> None:
        self.cutter, self.reader_type = CsvCutter(options), CsvBlockReader
        self._headers: list[tuple[str, ...]] = []
        """Names of the columns of each header, where there are several."""
        self._header_of: dict[bytes, int] = {}
        """Number of a header, by the top of the input."""
        self._differing: tuple[str, ...] = ()
        super().__init__(files, options, self.cutter)
        self._line_end = next((one.line_end for one in self._lines if one.line_end), b"\n")
        header, above = self.layout.header, 0
        if self._line_end == CRLF and header.endswith(b"\n") and not header.endswith(CRLF):
            header = header[:-1] + CRLF  # of an input without a line end
        if top := self.cutter.top:
            lines_above = self.cutter.split_top(self.layout.header)[0]
            above = len(lines_above)
            self.options = self.options.found(
                {
                    DELIMITER: top.dialect.delimiter,
                    QUOTE: top.dialect.quote,
                    PADS_QUOTES: top.dialect.is_padded,
                    HEADER: top.header_records,
                    SKIP_LINES: lines_above.count(b"\n"),
                }
            )
        if len(self._headers) > 1:
            self.schema = UNITED_SCHEMA
        if options.columns is not None:
            self._headers = self._headers or [tuple(self.names)]
            _check_columns(options.columns, self._headers)
        self.notes = tuple(self.cutter.notes)  # with those on headers
        self.layout = CsvLayout(
            self.layout.separator,
            header,
            self.layout.compression,
            self.dialect.delimiter,
            tuple(self._headers),
            options.columns,
            self._differing,
            self._tell_line_ends(),
            self.dialect.quote,
            self.dialect.is_padded,
            above,
        )

    @property
    def dialect(self) -> Dialect:
        return self.cutter.scanner.dialect

    @property
    def names(self) -> list[str]:
        one = next((one for one in self._lines if one.header is not None), None)
        return [] if one is None else self.cutter.parse_names(one.name, one.header or b"")

    def _common_header(self) -> bytes:
        tops: dict[bytes, str] = {}
        for one in self._lines:
            if one.header is not None:
                tops.setdefault(one.header, one.name)
        if not tops:
            return b""
        first = next(iter(tops))
        if len(tops) == 1:
            return first
        above = {self.cutter.split_top(top)[0].removeprefix(MARK).replace(CRLF, b"\n") for top in tops}
        if len(above) > 1:
            self.cutter.notes.append(
                f"the lines above the header differ; CSV of all inputs gets those of {tops[first]}"
            )
        if self.cutter.header_records:
            self._unite({top: tuple(self.cutter.parse_names(name, top)) for top, name in tops.items()}, tops)
        return first

    def _unite(self, names: dict[bytes, tuple[str, ...]], owners: dict[bytes, str]) -> None:
        """Give each header of the inputs a number of the inputs, if they name other columns or in another order."""
        first, known = next(iter(names.values())), next(iter(owners.values()))
        for top, own in names.items():
            if own == first:
                continue
            if not {*own} & {*first}:
                raise InputError(
                    owners[top],
                    f"its header differs from that of {known}, and names none of its columns",
                    remedy="give --header first if only the first input has one, --header none if none has, or shuffle "
                    "them apart",
                )
            if not self._differing:
                self._differing = (owners[top], known)
                self.cutter.notes.append(
                    f"{owners[top]}: its columns are not those of {known}; a conversion unites them by name, with nulls "
                    "where an input lacks one"
                )
        if self._differing:
            self._headers = list(dict.fromkeys(names.values()))
            self._header_of = {top: self._headers.index(own) for top, own in names.items()}

    def _tell_line_ends(self) -> tuple[str, ...]:
        known = [one for one in self._lines if one.line_end]
        other = next((one for one in known if one.line_end != self._line_end), None)
        if other is None:
            return ()
        ends = ("LF", "CRLF") if self._line_end == CRLF else ("CRLF", "LF")
        first = known[0].name
        return (
            f"{other.name}: its lines end in {ends[0]}, those of {first} in {ends[1]}; all get {ends[1]}",
        )

    def _make_cleaning(self, lines: LineInput) -> Cleaning:
        is_other = lines.line_end != self._line_end and (lines.line_end or self._line_end != b"\n")
        header = self._header_of.get(lines.header or b"")
        return Cleaning(lines.name, self.cutter, self._line_end if is_other else None, header)

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[Fragment]:
        cleaning = self._make_cleaning(self._lines[input_index])
        found = super().fragments(input_index, block_bytes, max_record_bytes)
        return (CleanFragment(fragment, cleaning) for fragment in found)

    def read_joined(self, inputs: Sequence[int], block_bytes: int, max_record_bytes: int) -> Joined | None:
        cleanings = [self._make_cleaning(self._lines[index]) for index in inputs]
        if any(one.line_end is not None or one.header is not None for one in cleanings):
            return None
        try:
            joined = super().read_joined(inputs, block_bytes, max_record_bytes)
        except OddQuote:
            return None
        batch = joined and cleanings[0].drop(joined.batch)
        if joined is None or batch is None or batch is joined.batch:
            return joined
        data, offsets = view_records(joined.batch.column(0))
        kept = np.append(0, np.cumsum(self.cutter.find_kept(data, offsets)))
        return Joined(batch, np.diff(kept[np.append(0, np.cumsum(joined.rows))]).tolist())

    def _ranges(self, lines: LineInput, block_bytes: int, limit: RecordLimit) -> Iterator[Fragment]:
        for begin, end in _find_ranges(lines, self.cutter, limit, block_bytes):
            yield RecordRange(lines, self.cutter, limit, (begin, end), count_batch_records(block_bytes))

    def decoder(self) -> Decoder:
        from recshuf.formats.csv.decoder import CsvDecoder

        return CsvDecoder(
            [summary.name for summary in self.inputs],
            self.dialect,
            self._headers or [self.names],
            self.options,
        )

    def value_reader(self, paths: Sequence[str]) -> ValueReader:
        from recshuf.formats.csv.decoder import CsvValueReader

        given = self.options.schema  # names the columns of inputs that are all empty
        headers = self._headers or [tuple(self.names or (given.names if given is not None else []))]
        names = [summary.name for summary in self.inputs]
        return CsvValueReader(names, self.dialect, headers, paths, self.options.columns)


def _check_columns(columns: Sequence[str], headers: Sequence[Sequence[str]]) -> None:
    known = dict.fromkeys(name for names in headers for name in names)
    if lacking := [name for name in columns if name not in known]:
        listed = list_known(lacking[0], known, repr)
        raise UsageError(f"no column {lacking[0]!r} in the inputs; there are {listed}")


def _unclosed_error(name: str, line: int) -> InputError:
    problem = "a quoted field of the record that begins here is not closed"
    remedy = "close it, or give --quote none if quotes have no meaning"
    return InputError(name, problem, place=f"line {line}", remedy=remedy)


class CsvBlockReader(BlockReader):
    """Cuts bytes into blocks of whole CSV records, and counts their lines."""

    _line_count = 0
    """Of the blocks before."""

    def _make_fragment(self, *block: Any) -> Iterator[Fragment]:
        self._line_count += _count_lines(block[0])
        return super()._make_fragment(*block)

    def _terminate(self, data: Bytes, begin: int, end: int) -> int:
        stop = super()._terminate(data, begin, end)
        if self._cutter.find_last_end(data[begin:stop]) != stop - begin:
            lines_before = (self._header or b"").count(b"\n") + self._line_count + _count_lines(data[:begin])
            raise _unclosed_error(self._limit.name, 1 + lines_before)
        return stop


class RecordRange(Fragment):
    """The records in a range of bytes of a file, which begins and ends between records."""

    def __init__(
        self,
        lines: LineInput,
        cutter: CsvCutter,
        limit: RecordLimit,
        place: tuple[int, int],
        max_records: int,
    ) -> None:
        self._lines, self._cutter, self._limit = lines, cutter, limit
        self._begin, self._end = place
        self._max_records = max_records

    def batches(self) -> Iterator[pa.RecordBatch]:
        data = self._lines.require_file().read_lines(self._begin, self._end, self._cutter)
        last = 0
        for batch in cut_batches(data, 0, self._cutter.find_records(data, 0), self._max_records):
            self._limit.check(batch, self._begin)
            last += view_records(batch.column(0))[0].size
            yield batch
        if last != data.size:
            raise _refuse_unclosed(self._lines, self._begin + last)


def _find_ranges(
    lines: LineInput, cutter: CsvCutter, limit: RecordLimit, block_bytes: int
) -> Iterator[tuple[int, int]]:
    """Yield ranges of whole records, without reading all of a file where quotes tell.

    Only one of a single record exceeds `block_bytes`.
    """
    file, begin = lines.require_file(), lines.data_begin
    handle = file.open()

    def read(begin: int, end: int) -> Bytes:
        data = np.empty(end - begin, np.uint8)
        fill(handle, begin, data, file.name)
        return data

    def find_next_end(begin: int) -> int:
        """Return the end of the record at `begin`, before memory for the record is taken."""
        state = State()
        for at in range(begin, file.size, _STEP_BYTES):
            data = read(at, min(at + _STEP_BYTES, file.size))
            for ends, behind in cutter.scanner.find_ends(data, 0, state):
                if ends.size:
                    return at + int(ends[0])
                state = behind
            if at + data.size - begin > limit.searched_bytes:
                raise limit.exceeded(begin)
        return file.size

    with closing(handle):
        while begin < file.size:
            end = min(begin + block_bytes, file.size)
            if end < file.size:
                end = cutter.scanner.find_cut(read, begin, end) or find_next_end(begin)
                if end - begin > max(block_bytes, limit.max_bytes):  # of a single record
                    raise limit.exceeded(begin, end - begin)
            yield begin, end
            begin = end


def _refuse_unclosed(lines: LineInput, position: int) -> InputError:
    """Return the error for the record at this byte, counting the lines before it."""
    buffer = np.empty(_STEP_BYTES, np.uint8)
    line, left = 1, position
    with closing(lines.open()) as reader:
        while left and (count := reader.readinto(buffer.data[:left])):
            line += _count_lines(buffer[:count])
            left -= count
    return _unclosed_error(lines.name, line)


def _count_lines(data: Bytes) -> int:
    return int(np.count_nonzero(data == ord("\n")))
