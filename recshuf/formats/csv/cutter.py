"""Cuts CSV outside of quotes, below what stands at the top of an input, and cleans records as they are read.

Lines that are no records are left out, and line ends made alike. In most inputs there is nothing to do, and batches stay
as they are.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.dataclass import dataclass
from recshuf.errors import InputError
from recshuf.formats.csv import COMMENT, QUOTE, SKIP_LINES
from recshuf.formats.csv.quotes import Dialect, OddQuote, QuoteScanner, State, find_returns
from recshuf.formats.csv.top import Top, examine, parse_head
from recshuf.formats.lines.cutting import (
    CRLF,
    MARK,
    SCHEMA,
    Cutter,
    Header,
    RecordLimit,
    make_batch,
    view_records,
)
from recshuf.formats.lines.files import fill
from recshuf.interfaces import Fragment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.lines.cutting import Bytes, Positions
    from recshuf.interfaces import ReadOptions

    Mask = NDArray[np.bool_]


_HEAD_BYTES = 1 << 16
HEADER_BYTES = 2
UNITED_SCHEMA = SCHEMA.append(pa.field("header", pa.binary(HEADER_BYTES), nullable=False))
"""Native form of records under several headers: each has the number of its header, two bytes, the lowest first."""
_NEWLINE, _RETURN = b"\n\r"
_BLANK_BYTES = 2


class CsvCutter(Cutter):
    """Cuts records at newlines outside of quotes.

    The first input that is not empty decides what is detected; it must be looked at first.
    """

    has_header = True  # or a byte order mark
    long_record_hint = ", or close a quoted field that is open"

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self.comment: bytes = COMMENT.of(options)
        """Byte with which lines begin that are no records; empty for none."""
        self.top: Top | None = None
        """That of the first input that is not empty."""
        self._told: set[str] = set()
        self._first_name = ""
        self._first_lines = b""
        """All lines above the records of that input."""
        self._above: dict[bytes, int] = {}
        """Bytes above the header, by the whole top."""
        self.scanner = QuoteScanner(Dialect.of(options))

    @property
    def header_records(self) -> int:
        return self.top.header_records if self.top else 0

    def split_top(self, top: bytes) -> tuple[bytes, bytes]:
        """Return the byte order mark and the lines above a header, and the header."""
        begin = self._above[top]
        return top[:begin], top[begin:]

    def parse_names(self, name: str, top: bytes) -> list[str]:
        """Return the names of the columns of an input: the fields of its first header record, or f0, f1 and so on."""
        if self.top is None:
            return []
        if not self.header_records:
            return [f"f{index}" for index in range(max(1, self.top.width))]
        fields = parse_head(self.split_top(top)[1], self.top.dialect)[0].fields
        try:
            names = [field.encode("latin-1").decode() for field in fields]
        except UnicodeDecodeError as error:
            raise InputError(name, "is not UTF-8", place="the header", remedy="save it as UTF-8") from error
        if names.count("") > 1:
            names = [field or f"f{index}" for index, field in enumerate(names)]
        if twice := [field for field, count in Counter(names).items() if count > 1]:
            raise InputError(
                name, f"two columns are named {twice[0]!r}", place="the header", remedy="rename one of them"
            )
        return names

    def take_header(self, name: str, reader: ByteReader, *, is_compressed: bool) -> Header:
        # A byte order mark is part of the header.
        data = np.empty(_HEAD_BYTES, np.uint8)
        filled = fill(reader, data.data)
        if data[:filled].tobytes() in (b"", MARK):
            return Header(None, b"", filled)
        limit = RecordLimit(
            name, self.options.max_record_bytes, "--max-record-bytes", is_compressed, self.long_record_hint
        )
        is_part = self.top is not None and self.header_in_first
        begin, wanted = self._examine(name, data[:filled].tobytes(), is_whole=filled < data.size)
        size = filled
        while (end := self._find_header_end(data[:size], begin, wanted)) < 0:
            if filled == data.size:
                if filled > limit.max_bytes:
                    raise limit.exceeded(0)
                data = np.concatenate([data, np.empty_like(data)])
                size = filled = filled + fill(reader, data.data[filled:])
            elif size == filled and data[filled - 1] != _NEWLINE:
                data[filled], size = _NEWLINE, filled + 1  # the last line may lack its end
            else:
                problem = f"has fewer complete records than its header, {wanted}"
                raise InputError(name, problem, remedy="check --header and --quote")
        self._refuse_returns(name, data[begin:end])
        line_end = self._find_end_bytes(data[:filled], begin)
        rest = data[end:filled].tobytes()
        if is_part:
            return Header(None, rest, end, line_end)
        lines = data[:end].tobytes()
        if not self._above:
            self._first_lines = lines.removeprefix(MARK)
        self._above.setdefault(lines, begin)
        return Header(lines, rest, min(end, filled), line_end)

    def _refuse_returns(self, name: str, header: Bytes) -> None:
        """Refuse a header that other readers take for several lines: records would be lost in it."""
        returns = find_returns(header, self.scanner.dialect)
        if (header[returns + 1] != ord("\r")).any():  # those directly before a newline end one line only
            problem = "holds a carriage return outside of quotes"
            remedy = r"end lines with newlines, as tr '\r' '\n' makes them"
            raise InputError(name, problem, place="the header", remedy=remedy)

    def _find_header_end(self, data: Bytes, begin: int, wanted: int) -> int:
        """Return the end of the first `wanted` records; -1 if there are fewer."""
        if not wanted:
            return begin
        for ends in self.find_ends(data, begin):
            if wanted <= ends.size:
                return int(ends[wanted - 1])
            wanted -= ends.size
        return -1

    def _examine(self, name: str, head: bytes, *, is_whole: bool) -> tuple[int, int]:
        """Return where the header of an input begins, and its number of records; the first one decides the dialect."""
        begin = len(MARK) if head.startswith(MARK) else 0
        if self.top is not None and self.header_in_first:
            return begin, 0
        if self.top is not None and self._first_lines and head.startswith(self._first_lines, begin):
            return begin + self.top.skipped, self.top.header_records
        if head.count(b"\n") < (SKIP_LINES.of(self.options) or 0):
            problem = f"has {head.count(10):,} lines {'' if is_whole else 'in its first 64 KiB'}".rstrip()
            remedy = f"give less than --skip-lines {SKIP_LINES.of(self.options)}"
            raise InputError(name, problem, remedy=remedy)
        top = examine(head[begin:], self.options, self.top, is_whole=is_whole)
        for note in top.notes:
            if (remedy := note.rpartition("; ")[2]) not in self._told:  # once, however many inputs
                self._told.add(remedy)
                self.notes.append(f"{name}: {note}")
        if self.top is None:
            self.top, self._first_name = top, name
            self.scanner = QuoteScanner(top.dialect)
        elif top.header_records != self.header_records:
            is_first = self.top.header_records == 1 and not top.header_records
            problem = f"{'begins' if top.header_records else 'does not begin'} with a header line, unlike {self._first_name}"
            remedy = f"give {'--header first, ' if is_first else ''}--header 1 or --header none"
            raise InputError(name, problem, remedy=remedy)
        return begin + top.skipped, top.header_records

    def _find_end_bytes(self, data: Bytes, begin: int) -> bytes | None:
        """Return what ends the first record, or the header; None if nothing does."""
        ends = next((ends for ends in self.find_ends(data, begin) if ends.size), None)
        if ends is None:
            return None
        return CRLF if data[begin : ends[0]][-len(CRLF) :].tobytes() == CRLF else self.separator

    def count_records(self, data: Bytes, offsets: Positions) -> int:
        return int(self.find_kept(data, offsets).sum())

    def is_record(self, rest: Bytes) -> bool:
        ended = np.append(rest, np.uint8(_NEWLINE))
        return rest.size > 0 and self.count_records(ended, np.array([0, ended.size])) > 0

    @property
    def drops_blank(self) -> bool:
        return self.top is not None and self.top.width > 1

    def find_kept(self, data: Bytes, offsets: Positions) -> Mask:
        """Tell which lines are records, apart from headers."""
        wanted = np.ones(offsets.size - 1, np.bool_)
        if self.drops_blank:
            sizes = np.diff(offsets)
            wanted &= ~((sizes == 1) | ((sizes == _BLANK_BYTES) & (data[offsets[:-1]] == _RETURN)))
        if self.comment:
            wanted &= data[offsets[:-1]] != self.comment[0]
        return wanted

    def find_ends(self, data: Bytes, begin: int) -> Iterator[Positions]:
        return (ends for ends, _ in self.scanner.find_ends(data, begin, State()))

    def find_records(self, data: Bytes, begin: int) -> Iterator[Positions]:
        # Of bad records that are set aside, one that joins lines is one.
        is_strict = QUOTE.of(self.options) is None and not self.options.sets_bad_aside
        found = self.scanner.find_ends(data, begin, State(), is_strict=is_strict)
        return (ends for ends, _ in found)

    def find_last_end(self, data: Bytes) -> int:
        return self.scanner.find_cut(lambda begin, end: data[begin:end], 0, data.size)


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What is done to the records of one input."""

    name: str
    cutter: CsvCutter
    line_end: bytes | None = None
    """What lines get for an end; None to leave it."""
    header: int | None = None
    """Number of its header; None where all have one."""

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.cutter.comment or self.cutter.drops_blank:
            batch = self.drop(batch)
        if self.line_end is not None:
            batch = _set_ends(batch, self.line_end)
        if self.header is None:
            return batch
        numbers = np.full(batch.num_rows, self.header, "<u2")
        column = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(HEADER_BYTES), batch.num_rows, [None, pa.py_buffer(numbers)]
        )
        return pa.RecordBatch.from_arrays([batch.column(0), column], schema=UNITED_SCHEMA)

    def drop(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        data, offsets = view_records(batch.column(0))
        if not self.cutter.comment and int(np.diff(offsets).min(initial=_BLANK_BYTES + 1)) > _BLANK_BYTES:
            return batch
        wanted = self.cutter.find_kept(data, offsets)
        if wanted.all():
            return batch
        if self.cutter.comment:
            self._refuse_long_comments(data, offsets)
        return batch.filter(pa.array(wanted))

    def _refuse_long_comments(self, data: Bytes, offsets: Positions) -> None:
        """Refuse comments that are many lines because a quote is open in them: the others would be lost."""
        ends = np.flatnonzero(data == _NEWLINE) + 1
        lines = np.diff(np.searchsorted(ends, offsets, "right"))
        long = np.flatnonzero((lines > 1) & (data[offsets[:-1]] == self.cutter.comment[0]))
        if long.size:
            begin = int(offsets[long[0]])
            text = data[begin : begin + 40].tobytes().partition(b"\n")[0].decode(errors="replace")
            problem = f"a quote in the comment {text!r} takes further lines into it"
            remedy = "remove the quote, or give --quote none if quotes are text"
            raise InputError(self.name, problem, remedy=remedy)


class CleanFragment(Fragment):
    """The records of a fragment, with what is done to them."""

    def __init__(self, fragment: Fragment, cleaning: Cleaning) -> None:
        self._fragment = fragment
        self._cleaning = cleaning

    def batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._fragment.batches():
                if (cleaned := self._cleaning.apply(batch)).num_rows:
                    yield cleaned
        except OddQuote as odd:
            problem = f"text follows the quote that ends a field of several lines: {odd.text!r}"
            remedy = "correct it, or give --quote none if quotes are text, or --quote '\"' if they are quotes"
            raise InputError(self._cleaning.name, problem, remedy=remedy) from None


def _set_ends(batch: pa.RecordBatch, line_end: bytes) -> pa.RecordBatch:
    data, offsets = view_records(batch.column(0))
    ends = offsets[1:]
    has_return = data[ends - 2] == _RETURN  # before a newline alone there is another one
    if line_end == b"\n":
        return make_batch(
            np.delete(data, ends[has_return] - 2), offsets - np.append(0, np.cumsum(has_return))
        )
    data = np.insert(data, ends[~has_return] - 1, _RETURN)
    return make_batch(data, offsets + np.append(0, np.cumsum(~has_return)))
