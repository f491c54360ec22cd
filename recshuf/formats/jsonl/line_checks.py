"""Checks of lines before their values are parsed: each must be one JSON object.

`pyarrow.json` reads a sequence of values and ignores line breaks. `check_lines` checks that every line begins with
``{`` and ends with ``}``. In valid JSON, ``}`` is followed by ``{`` only between top-level values, so every line holds
at least one whole object. If there are as many rows as lines, every line holds exactly one.

`check_lines` and parsing stop at the first line that is wrong; `find_malformed` finds all of them.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recshuf.formats.texts import find_invalid
from recshuf.records.arrays import view_data, view_offsets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray


Path = tuple[str | None, ...]
"""Path of a nested value: field names from the outside in, None for "each element"."""
MAX_DEPTH = 128
"""Most levels of objects and arrays: Arrow recurses over types."""
PIECE_BYTES = 512 << 10
"""Bytes parsed at once for observing: the allocator reuses the memory for the next piece."""
KEPT_PIECE_BYTES = 8 << 20
"""Bytes parsed at once for decoding: most batches are one piece, so no columns are joined."""
_PIECE_ROWS = 4096
_LONG_PIECE_ROWS = 16
"""Long lines parsed at once, within `KEPT_PIECE_BYTES`: each piece takes some 50 us for every field."""
_PIECE_CELLS = 1 << 26  # values of all columns of a piece, nulls where an object lacks a field included
_SEARCH_BYTES = 1 << 16  # the allocator reuses masks this small
_UNSAFE_BRACKETS = 2048  # some 10,000 levels overflow the stack
_MAX_DETAIL = 160
_SPACE = " \t\r\n"
STEPS = np.zeros(256, np.int8)
"""What each byte adds to the depth."""
STEPS[[*b"[{"]], STEPS[[*b"]}"]] = 1, -1
_NO_NUMBER = re.compile(r"(?<![eE])-?\b(?:Infinity|Inf|NaN)\b")
"""What `pyarrow.json` reads for a number; `json` reads no ``Inf`` and no ``-NaN``. Within a text it does not matter."""


class BadRecord(Exception):  # noqa: N818 - becomes an InputError as soon as file and line are known
    """An error in one of some lines, at index `row`, or probably at `suspect`; in a field, or the record as a whole."""

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
        """Errors of all lines that are bad in this way by themselves; empty if not known."""
        super().__init__(problem)

    @property
    def reason(self) -> str:
        """The problem with its field, without the remedy."""
        return f"field {name_path(self.path)!r}: {self.problem}" if self.path else self.problem


LineErrors = dict[int, BadRecord]
"""Errors of bad lines, by the index or row of the line."""


def name_path(path: Path) -> str:
    """Return a path as messages show it.

    >>> name_path(("a", "b", None, "c"))
    'a.b[].c'
    """
    return "".join("[]" if part is None else f".{part}" for part in path).removeprefix(".")


def shorten(text: str) -> str:
    """Return the message of a library for use in a one-line message: it may be long and hold line breaks."""
    text = " ".join(text.split())
    return text if len(text) <= _MAX_DETAIL else f"{text[:_MAX_DETAIL]}..."


def as_lines(records: pa.Array) -> pa.Array:
    """Return a large_binary array as large_string, without a copy or validation."""
    return pa.Array.from_buffers(pa.large_string(), len(records), records.buffers(), offset=records.offset)


class MarkState(NamedTuple):
    """What stands before some bytes: open brackets, an open string or none, and how many backslashes just before."""

    depth: int = 0
    quotes: int = 0
    backslashes: int = 0


class Marks(NamedTuple):
    """Quotes, brackets and other bytes of JSON, in order."""

    places: NDArray[np.int64]
    signs: NDArray[np.uint8]
    is_inside: NDArray[np.bool_]
    """Whether each is within a string, as the quote that opens one, and not the one that closes it."""
    depths: NDArray[np.int64]
    """How many brackets are open behind each."""


def find_marks(data: NDArray[np.uint8], others: bytes, state: MarkState) -> tuple[Marks, MarkState]:
    r"""Return the quotes that are not escaped, the brackets and `others`, and what stands before the following bytes.

    >>> find_marks(np.frombuffer(b'[{"\\"[": 1}, ', np.uint8), b",", MarkState())[0].depths.tolist()
    [1, 2, 2, 2, 2, 1, 1]
    """
    is_mark = data == ord('"')
    backslashes = _unset_escaped(is_mark, data == ord("\\"), state.backslashes)
    upper = data | 0x20  # brackets become braces
    for part in (upper == ord("{"), upper == ord("}"), *(data == byte for byte in others)):
        is_mark |= part
    places = np.flatnonzero(is_mark)
    signs = data[places]
    quotes = np.cumsum(signs == ord('"'))
    quotes += state.quotes
    is_inside = (quotes & 1) != 0
    steps = STEPS[signs]
    steps[is_inside] = 0
    depths = np.cumsum(steps, dtype=np.int64)
    depths += state.depth
    depth, open_quotes = (int(depths[-1]), int(quotes[-1]) & 1) if places.size else state[:2]
    return Marks(places, signs, is_inside, depths), MarkState(depth, open_quotes, backslashes)


def _unset_escaped(quotes: NDArray[np.bool_], backslashes: NDArray[np.bool_], before: int) -> int:
    """Unset the quotes behind an odd number of backslashes, `before` of them the piece, and return how many of these end it."""
    if before % 2 and not backslashes[0]:
        quotes[0] = False
    if not backslashes.any():
        return 0
    places = np.flatnonzero(backslashes)
    first = np.flatnonzero(np.diff(places, prepend=-2) != 1)
    ends = places[np.append(first[1:], places.size) - 1]
    lengths = ends - places[first] + 1
    if backslashes[0]:
        lengths[0] += before
    behind = ends[(lengths & 1) == 1] + 1
    quotes[behind[behind < quotes.size]] = False
    return int(lengths[-1]) if backslashes[-1] else 0


def cut_pieces(lines: pa.Array) -> Iterator[tuple[int, pa.Array]]:
    """Yield pieces of lines with unknown fields, each with the index of its first line."""
    # As if every colon belonged to another field.
    return _cut(lines, PIECE_BYTES, _PIECE_ROWS, lambda data, rows: rows * _count_byte(data, ord(":")))


def cut_kept_pieces(lines: pa.Array, field_count: int, listed_count: int) -> Iterator[pa.Array]:
    """Yield large pieces of lines that have `field_count` fields at all levels, `listed_count` of them within lists."""

    def bound_cells(data: NDArray[np.uint8], rows: int) -> int:
        # Every object, or null in its place, has at most one value in each column.
        roughly = rows * field_count + data.size * listed_count
        if roughly <= _PIECE_CELLS:
            return roughly
        return rows * field_count + (_count_byte(data, ord("{")) + _count_byte(data, ord(","))) * listed_count

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
        if stop - start < _LONG_PIECE_ROWS:
            most = int(np.searchsorted(offsets, offsets[start] + KEPT_PIECE_BYTES, side="right")) - 1
            stop = max(stop, min(start + _LONG_PIECE_ROWS, most))
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
    """Raise `BadRecord` unless lines (at least one) are UTF-8, begin and end like objects, and can be parsed safely."""
    try:
        lines.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _encoding_error() from error
    offsets = view_offsets(lines)
    if offsets[-1] - offsets[0] >= np.iinfo(np.int32).max:
        raise BadRecord("is longer than 2 GiB, the most that can be parsed")
    for find, explain in _FORM_CHECKS:
        rows = find(lines)
        if len(rows):
            raise explain(lines, int(rows[0]))


def find_malformed(lines: pa.Array) -> LineErrors:
    """Return the errors of lines that are not JSON or cannot be parsed safely, by index."""
    errors, rows = LineErrors(), np.arange(len(lines))
    for find, explain in (_UTF8_CHECK, *_FORM_CHECKS, _GRAMMAR_CHECK):  # each relies on the earlier ones
        bad = find(lines)
        for at, row in zip(bad.tolist(), rows[bad].tolist(), strict=True):
            errors[row] = explain(lines, at)
        if len(bad):
            keep = np.delete(np.arange(len(lines)), bad)
            lines, rows = lines.take(pa.array(keep)), rows[keep]
        if not len(lines):
            break
    return errors


def _encoding_error() -> BadRecord:
    return BadRecord("is not valid UTF-8, which JSON requires")


def _find_bare(lines: pa.Array) -> NDArray[np.int64]:
    """Return the indices of lines that do not begin and end like objects."""
    data, offsets = view_data(lines), view_offsets(lines)
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


def _explain_bare(lines: pa.Array, row: int) -> BadRecord:
    line = lines[row].as_buffer().to_pybytes().strip(_SPACE.encode())
    if not line:
        remedy = "remove empty lines, or set them aside with --on-bad-record quarantine:FILE"
        return BadRecord("is empty, not a JSON object", remedy=remedy, row=row)
    if line.startswith(b"\xef\xbb\xbf"):
        return BadRecord("begins with a byte order mark", remedy="remove its three bytes EF BB BF", row=row)
    if line.startswith(b"{"):
        return BadRecord("holds something after or instead of the end of its JSON object", row=row)
    return BadRecord(
        "is not a JSON object", remedy='every line must be one object, such as {"text": "..."}', row=row
    )


def _find_deep(lines: pa.Array) -> NDArray[np.int64]:
    """Return the indices of lines whose nesting may overflow the stack; types are checked against `MAX_DEPTH` later."""
    offsets = view_offsets(lines)
    rows = np.flatnonzero(np.diff(offsets) > 2 * _UNSAFE_BRACKETS)
    rows = rows[_count_brackets(lines, offsets, rows) > _UNSAFE_BRACKETS] if len(rows) else rows
    is_deep = [_measure_depth(lines[row]) > _UNSAFE_BRACKETS for row in rows.tolist()]
    return rows[np.array(is_deep, np.bool_)]


def _count_brackets(
    lines: pa.Array, offsets: NDArray[np.int64], rows: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of opening brackets and braces in each of these lines, those in strings too, by a little memory."""
    data = view_data(lines)
    first, last = int(offsets[rows[0]]), int(offsets[rows[-1] + 1])
    places = [
        np.flatnonzero((data[at : min(at + _SEARCH_BYTES, last)] | 0x20) == ord("{")) + at
        for at in range(first, last, _SEARCH_BYTES)
    ]
    edges = np.searchsorted(np.concatenate(places), np.stack([offsets[rows], offsets[rows + 1]]))
    counts: NDArray[np.int64] = edges[1] - edges[0]
    return counts


