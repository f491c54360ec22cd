"""The bad ones among many JSON lines: found in pieces, so that the good ones are never looked at one by one.

A line is bad if it is so by itself. What pyarrow says of many lines only tells where to look; the verdict on a line
and its reason come from whole-array checks that treat every line alike, or from the line alone. So they do not depend on how
lines were cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.formats.jsonl.decoding.grammar import find_ungrammatical
from recshuf.formats.jsonl.decoding.line_checks import (
    BadRecord,
    Faults,
    encoding_error,
    explain_bare,
    find_bare,
    find_deep,
    line_offsets,
    too_deep_error,
)
from recshuf.formats.lines.utf8 import find_invalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from recshuf.errors import InputError
    from recshuf.formats.jsonl.decoding.inference import GivenTypes, InferredTypes
    from recshuf.formats.jsonl.decoding.shapes import Rows, Spot


class Sieve:
    """Lets types learn from the records among lines, and keeps the rest back.

    Parameters
    ----------
    types
        Learn from the good lines.
    complain
        Returns the error to raise for a line that is a record by itself, but does not fit the others.
    """

    def __init__(
        self, types: GivenTypes | InferredTypes, complain: Callable[[BadRecord, Spot], InputError]
    ) -> None:
        self._types = types
        self._complain = complain

    def sift(self, lines: pa.Array, rows: Rows) -> Faults:
        """Learn from the good ones of some lines and return what is wrong with the others, by their rows.

        Raises
        ------
        InputError
            When records do not fit together.
        Conflict
            When their types do not.
        """
        try:
            self._types.learn(lines, rows)
        except BadRecord:
            faults = find_misshapen(lines)
            found = {int(rows.numbers[at]): fault for at, fault in faults.items()}
            self._scan(*_leave_out(faults, lines, rows), found)
            return found
        return {}

    def _scan(self, lines: pa.Array, rows: Rows, found: Faults) -> None:
        """Add the faults of lines to `found`, cutting in half what cannot be told of all of them at once."""
        while len(lines):
            try:
                self._types.learn(lines, rows)
            except BadRecord as error:
                faults = self._name_faults(error, lines, rows)
                if not faults and len(lines) == 1:
                    raise self._complain(error, rows.spot(0)) from error
            else:
                return
            if not faults:
                half = len(lines) // 2
                self._scan(lines.slice(0, half), rows.cut(0, half), found)
                self._scan(lines.slice(half), rows.cut(half, len(lines)), found)
                return
            found.update({int(rows.numbers[at]): fault for at, fault in faults.items()})
            lines, rows = _leave_out(faults, lines, rows)

    def _name_faults(self, error: BadRecord, lines: pa.Array, rows: Rows) -> Faults:
        """Return the faults that an error of all these lines leads to, by the index of the line."""
        if len(lines) == 1:
            fault = self._types.find_fault(lines)
            return {} if fault is None else {0: fault}
        return error.faults or self._follow(error, lines, rows)

    def _follow(self, error: BadRecord | None, lines: pa.Array, rows: Rows) -> Faults:
        """Return the faults of the line suspected, of the one suspected in the lines behind it, and so on."""
        faults, start = Faults(), 0
        while error is not None and error.suspect is not None and start + error.suspect < len(lines):
            at = start + error.suspect
            fault = self._types.find_fault(lines.slice(at, 1))
            if fault is None:
                break
            faults[at] = fault
            start = at + 1
            error = self._probe(lines.slice(start), rows.cut(start, len(lines)))
        return faults

    def _probe(self, lines: pa.Array, rows: Rows) -> BadRecord | None:
        if not len(lines):
            return None
        try:
            self._types.probe(lines, rows)
        except BadRecord as error:
            return error
        return None


def _leave_out(faults: Faults, lines: pa.Array, rows: Rows) -> tuple[pa.Array, Rows]:
    if not faults:
        return lines, rows
    keep: NDArray[np.int64] = np.delete(np.arange(len(lines)), list(faults))
    return lines.take(pa.array(keep)), rows.take(keep)


def find_misshapen(lines: pa.Array) -> Faults:
    """Return the faults of lines that are no JSON, or none that can be parsed without risk."""
    faults, rows = Faults(), np.arange(len(lines))
    for find, explain in _CHECKS:
        bad = find(lines)
        for at, row in zip(bad.tolist(), rows[bad].tolist(), strict=True):
            faults[row] = explain(lines, at)
        if len(bad):
            keep = np.delete(np.arange(len(lines)), bad)
            lines, rows = lines.take(pa.array(keep)), rows[keep]
        if not len(lines):
            break
    return faults


def _find_not_utf8(lines: pa.Array) -> NDArray[np.int64]:
    encoded = pa.Array.from_buffers(pa.large_binary(), len(lines), lines.buffers(), offset=lines.offset)
    return find_invalid(encoded)


_CHECKS: tuple[
    tuple[Callable[[pa.Array], NDArray[np.int64]], Callable[[pa.Array, int], BadRecord]],
    ...,
] = (
    # Each relies on those before it.
    (_find_not_utf8, lambda _, __: encoding_error()),
    (lambda lines: find_bare(lines, line_offsets(lines)), explain_bare),
    (lambda lines: find_deep(lines, line_offsets(lines)), lambda _, __: too_deep_error()),
    (find_ungrammatical, lambda _, __: BadRecord("is not valid JSON")),
)
