"""Errors of JSON records as messages to the user, which name input, line and field."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats.jsonl.decoding.line_checks import BadRecord, name_path
from recshuf.formats.jsonl.decoding.numbers import TYPE_REMEDY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.jsonl.decoding.shapes import Conflict, Position, Shape

_NOUNS = {
    "boolean": "a boolean",
    "integer": "a number",
    "float": "a number",
    "string": "a string",
    "object": "an object",
    "array": "an array",
}


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

    def record_error(self, error: BadRecord, position: Position) -> InputError:
        """Return the error for a record that is bad by itself."""
        place = self._line(position)
        if error.path:
            place += f", field {name_path(error.path)!r}"
        return InputError(self._names[position.input_index], error.problem, place=place, remedy=error.remedy)

    def conflict_error(self, conflict: Conflict) -> InputError:
        """Return the error for two records whose types conflict: the later one, where users look for the mistake, first."""
        shapes = (conflict.one, conflict.other)
        of_digits = {shape.kind for shape in shapes} == {"integer", "float"}
        found = [(_find_position(shape, of_digits), _describe(shape, of_digits)) for shape in shapes]
        (early, early_kind), (late, late_kind) = sorted(found)
        early_name = "" if early.input_index == late.input_index else f" of {self._names[early.input_index]}"
        return InputError(
            self._names[late.input_index],
            f"holds {late_kind}, but {early_kind} in {self._line(early)}{early_name}",
            place=f"{self._line(late)}, field {name_path(conflict.path)!r}",
            remedy=TYPE_REMEDY
            if of_digits
            else "give the field one type; numbers pass as string with --schema",
        )

    def _line(self, position: Position) -> str:
        return f"line {position.row + self._header_lines + 1}"


def _find_position(shape: Shape, of_digits: bool) -> Position:
    return (shape.inexact if of_digits else None) or shape.seen or shape.first.position


def _describe(shape: Shape, of_digits: bool) -> str:
    if of_digits:
        return "a float" if shape.kind == "float" else "an integer that float64 cannot hold exactly"
    return _NOUNS[shape.kind]
