"""Strategies for observing JSON lines: stop at the first bad line, filter bad lines out, or learn from a prefix only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from recshuf.formats.jsonl.decoding.bad_lines import find_malformed
from recshuf.formats.jsonl.decoding.line_checks import BadRecord, LineErrors, check_lines, cut_pieces
from recshuf.formats.jsonl.decoding.shapes import Conflict

if TYPE_CHECKING:
    from collections.abc import Callable

    from recshuf.formats.jsonl.decoding.inference import GivenTypes, InferredTypes
    from recshuf.formats.jsonl.decoding.messages import LineMessages
    from recshuf.formats.jsonl.decoding.shapes import RecordPosition, Rows


class LineObserver(Protocol):
    """Learns the types of lines."""

    def observe(self, records: pa.Array, rows: Rows) -> LineErrors:
        """Learn from records; return the errors of those set aside, by row.

        Raises
        ------
        InputError
            When a record is bad and not set aside, or when records do not fit together.
        """
        ...


class StrictObserver:
    """Raises an error for the first bad line found."""

    def __init__(self, types: GivenTypes | InferredTypes, messages: LineMessages) -> None:
        self._types = types
        self._messages = messages

    def observe(self, records: pa.Array, rows: Rows) -> LineErrors:
        """See `LineObserver`; nothing is set aside."""
        for start, lines in cut_pieces(records):
            _apply(self._types.learn, lines, rows.take(slice(start, start + len(lines))), self._messages)
        return {}


class PrefixObserver:
    """Learns up to the first batch of an input; of the records behind it, checks only the outer form.

    Parameters
    ----------
    end
        The first record of that batch.
    """

    def __init__(
        self, types: GivenTypes | InferredTypes, messages: LineMessages, end: RecordPosition
    ) -> None:
        self._strict = StrictObserver(types, messages)
        self._messages = messages
        self._end = end

    def observe(self, records: pa.Array, rows: Rows) -> LineErrors:
        """See `LineObserver`; nothing is set aside."""
        if len(records) and rows.position(0) > self._end:
            _apply(lambda lines, _: check_lines(lines), records, rows, self._messages)
            return {}
        return self._strict.observe(records, rows)


class BadLineFilter:
    """Sets aside the lines that are bad by themselves; conflicts between good lines are errors."""

    def __init__(self, types: GivenTypes | InferredTypes, messages: LineMessages) -> None:
        self._types = types
        self._messages = messages

    def observe(self, records: pa.Array, rows: Rows) -> LineErrors:
        """See `LineObserver`."""
        errors = LineErrors()
        for start, lines in cut_pieces(records):
            errors |= self._filter(lines, rows.take(slice(start, start + len(lines))))
        return errors

    def _filter(self, lines: pa.Array, rows: Rows, *, are_well_formed: bool = False) -> LineErrors:
        """Learn from the good lines, leaving out the bad ones found and halving where an error leads to none."""
        found = LineErrors()
        while len(lines):
            try:
                self._types.learn(lines, rows)
            except Conflict as conflict:
                raise self._messages.conflict_error(conflict) from conflict
            except BadRecord as error:
                errors = self._find_errors(error, lines, are_well_formed=are_well_formed)
                if len(lines) == 1 and not errors:
                    raise self._messages.record_error(error, rows.position(0)) from error
            else:
                break
            if not errors:
                for part in _halve(lines, rows):
                    found |= self._filter(*part, are_well_formed=True)
                break
            found |= {int(rows.numbers[at]): error for at, error in errors.items()}
            good = np.delete(np.arange(len(lines)), list(errors))
            lines, rows, are_well_formed = lines.take(pa.array(good)), rows.take(good), True
        return found

    def _find_errors(self, error: BadRecord, lines: pa.Array, *, are_well_formed: bool) -> LineErrors:
        """Return errors of lines that are bad by themselves, by index, as far as an error of all lines leads to them."""
        errors = ({} if are_well_formed else find_malformed(lines)) or error.line_errors
        if errors:
            return errors
        at = 0 if len(lines) == 1 else error.suspect
        while at is not None and at < len(lines):
            own_error = self._types.find_error(lines.slice(at, 1))
            if own_error is None:
                break
            errors[at] = own_error
            rest = lines.slice(at + 1)
            next_error = self._types.find_error(rest) if len(rest) else None
            at = None if next_error is None or next_error.suspect is None else at + 1 + next_error.suspect
        return errors


def _apply(
    check: Callable[[pa.Array, Rows], None], lines: pa.Array, rows: Rows, messages: LineMessages
) -> None:
    """Check lines, cutting them in half until an error concerns a single one, which it then names."""
    if not len(lines):
        return
    try:
        check(lines, rows)
    except Conflict as conflict:
        raise messages.conflict_error(conflict) from conflict
    except BadRecord as error:
        if len(lines) == 1 or error.row is not None:
            raise messages.record_error(error, rows.position(error.row or 0)) from error
    else:
        return
    for part in _halve(lines, rows):
        _apply(check, *part, messages)


def _halve(lines: pa.Array, rows: Rows) -> list[tuple[pa.Array, Rows]]:
    half = len(lines) // 2
    return [(lines[:half], rows.take(slice(half))), (lines[half:], rows.take(slice(half, None)))]
