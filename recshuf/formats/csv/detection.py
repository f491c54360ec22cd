"""Finds the delimiter and the header of CSV from the first records of an input."""

from __future__ import annotations

import csv
import io
from collections import Counter
from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats.lines.header import MARK

if TYPE_CHECKING:
    from collections.abc import Sequence

_DELIMITERS = (b",", b"\t", b";", b"|")
_MOST_RECORDS = 100


def detect_delimiter(head: bytes, quote: bytes) -> bytes:
    r"""Return the delimiter that gives the most records of `head` the same number of fields; a comma if none does.

    >>> detect_delimiter(b'a;b\\n"x;y,z";1,5\\n', b'"')
    b';'
    """

    def judge(delimiter: bytes) -> tuple[float, int]:
        sizes = Counter(map(len, parse_head(head, delimiter, quote)))
        size, count = sizes.most_common(1)[0] if sizes else (1, 0)
        return (count / sizes.total(), size) if size > 1 else (0.0, 0)

    return max(_DELIMITERS, key=judge)


def parse_head(head: bytes, delimiter: bytes, quote: bytes) -> list[list[str]]:
    """Return the fields of the first records; the last one, which may be cut, is left out if there are others."""
    text = io.StringIO(head.removeprefix(MARK).decode("latin-1"), newline="")
    rows = csv.reader(
        text,
        delimiter=delimiter.decode("latin-1"),
        quotechar=quote.decode("latin-1") or None,
        quoting=csv.QUOTE_MINIMAL if quote else csv.QUOTE_NONE,
    )
    found: list[list[str]] = []
    try:
        found.extend(row for row, _ in zip(rows, range(_MOST_RECORDS), strict=False))
    except csv.Error:  # a field of this delimiter is too long, or a return ends a line
        return found
    return found[:-1] if 1 < len(found) < _MOST_RECORDS and not head.endswith(b"\n") else found


def has_header(name: str, rows: Sequence[Sequence[str]]) -> bool:
    """Tell whether the first record is a header.

    It is one if no field is a number, or if another field stands over numbers.

    Raises
    ------
    InputError
        When both a header and a record look like this.
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
