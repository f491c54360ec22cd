"""Cuts CSV outside of quotes; finds the delimiter and the header in the first records of an input."""

from __future__ import annotations

import csv
import io
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import InputError
from recshuf.formats.csv.quotes import Dialect, QuoteScanner, State, find_returns
from recshuf.formats.lines.cutting import MARK, Cutter, Header, RecordLimit
from recshuf.formats.lines.files import fill

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recshuf.formats.compression.readers import ByteReader
    from recshuf.formats.lines.cutting import Bytes, Positions
    from recshuf.interfaces import ReadOptions


_DELIMITERS = (b",", b"\t", b";", b"|")
_MOST_RECORDS = 100
_HEAD_BYTES = 1 << 16
_SYNC_BYTES = (1 << 14, 1 << 18)


class CsvCutter(Cutter):
    """Cuts records at newlines outside of quotes.

    The first input that is not empty decides what is detected; it must be looked at first.
    """

    has_header = True  # or a byte order mark
    long_record_hint = ", or close a quoted field that is open"

    def __init__(self, options: ReadOptions) -> None:
        super().__init__(options)
        self.dialect: Dialect | None = (
            Dialect(options.delimiter, options.quote) if options.delimiter else None
        )
        self._top = b""
        """The beginning of the first input that is not empty, its header or more."""
        self._first: tuple[str, int] | None = None
        """The first input that is not empty, and its number of header records."""
        self.scanner = QuoteScanner(self.dialect or Dialect(b",", options.quote))
        """Finds records in the dialect of the inputs."""

    @property
    def header_records(self) -> int:
        """Number of header records of every input that is not empty."""
        return self._first[1] if self._first else 0

    @property
    def names(self) -> list[str]:
        """Names of the columns: the fields of the first header record, or f0, f1 and so on."""
        if self._first is None or self.dialect is None:
            return []
        name, header_records = self._first
        rows = _parse_head(self._top, *self.dialect)
        if not header_records:
            return [f"f{index}" for index in range(max(1, len(rows[0]) if rows else 0))]
        try:
            names = [field.encode("latin-1").decode() for field in rows[0]]
        except UnicodeDecodeError as error:
            raise InputError(name, "is not UTF-8", place="the header", remedy="save it as UTF-8") from error
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
        wanted = self._detect(name, data[:filled].tobytes())
        limit = RecordLimit(
            name, self.options.max_record_bytes, "--max-record-bytes", is_compressed, self.long_record_hint
        )
        begin = len(MARK) if data[: len(MARK)].tobytes() == MARK else 0
        while (end := self._find_header_end(data[:filled], begin, wanted)) < 0 and filled == data.size:
            if filled > limit.max_bytes:
                raise limit.exceeded(0)
            data = np.concatenate([data, np.empty_like(data)])
            filled += fill(reader, data.data[filled:])
        self._top = self._top or data[: max(end, _HEAD_BYTES)].tobytes()[:filled]
        if end >= 0:
            self._refuse_returns(name, data[begin:end])
            return Header(data[:end].tobytes(), data[end:filled].tobytes(), end)
        return self._end_header(name, data[:filled], begin, wanted)

    def _end_header(self, name: str, data: Bytes, begin: int, wanted: int) -> Header:
        """Return the header of an input that ends with it, without a newline."""
        whole = np.append(data, np.uint8(self.separator[0]))
        if (
            self._find_header_end(whole, begin, wanted) == whole.size
            and data[-1:].tobytes() != self.separator
        ):
            self._refuse_returns(name, whole[begin:])
            return Header(whole.tobytes(), b"", data.size)
        raise InputError(
            name, f"has fewer complete records than its header, {wanted}", remedy="check --header and --quote"
        )

    def _refuse_returns(self, name: str, header: Bytes) -> None:
        """Refuse a header that other readers take for several lines: records would be lost in it."""
        returns = find_returns(header, self.scanner.dialect)
        if (header[returns + 1] != ord("\r")).any():  # those directly before a newline end one line only
            raise InputError(
                name,
                "holds a carriage return outside of quotes",
                place="the header",
                remedy=r"end lines with newlines, as tr '\r' '\n' makes them",
            )

    def _find_header_end(self, data: Bytes, begin: int, wanted: int) -> int:
        """Return the end of the first `wanted` records; -1 if there are fewer."""
        if not wanted:
            return begin
        for ends in self.find_ends(data, begin):
            if wanted <= ends.size:
                return int(ends[wanted - 1])
            wanted -= ends.size
        return -1

    def _detect(self, name: str, head: bytes) -> int:
        """Return the number of header records of an input; the first one decides the dialect."""
        quote = self.options.quote
        if self.dialect is None:
            self.dialect = Dialect(_detect_delimiter(head, quote), quote)
            self.scanner = QuoteScanner(self.dialect)
        count = self.options.header_lines
        if self.options.finds_header:
            count = int(_has_header(name, _parse_head(head, *self.dialect)))
        self._first = self._first or (name, count)
        if count != self._first[1]:
            raise InputError(
                name,
                f"{'begins' if count else 'does not begin'} with a header line, unlike {self._first[0]}",
                remedy="give --header 1 or --header none",
            )
        return count

    def find_ends(self, data: Bytes, begin: int) -> Iterator[Positions]:
        return (ends for ends, _ in self.scanner.find_ends(data, begin, State()))

    def find_last_end(self, data: Bytes) -> int:
        # Looks at the end first, and only if that does not tell, at everything.
        for size in _SYNC_BYTES:
            begin = max(0, data.size - size)
            if begin and (end := self.scanner.find_synced_end(data[begin:])):
                return begin + end
        return self.scanner.find_last_end(data, 0, State())[0]


def _detect_delimiter(head: bytes, quote: bytes) -> bytes:
    r"""Return the delimiter that gives the most records of `head` the same number of fields; a comma if none does.

    >>> _detect_delimiter(b'a;b\\n"x;y,z";1,5\\n', b'"')
    b';'
    """

    def judge(delimiter: bytes) -> tuple[float, int]:
        sizes = Counter(map(len, _parse_head(head, delimiter, quote)))
        size, count = sizes.most_common(1)[0] if sizes else (1, 0)
        return (count / sizes.total(), size) if size > 1 else (0.0, 0)

    return max(_DELIMITERS, key=judge)


def _parse_head(head: bytes, delimiter: bytes, quote: bytes) -> list[list[str]]:
    """Return the fields of the first records; the last one, which may be cut, is left out if there are others."""
    text = io.StringIO(head.removeprefix(MARK).decode("latin-1"), newline="")
    rows = csv.reader(
        text,
        delimiter=delimiter.decode("latin-1"),
        quotechar=quote.decode("latin-1") or None,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
    )
    records: list[list[str]] = []
    try:
        records.extend(islice(rows, _MOST_RECORDS))
    except csv.Error:  # a field of this delimiter is too long, or a return ends a line
        return records
    return records[:-1] if 1 < len(records) < _MOST_RECORDS and not head.endswith(b"\n") else records


def _has_header(name: str, rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first record is a header.

    It is one if no field is a number, or if another field stands over numbers.
    """
    first = rows[0] if rows else []
    if not any(_is_number(field) for field in first):
        return any(first)
    texts = [index for index, field in enumerate(first) if field and not _is_number(field)]
    if not texts:
        return False
    others = [row for row in rows[1:] if len(row) == len(first)]
    if any(others and all(_is_number(row[index]) for row in others) for index in texts):
        return True
    raise InputError(
        name,
        "its first record may be a header, but holds numbers",
        place="line 1",
        remedy="give --header 1 or --header none",
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