def _measure_depth(line: pa.Scalar) -> int:
    data, deepest, state = np.frombuffer(line.as_buffer(), np.uint8), 0, MarkState()
    for at in range(0, data.size, _SEARCH_BYTES):
        marks, state = find_marks(data[at : at + _SEARCH_BYTES], b"", state)
        deepest = max(deepest, int(marks.depths.max(initial=0)))
    return deepest


def too_deep_error(row: int | None = None) -> BadRecord:
    return BadRecord(f"nests objects and arrays more than {MAX_DEPTH} deep", row=row)


def find_ungrammatical(lines: pa.Array) -> NDArray[np.int64]:
    r"""Return the ascending positions of the lines (UTF-8, as large_string) that are not one JSON value.

    Line by line, as only pieces that do not parse are looked into. The values of numbers and escapes are not checked.
    Lines that nest too deep may be missed.

    >>> lines = pa.array(['{"a": [1, {}]}', '{"a": 01}', "{'a': 1}", '{}{}', '{"a": "\\x"}'], pa.large_string())
    >>> find_ungrammatical(lines)
    array([1, 2, 3, 4])
    """
    return np.fromiter((row for row, text in enumerate(lines.to_pylist()) if not _is_json(text)), np.int64)


def _is_json(text: str) -> bool:
    if "Inf" in text or "NaN" in text:
        text = _NO_NUMBER.sub("-0", text)
    try:
        json.loads(text, parse_int=len)  # Python converts no integer of thousands of digits
    except RecursionError:
        return True
    except ValueError:
        return False
    return True


_Check = tuple["Callable[[pa.Array], NDArray[np.int64]]", "Callable[[pa.Array, int], BadRecord]"]
"""Finds the indices of lines that are wrong, and says of one what is wrong with it."""
_UTF8_CHECK: _Check = (
    lambda lines: find_invalid(lines.cast(pa.large_binary())),
    lambda _, __: _encoding_error(),
)
_FORM_CHECKS: tuple[_Check, ...] = (
    (_find_bare, _explain_bare),
    (_find_deep, lambda _, row: too_deep_error(row)),
)
_GRAMMAR_CHECK: _Check = (find_ungrammatical, lambda _, __: BadRecord("is not valid JSON"))
