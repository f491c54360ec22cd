"""Lines that should be JSON objects: what is wrong with them before and without parsing their values.

`pyarrow.json` reads a run of values and does not care which line they are on. What `check_lines` makes sure of
(every line begins with ``{`` and ends with ``}``) closes that gap: a ``}`` followed by a ``{`` is valid JSON
only between top-level values, so every line break is such a place, every line holds at least one whole object,
and as many rows as lines means exactly one in each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recshuf.records.arrow_views import view_bytes, view_data, view_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

Path = tuple[str | None, ...]
"""Way to a nested value: field names from the outside in, None for "each element"."""

MAX_DEPTH = 128
"""How deep objects and arrays may nest, as Arrow's own code recurses over types."""
PIECE_BYTES = 512 << 10
"""How much is parsed at once only to be looked at: its memory stays with the allocator from piece to piece."""
KEPT_PIECE_BYTES = 8 << 20
"""How much is parsed at once where the columns are kept: mostly all of them, so that none are joined."""
_PIECE_ROWS = 4096
_PIECE_CELLS = 1 << 26  # values of all columns of a piece, nulls where an object lacks a field included
_SEARCH_BYTES = 1 << 16  # masks this small stay with the allocator
_UNSAFE_BRACKETS = 2048  # far less than the 10,000 levels that were seen to overflow the stack
_MAX_DETAIL = 160
_SPACE = " \t\r\n"
_QUOTED = r'"(?s:[^"\\]|\\.)*"'


class BadRecord(Exception):  # noqa: N818 - becomes an InputError as soon as file and line are known
    """Something wrong within some lines.

    Parameters
    ----------
    problem, remedy
        As for `InputError`.
    path
        The field concerned; None for the record as a whole.
    row
        Index of the line; None when any of the lines may be the one.
    suspect
        Index of the line that is probably the one, where `row` is not known.
    """

    def __init__(
        self,
        problem: str,
        *,
        remedy: str | None = None,
        path: Path | None = None,
        row: int | None = None,
        suspect: int | None = None,
    ) -> None:
        self.problem = problem
        self.remedy = remedy
        self.path = path
        self.row = row
        self.suspect = suspect
        self.line_errors: LineErrors = {}
        """Every line that is bad in the same way and whatever the other lines are; empty where not known."""
        super().__init__(problem)

    @property
    def reason(self) -> str:
        """The problem with its field, without the remedy."""
        return f"field {name_path(self.path)!r}: {self.problem}" if self.path else self.problem


LineErrors = dict[int, BadRecord]
"""What is wrong with each of the bad ones of some lines, by the index of the line."""


def name_path(path: Path) -> str:
    """Return a path as messages show it.

    >>> name_path(("a", "b", None, "c"))
    'a.b[].c'
    """
    return "".join("[]" if part is None else f".{part}" for part in path).removeprefix(".")


def shorten(text: str) -> str:
    """Return what a library says as part of a one-line message: values in it may be long and hold line breaks."""
    text = " ".join(text.split())
    return text if len(text) <= _MAX_DETAIL else f"{text[:_MAX_DETAIL]}..."


def as_lines(records: pa.Array) -> pa.Array:
    """Return a large_binary array as large_string, without a copy and without looking at it."""
    return pa.Array.from_buffers(pa.large_string(), len(records), records.buffers(), offset=records.offset)


def cut_pieces(lines: pa.Array) -> Iterator[tuple[int, pa.Array]]:
    """Yield pieces of lines whose fields are not known, each with the index of its first line."""

    def bound_cells(data: NDArray[np.uint8], rows: int) -> int:
        return rows * _count_byte(data, ord(":"))  # were every colon behind a field of its own

    return _cut(lines, PIECE_BYTES, _PIECE_ROWS, bound_cells)


def cut_kept_pieces(lines: pa.Array, field_count: int) -> Iterator[pa.Array]:
    """Yield pieces of lines that have `field_count` fields at all levels, large ones."""

    def bound_cells(data: NDArray[np.uint8], rows: int) -> int:
        # Every object, and every null that may stand for one, has a value in each column at most.
        roughly = (rows + data.size) * field_count
        if roughly <= _PIECE_CELLS:
            return roughly
        return (rows + _count_byte(data, ord("{")) + _count_byte(data, ord(","))) * field_count

    return (piece for _, piece in _cut(lines, KEPT_PIECE_BYTES, len(lines), bound_cells))


def _cut(
    lines: pa.Array, most_bytes: int, most_rows: int, bound_cells: Callable[[NDArray[np.uint8], int], int]
) -> Iterator[tuple[int, pa.Array]]:
    """Yield pieces, each with the index of its first line; only a single line exceeds a limit."""
    if not len(lines):
        return
    offsets = view_offsets(lines)
    data = view_data(lines)
    start = 0
    while start < len(lines):
        stop = int(np.searchsorted(offsets, offsets[start] + most_bytes, side="right")) - 1
        rows = min(max(stop - start, 1), most_rows, len(lines) - start)
        while rows > 1 and bound_cells(data[offsets[start] : offsets[start + rows]], rows) > _PIECE_CELLS:
            rows //= 2
        yield start, lines.slice(start, rows)
        start += rows


