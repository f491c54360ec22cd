"""Errors of JSON records as messages to the user, which name input, line and field."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats.jsonl.decoding.line_checks import BadRecord, name_path
from recshuf.formats.jsonl.decoding.numbers import TYPE_REMEDY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.jsonl.decoding.shapes import Conflict, RecordPosition

_NOUNS = {
    "boolean": "a boolean",
    "integer": "a number",
    "float": "a number",
    "string": "a string",
    "object": "an object",
    "array": "an array",
}
_DIGITS = {"integer": "an integer that float64 cannot hold exactly", "float": "a float"}
"""What conflicts where integers and floats do."""


class LineMessages:
    """Makes an `InputError` of what is wrong at a position.

    Parameters
    ----------
    names
        Names of the inputs, by input index.
    header_lines
        Lines of each input before its row 0.
    """

    def __init__(self, names: Sequence[str], header_lines: int) -> None:
        self._names = names
        self._header_lines = header_lines

    def record_error(self, error: BadRecord, position: RecordPosition) -> InputError:
        """Return the error for a record that is bad by itself."""
        place = self._line(position)
        if error.path:
            place += f", field {name_path(error.path)!r}"
        return InputError(self._names[position.input_index], error.problem, place=place, remedy=error.remedy)

    def conflict_error(self, conflict: Conflict) -> InputError:
        """Return the error for two records whose types conflict: the later one, where users look for the mistake, first."""
        shapes = (conflict.one, conflict.other)
        if {shape.kind for shape in shapes} == {"integer", "float"}:
            found = [(shape.inexact or shape.fractional, _DIGITS[shape.kind]) for shape in shapes]
            remedy = TYPE_REMEDY
        else:
            found = [(shape.seen or shape.first.position, _NOUNS[shape.kind]) for shape in shapes]
            remedy = "give the field one type; numbers pass as string with --schema"
        *earlier, (late, late_kind) = sorted((position, kind) for position, kind in found if position)
        return InputError(
            self._names[late.input_index],
            f"holds {late_kind}, but {self._describe(earlier, late)}",
            place=f"{self._line(late)}, field {name_path(conflict.path)!r}",
            remedy=remedy,
        )

    def _describe(self, earlier: list[tuple[RecordPosition, str]], late: RecordPosition) -> str:
        """Return what the earlier record holds, and its place; that of a float like ``1.0`` is not known."""
        if not earlier:
            return f"{_DIGITS['float']} in another line"
        ((early, kind),) = earlier
        name = "" if early.input_index == late.input_index else f" of {self._names[early.input_index]}"
        return f"{kind} in {self._line(early)}{name}"

    def _line(self, position: RecordPosition) -> str:
        return f"line {position.row + self._header_lines + 1}"
