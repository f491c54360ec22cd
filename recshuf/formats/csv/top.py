"""What stands at the top of CSV: lines above the header, the delimiter, what quotes mean, and the header itself.

Decided by the first records. What they leave open, or what other readers decide differently, is said in a note.

The first record is a header as DuckDB's sniffer and people judge it. Names over values of another type show one;
so do the numbers by which pandas names columns, and years. Where all is text, it is one, as all readers take it. Where nothing
shows, it is a record.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from recshuf.formats.csv import COMMENT, DELIMITER, QUOTE, SKIP_LINES
from recshuf.formats.csv.quotes import Dialect
from recshuf.formats.lines import HEADER, count_header_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.interfaces import ReadOptions


_DELIMITERS = (b",", b"\t", b";", b"|")
_MOST_RECORDS = 100
_GLANCE_BYTES = 4096
_MOST_LINES_ABOVE = 50
_MARKS = ("#", "%")
"""How lines begin that many programs write above a table."""
_SEPARATOR_LINE = re.compile(rb'"?sep=([^\r\n"])"?\r?(?:\n|\Z)', re.IGNORECASE)
"""The line by which Excel is told the delimiter."""
_CLEAR_SHARE = 0.9
_SHOWN = 60
_TAKEN = "header taken: {}; --header none if it is a record"
_LEFT = "no header taken, but a record: {}; --header 1 if it is the header"
_WORDS_FOR_NOTHING = frozenset(["na", "n/a", "null", "none", "-", "?"])
_FLAGS = frozenset(["true", "false"])
_TIME = re.compile(
    r"(?:\d{4}[-/]\d\d?[-/]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{4})(?:[ T]\d\d?:\d\d.*)?|\d\d?:\d\d(?::\d\d.*)?"
)
_FIRST_YEAR, _LAST_YEAR = 1900, 2100


class Row(NamedTuple):
    """A record of the head."""

    fields: list[str]
    line: int
    """Number of lines before it."""


class Top(NamedTuple):
    """What stands above the records of an input."""

    dialect: Dialect
    skipped: int
    """Bytes above the header, or above the first record."""
    header_records: int
    first: list[str]
    """Fields of the first record below these bytes, the header if it is one."""
    notes: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """Number of fields of the first record; 0 if there is none."""
        return len(self.first)


def examine(head: bytes, options: ReadOptions, before: Top | None, *, is_whole: bool) -> Top:
    """Return the top of an input by its first bytes, or all of them, without a byte order mark.

    The dialect of the first input, whose top is `before`, holds for all.
    """
    notes: list[str] = []
    header, skipped = HEADER.of(options), SKIP_LINES.of(options)
    above, delimiter = _skip_given(head, options, notes)
    body = head[above:]
    plain = body
    comment = COMMENT.of(options)
    if comment:
        plain = re.sub(rb"(?m)^" + re.escape(comment) + rb".*$", b"", body)
    if before is None:
        dialect = _find_dialect(plain, DELIMITER.of(options) or delimiter, options, notes, is_whole=is_whole)
        rows = parse_head(body, dialect)
    else:
        dialect = before.dialect
        first = next((row.fields for row in parse_head(body[:_GLANCE_BYTES], dialect, 1)), [])
        if first and header is None and find_kinds(first) == find_kinds(before.first):
            return before._replace(skipped=above, first=first, notes=tuple(notes))
        rows = parse_head(body, dialect)
    if skipped is None:
        count = _count_above(rows, is_free=header is None)
        lines = rows[count].line if count else 0
        if any(row.fields for row in rows[:count]):
            shown = show(body.decode("latin-1").splitlines()[0])
            range_ = "line 1" if lines == 1 else f"lines 1 to {lines}"
            notes.append(
                f"{range_} ({shown}) taken for no records, but for text above them; --skip-lines 0 if not"
            )
        above += _find_line(body, lines)
        rows = rows[count:]
    comment = comment.decode("latin-1")
    records = [
        row.fields for row in rows if row.fields and not (comment and row.fields[0].startswith(comment))
    ]
    first = records[0] if records else []
    header_records = count_header_lines(options)
    if header is None and before is not None and first == before.first:
        header_records = before.header_records
    elif header is None:
        header_records, note = judge_header(records)
        if note and before is None:
            notes.append(note.format(show(join(first, dialect))))
    notes += _tell_odd_lines(rows, len(first), options)
    return Top(dialect, above, header_records, first, tuple(notes))


def join(fields: Sequence[str], dialect: Dialect) -> str:
    text = dialect.delimiter.decode().join(fields)
    return text.encode("latin-1").decode(errors="replace")


def show(text: str) -> str:
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def parse_head(head: bytes, dialect: Dialect, most: int = _MOST_RECORDS) -> list[Row]:
    """Return the first records; the last one, which may be cut, is left out if there are others."""
    text = io.StringIO(head.decode("latin-1"), newline="")
    rows = csv.reader(
        text,
        delimiter=dialect.delimiter.decode("latin-1"),
        quotechar=dialect.quote.decode("latin-1") or None,
        quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
        skipinitialspace=dialect.is_padded,
    )
    records: list[Row] = []
    line = 0
    try:
        for fields in islice(rows, most):
            records.append(Row(fields, line))
            line = rows.line_num
    except csv.Error:  # a field of this delimiter is too long, or a return ends a line
        return records
    return records[:-1] if 1 < len(records) < most and not head.endswith(b"\n") else records


def _skip_given(head: bytes, options: ReadOptions, notes: list[str]) -> tuple[int, bytes | None]:
    """Return the bytes of the lines that options or a line of Excel pass over, and the delimiter that this line names."""
    skipped, comment = SKIP_LINES.of(options), COMMENT.of(options)
    above, delimiter = _find_line(head, skipped or 0), None
    if skipped is None and (match := _SEPARATOR_LINE.match(head)):
        above, delimiter = match.end(), match[1]
        notes.append(
            f"line 1 ({match[0].decode('latin-1').strip()}) names the delimiter, and is no record; --skip-lines 0 if it is"
        )
    while comment and head.startswith(comment, above):
        above += _find_line(head[above:], 1)
    return above, delimiter


def _find_line(data: bytes, count: int) -> int:
    """Return where the line begins that has `count` lines before it; the size of the data if there are fewer."""
    at = 0
    for _ in range(count):
        at = data.find(b"\n", at) + 1
        if not at:
            return len(data)
    return at


def _find_dialect(
    body: bytes, delimiter: bytes | None, options: ReadOptions, notes: list[str], *, is_whole: bool
) -> Dialect:
    plain = Dialect.of(options)
    plain = plain._replace(delimiter=delimiter or detect_delimiter(body, plain.quote))
    if delimiter == b"\t" not in body:
        other = plain._replace(delimiter=detect_delimiter(body, plain.quote))
        rows = parse_head(body, other)
        if len(rows) > 1 and len(rows[0].fields) > 1 and _measure(body, other)[0] == 1:
            notes.append(
                f"no tab in the first records; --delimiter '{other.delimiter.decode()}' if that is between fields"
            )
    if QUOTE.of(options) is not None:
        return plain
    padded, bare = plain._replace(is_padded=True), plain._replace(quote=b"")
    if re.search(_begin(plain) + b" +" + re.escape(plain.quote), body):
        odd = _find_odd_quote(body, padded)
        if odd is None and _measure(body, padded)[0] >= _measure(body, plain)[0]:
            notes.append("quotes behind blanks taken for quotes; --quote none if they are text")
            return padded
    odd = _find_odd_quote(body, plain, is_whole=is_whole)
    if odd is None:
        return plain
    if _measure(body, bare)[0] >= _measure(body, plain)[0] and body[odd - 1 : odd] != b"\\":
        line = 1 + body.count(b"\n", 0, odd)
        notes.append(f"quotes taken for text, as in line {line}; --quote '\"' if they are quotes")
        return bare
    if (odd := _find_odd_quote(body, plain)) is not None:
        line = 1 + body.count(b"\n", 0, odd)
        notes.append(
            f"text behind a quoted field in line {line}; --quote none if quotes are text, or double those within it"
        )
    return plain


def _begin(dialect: Dialect) -> bytes:
    return rb"(?<![^" + re.escape(dialect.delimiter) + rb"\r\n])"


def _find_odd_quote(body: bytes, dialect: Dialect, *, is_whole: bool = False) -> int | None:
    """Return the place of the first quote that ends a field with text behind it, or, of all data, opens one for good.

    None if quotes are as they should be. One that opens a field for good shows a cut file, if others do as they should.
    """
    quote, delimiter = re.escape(dialect.quote), re.escape(dialect.delimiter)
    pattern = b"".join((
        _begin(dialect), b" *" if dialect.is_padded else b"", quote,
        b"(?:[^", quote, b"]|", quote, quote, b")*+", rb"(?:(", quote, rb")(?:(?!", delimiter, rb")[ \t])*([^", delimiter, rb"\r\n]?)|\Z)",
    ))  # fmt: skip
    are_sound = False
    for match in re.finditer(pattern, body):
        if match[2]:
            return match.start(1)
        if match[1] is None and is_whole and not are_sound:
            return match.start()
        are_sound = are_sound or match[1] is not None
    return None


def _measure(body: bytes, dialect: Dialect) -> tuple[float, int]:
    """Return the part of the records that have as many fields as most, and that number of fields."""
    sizes = Counter(len(row.fields) for row in parse_head(body, dialect) if row.fields)
    size, count = sizes.most_common(1)[0] if sizes else (0, 0)
    return count / max(1, sizes.total()), size


def detect_delimiter(head: bytes, quote: bytes) -> bytes:
    r"""Return the delimiter that gives the most records of `head` the same number of fields; a comma if none does.

    >>> detect_delimiter(b'a;b\n"x;y,z";1,5\n', b'"')
    b';'
    """
    shares = {delimiter: _measure(head, Dialect(delimiter, quote)) for delimiter in _DELIMITERS}
    return max(_DELIMITERS, key=lambda delimiter: shares[delimiter] if shares[delimiter][1] > 1 else (0.0, 0))


def _count_above(rows: Sequence[Row], *, is_free: bool) -> int:
    """Return how many of the first rows are text above a table: blank lines, and, if `is_free`, comments and titles."""
    blank = next((index for index, row in enumerate(rows) if row.fields), 0)
    sizes = [len(row.fields) for row in rows]
    width = max(Counter(sizes).items(), key=lambda item: (item[1], item[0]), default=(0, 0))[0]
    if not is_free or width < 2:
        return blank
    count = sizes.index(width)
    rest = [size for size in sizes[count:] if size]
    are_marked = all(map(_is_marked, rows[:count]))
    are_titles = are_marked or all(size < max(2, width - 1) for size in sizes[:count])
    is_table = rest.count(width) >= _CLEAR_SHARE * len(rest) and len(rest) > (not are_marked)
    if count > _MOST_LINES_ABOVE or not (are_titles and is_table):
        return blank
    if not _is_marked(rows[count]):
        return count
    plain = next((index for index, row in enumerate(rows) if index >= count and not _is_marked(row)), count)
    is_header = judge_header([row.fields for row in rows[plain:]]) == (1, "")
    return plain if is_header else count


def _is_marked(row: Row) -> bool:
    return not row.fields or row.fields[0].startswith(_MARKS)


def _tell_odd_lines(rows: Sequence[Row], width: int, options: ReadOptions) -> list[str]:
    """Return notes on lines that other readers may pass over, or not."""
    notes = []
    if any(not row.fields for row in rows):
        notes.append(
            "blank lines are no records"
            if width > 1
            else "blank lines are records of the only column, without a value"
        )
    marked = [row for row in rows if len(row.fields) not in (0, width) and row.fields[0].startswith(_MARKS)]
    if marked and not COMMENT.of(options) and width:
        mark = marked[0].fields[0][0]
        notes.append(
            f"a line that begins with {mark} taken for a record; --comment '{mark}' if it is a comment"
        )
    return notes


def judge_header(rows: Sequence[Sequence[str]]) -> tuple[int, str]:
    """Return the number of header records, 0 or 1, and a note with a place for the record; no note if that is certain.

    >>> judge_header([["id", "x"], ["1", "a"]])
    (1, '')
    >>> judge_header([["1", "2"], ["3", "4"]])[0], judge_header([["ann", "rome"], ["bob", "oslo"]])[0]
    (0, 1)
    """
    first = rows[0] if rows else []
    others = [row for row in rows[1:] if len(row) == len(first)]
    if not first:
        return 0, ""
    kinds = [_find_kind([row[index] for row in others]) for index in range(len(first))]
    over = [text for text, kind in zip(first, kinds, strict=True) if kind and text and _kind_of(text) != kind]
    if any(text.strip().lower() not in _WORDS_FOR_NOTHING for text in over):
        return 1, ""
    if not others:
        is_header = any(first) and all(_kind_of(text) == "text" for text in first if text)
    else:
        is_header = bool(over) or not any(first) or not any(kinds) or _has_numbers_for_names(first, others)
    return (1, _TAKEN) if is_header else (0, _LEFT)


def find_kinds(fields: Sequence[str]) -> list[str]:
    """Return what the fields of a record are: text, number, time or flag; empty text for those without a value.

    >>> find_kinds(["a", "1.5", "", "2020-01-01"])
    ['text', 'number', '', 'time']
    """
    return [_kind_of(text) if text else "" for text in fields]


def _kind_of(text: str) -> str:
    text = text.strip().lower()
    try:
        float(text)
    except ValueError:
        return "flag" if text in _FLAGS else "time" if _TIME.fullmatch(text) else "text"
    return "number"


def _find_kind(values: Sequence[str]) -> str | None:
    kinds = {_kind_of(value) for value in values if value and value.strip().lower() not in _WORDS_FOR_NOTHING}
    return kinds.pop() if len(kinds) == 1 and "text" not in kinds else None


def _has_numbers_for_names(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Tell whether a record names columns by numbers: 0, 1, 2 and so on, as pandas does, or by years in a row."""
    numbers = [text for text in first if _kind_of(text) == "number"]
    if not numbers or not all(text.isdecimal() for text in numbers):
        return False
    names = list(map(int, numbers))
    if names != list(range(names[0], names[0] + len(names))):
        return False
    values = [text for row in others for text, name in zip(row, first, strict=True) if name in numbers]
    if all(map(_is_year, numbers)):
        return not all(map(_is_year, values))
    if names[0] != 0 or len(numbers) != len(first) - (first[0] == ""):
        return False
    # The name of an index is empty. Two numbers may be values, such as those of an edge, and more the begin of a count.
    goes_on = values[: len(names)] in ([str(name + step) for name in names] for step in (1, len(names)))
    are_whole = all(text.isdecimal() for text in values if text)
    return first[0] == "" or not are_whole or (len(names) > 2 and not goes_on)


def _is_year(text: str) -> bool:
    return text.isdecimal() and _FIRST_YEAR <= int(text) <= _LAST_YEAR