def _count_byte(data: NDArray[np.uint8], byte: int) -> int:
    mask = np.empty(_SEARCH_BYTES, np.bool_)
    parts = (data[at : at + _SEARCH_BYTES] for at in range(0, data.size, _SEARCH_BYTES))
    return sum(int(np.count_nonzero(np.equal(part, byte, out=mask[: part.size]))) for part in parts)


def check_lines(lines: pa.Array) -> None:
    """Make sure that lines (at least one) are UTF-8, begin and end like objects, and can be parsed without risk.

    Raises
    ------
    BadRecord
        Otherwise.
    """
    try:
        lines.validate(full=True)
    except pa.ArrowInvalid as error:
        raise encoding_error() from error
    offsets = view_offsets(lines)
    if offsets[-1] - offsets[0] >= np.iinfo(np.int32).max:
        raise BadRecord("is longer than 2 GiB, the most that can be parsed")
    rows = find_bare(lines, offsets)
    if len(rows):
        raise explain_bare(lines, int(rows[0]))
    rows = find_deep(lines, offsets)
    if len(rows):
        raise too_deep_error(int(rows[0]))


def encoding_error(row: int | None = None) -> BadRecord:
    """Return the error for a line that is not UTF-8."""
    return BadRecord("is not valid UTF-8, which JSON requires", row=row)


def find_bare(lines: pa.Array, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lines that do not begin and end like objects."""
    data = view_data(lines)
    plain = np.diff(offsets) > 2
    starts, ends = offsets[:-1][plain], offsets[1:][plain]
    plain[plain] = (data[starts] == ord("{")) & (data[ends - 2] == ord("}")) & (data[ends - 1] == ord("\n"))
    rows = np.flatnonzero(~plain)
    if not len(rows):
        return rows
    trimmed = pc.ascii_trim(lines.take(pa.array(rows)), _SPACE)
    objects = pc.and_(pc.starts_with(trimmed, "{"), pc.ends_with(trimmed, "}")).to_numpy(zero_copy_only=False)
    bare: NDArray[np.int64] = rows[~objects]
    return bare


def explain_bare(lines: pa.Array, row: int) -> BadRecord:
    """Return the error for one of the lines that `find_bare` returns."""
    line = lines[row].as_buffer().to_pybytes().strip(_SPACE.encode())
    if not line:
        return BadRecord("is empty, not a JSON object", remedy="remove empty lines", row=row)
    if line.startswith(b"\xef\xbb\xbf"):
        return BadRecord("begins with a byte order mark", remedy="remove its three bytes EF BB BF", row=row)
    if line.startswith(b"{"):
        return BadRecord("holds something after or instead of the end of its JSON object", row=row)
    return BadRecord(
        "is not a JSON object", remedy='every line must be one object, such as {"text": "..."}', row=row
    )


def find_deep(lines: pa.Array, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the lines that nest dangerously deep; `MAX_DEPTH` itself is checked on the parsed types."""
    rows = np.flatnonzero(np.diff(offsets) > 2 * _UNSAFE_BRACKETS)
    rows = rows[_count_brackets(lines, offsets, rows) > _UNSAFE_BRACKETS] if len(rows) else rows
    if not len(rows):
        return rows
    bare = pc.replace_substring_regex(lines.take(pa.array(rows)), _QUOTED, "")
    return rows[_depths(bare) > _UNSAFE_BRACKETS]


def _count_brackets(
    lines: pa.Array, offsets: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return how many brackets and braces open in each of these lines, in strings too."""
    data = view_data(lines)
    first, last = int(offsets[rows[0]]), int(offsets[rows[-1] + 1])
    found = [
        np.flatnonzero((data[at : min(at + _SEARCH_BYTES, last)] | 32) == ord("{")) + at
        for at in range(first, last, _SEARCH_BYTES)
    ]
    places = np.concatenate(found)
    counts: NDArray[np.int64] = np.searchsorted(places, offsets[rows + 1]) - np.searchsorted(
        places, offsets[rows]
    )
    return counts


def _depths(bare: pa.Array) -> NDArray[np.int32]:
    """Return the greatest nesting depth of each line; strings are left out of the lines already."""
    offsets = view_offsets(bare)
    data = view_bytes(bare)
    steps = ((data | 32) == ord("{")).astype(np.int8) - ((data | 32) == ord("}")).astype(np.int8)
    depth = np.cumsum(steps, dtype=np.int32)
    starts = offsets[:-1] - offsets[0]
    before = depth[starts] - steps[starts]
    deepest: NDArray[np.int32] = np.maximum.reduceat(depth, starts) - before
    return deepest


def too_deep_error(row: int | None = None) -> BadRecord:
    """Return the error for objects and arrays nested too deep."""
    return BadRecord(f"nests objects and arrays more than {MAX_DEPTH} deep", row=row)
