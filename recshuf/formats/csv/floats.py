"""Finds numbers that a column of floats alters, by their text."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from recshuf.formats.values.floats import exact_limit

if TYPE_CHECKING:
    from collections.abc import Callable

    Texts = Callable[[], pa.ChunkedArray]

WHOLE = r"^\s*[+-]?\d+\s*$"
"""A number without a point and an exponent."""
PLAIN = r"^\s*[+-]?\d+(?:\.\d*)?\s*$"
"""A number without an exponent."""
_SHOWN = 40
_INFINITE = r"(?i)inf"
_WHOLE_PART = r"^\s*\+?(-?)0*(\d{1,76})(?:\.\d*)?\s*$"  # with as many digits as a decimal256
_DECIMAL = pa.decimal256(76, 0)


def take_large(values: pa.ChunkedArray, texts: Texts) -> pa.Table | None:
    """Return row, value and text of the floats from the first whole number on that their type does not hold.

    None if there are none. `texts` returns the values as bytes.
    """
    limit = float(exact_limit(values.type))
    bounds = pc.min_max(values).as_py()
    if bounds["min"] is None or max(-bounds["min"], bounds["max"]) < limit:
        return None
    rows = pc.indices_nonzero(pc.greater_equal(pc.abs(values), limit))
    return pa.table({"row": rows, "value": values.take(rows), "text": texts().take(rows)})


def find_altered(values: pa.ChunkedArray, texts: Texts) -> tuple[int, str] | None:
    """Return the row of the first number that is infinite, or another whole number, as a float, and the problem.

    None if there is none. Decimal places may be rounded.
    """
    large = take_large(values, texts)
    if large is None:
        return None
    kind = f"float{values.type.bit_width}"
    problems = (
        (keep_overflown(large), f"is too large for {kind}"),
        (keep_altered(large, WHOLE), f"is a whole number that {kind} cannot hold exactly"),
    )
    found = [(pc.min(part["row"]).as_py(), part, problem) for part, problem in problems if part.num_rows]
    if not found:
        return None
    row, part, problem = min(found, key=itemgetter(0))
    text = part.filter(pc.equal(part["row"], row))["text"][0].as_py().strip().decode()
    return row, f"{text if len(text) <= _SHOWN else text[:_SHOWN] + '...'} {problem}"


def keep_overflown(large: pa.Table) -> pa.Table:
    """Return those numbers that became infinite."""
    is_number = pc.invert(pc.match_substring_regex(large["text"], _INFINITE))
    return large.filter(pc.and_(pc.is_inf(large["value"]), is_number))


def keep_altered(large: pa.Table, spelling: str) -> pa.Table:
    """Return those finite numbers of a spelling, `WHOLE` or `PLAIN`, whose whole part is another as a float."""
    spelled = large.filter(
        pc.and_(pc.is_finite(large["value"]), pc.match_substring_regex(large["text"], spelling))
    )
    fits = pc.match_substring_regex(spelled["text"], _WHOLE_PART)
    fitting = spelled.filter(fits)
    texts = fitting["text"].cast(pa.string())
    written = pc.replace_substring_regex(texts, _WHOLE_PART, r"\1\2").cast(_DECIMAL)
    held = pc.trunc(fitting["value"]).cast(_DECIMAL)
    altered = fitting.filter(pc.not_equal(written, held))
    return pa.concat_tables([altered, spelled.filter(pc.invert(fits))])
