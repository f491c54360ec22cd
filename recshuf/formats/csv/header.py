"""Whether the first record of CSV is a header, as DuckDB's sniffer and people judge it.

Names over values of another type show a header; so do the numbers by which pandas names columns, and years. Where all is text, it is
one, as all readers take it. Where nothing shows, it is a record.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


_TAKEN = "header taken: {}; --header none if it is a record"
_LEFT = "no header taken, but a record: {}; --header 1 if it is the header"
_WORDS_FOR_NOTHING = frozenset(["na", "n/a", "null", "none", "-", "?"])
_FLAGS = frozenset(["true", "false"])
_TIME = re.compile(
    r"(?:\d{4}[-/]\d\d?[-/]\d\d?|\d\d?[-/.]\d\d?[-/.]\d{4})(?:[ T]\d\d?:\d\d.*)?|\d\d?:\d\d(?::\d\d.*)?"
)
_FIRST_YEAR, _LAST_YEAR = 1900, 2100


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
