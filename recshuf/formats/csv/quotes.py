"""Finds the ends of CSV records: newlines outside of quotes.

A quote opens a field only at the start of the field, as pyarrow, pandas and Python's ``csv`` read it; elsewhere in an
unquoted field it is an ordinary byte. Adjacent quotes form a run. Only runs of odd length matter:

- at the start of a field, a run opens a quoted field or closes the open one: it *toggles*;
- behind any other byte, a run closes the open field or is part of an unquoted one: it *ends* quoting.

So a run of the second kind tells the state without what is before it. In a padded dialect a field starts behind its
blanks, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recshuf.formats.csv import DELIMITER, PADS_QUOTES, QUOTE
from recshuf.formats.lines.cutting import PIECE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from recshuf.formats.lines.cutting import Bytes, Positions
    from recshuf.interfaces import ReadOptions

    Mask = NDArray[np.bool_]

_NEWLINE, _RETURN, _BLANK = b"\n\r "
_SHOWN_BYTES = 20
_SYNC_BYTES = (1 << 14, 1 << 18)
_STEP_BYTES = 1 << 20


class Dialect(NamedTuple):
    """The bytes that have a meaning."""

    delimiter: bytes
    quote: bytes
    """Empty where nothing is quoted."""
    is_padded: bool = False
    """Whether blanks may stand before a quote that opens a field."""

    @classmethod
    def of(cls, options: ReadOptions) -> Dialect:
        """Return that of options, and what `Source.options` says was found; with a comma, if they name no delimiter."""
        quote = QUOTE.of(options)
        return cls(DELIMITER.of(options) or b",", b'"' if quote is None else quote, PADS_QUOTES.of(options))


class State(NamedTuple):
    """What a position of the data is in."""

    is_quoted: bool = False
    toggles: bool = True
    """Whether an odd run of quotes that begins here toggles."""
    is_closed: bool = False
    """Whether a quote stands before it, so that one behind blanks does not."""
    odd: int = -1
    """Where, in the piece before, a quote ends a field of several lines, and other text follows; -1 if none does."""


class OddQuote(Exception):  # noqa: N818 - never leaves the adapter: a fragment turns it into an InputError
    """A quote that ends a field of several lines, with other text behind it: one before it may be no quote."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class QuoteScanner:
    """Finds newlines, or another byte that ends records, outside of quotes, piece by piece."""

    def __init__(self, dialect: Dialect, end: int = _NEWLINE) -> None:
        self.dialect = dialect
        self._end = end
        self._quote = dialect.quote[0] if dialect.quote else None
        self._starts_field = np.zeros(256, np.bool_)
        self._starts_field[[_NEWLINE, _RETURN, dialect.delimiter[0]]] = True
        self._may_precede = self._starts_field.copy()
        self._may_precede[self._quote if self._quote is not None else _NEWLINE] = True

    def find_ends(
        self, data: Bytes, begin: int, state: State, *, is_strict: bool = False
    ) -> Iterator[tuple[Positions, State]]:
        """Yield the ends of the records of each piece of ``data[begin:]``, and the state behind the piece.

        `state` is that at `begin`. If it `is_strict`, an odd quote is an `OddQuote`.
        """
        mask = np.empty(PIECE_BYTES, np.bool_)
        other = np.empty_like(mask)
        for at in range(begin, data.size, PIECE_BYTES):
            piece = data[at : at + PIECE_BYTES]
            ends, state = self._scan(piece, state, mask, other)
            if is_strict and state.odd >= 0:
                near = data[max(0, at + state.odd - _SHOWN_BYTES) : at + state.odd + _SHOWN_BYTES]
                raise OddQuote(near.tobytes().decode(errors="replace"))
            ends += at + 1
            yield ends, state

    def find_all(self, data: Bytes) -> Positions:
        """Return the ends of all records of `data`, which begins with one."""
        pieces = self.find_ends(data, 0, State())
        return np.concatenate([np.empty(0, np.int64), *(ends for ends, _ in pieces)])

    def find_last_end(self, data: Bytes, state: State) -> tuple[int, State]:
        """Return the last end of a record, 0 if there is none, and the state behind `data`; `state` is that before it."""
        last = 0
        content = data.tobytes()
        if content and not state.is_quoted and (self._quote is None or self._quote not in content):
            toggles = self._starts_at(data, np.array([data.size]), state)[0]
            return content.rfind(self._end) + 1, State(toggles=bool(toggles))
        for ends, behind in self.find_ends(data, 0, state):
            last, state = int(ends[-1]) if ends.size else last, behind
        return last, state

    def find_cut(self, read: Callable[[int, int], Bytes], begin: int, end: int) -> int:
        """Return the last end of a record from `begin`, the start of one, to `end`; 0 if there is none.

        The last bytes are read first, and all only if quotes in these do not tell what is in them.
        """
        for size in _SYNC_BYTES:
            if end - size <= begin:
                break
            data = read(end - size, end)
            sync = self.find_sync(data)
            if sync >= 0 and (place := self.find_last_end(data[sync:], State(toggles=False))[0]):
                return end - size + sync + place
        last, state = 0, State()
        for at in range(begin, end, _STEP_BYTES):
            place, state = self.find_last_end(read(at, min(at + _STEP_BYTES, end)), state)
            last = at + place if place else last
        return last

    def find_sync(self, data: Bytes) -> int:
        """Return the first position outside of quotes whatever the state at the begin of `data`; -1 if there is none.

        A quote does not lie there, so that ``State(False, False)`` is the state.
        """
        _, begins, ends = _find_odd_runs(np.flatnonzero(data == self._quote))
        toggles = self._starts_at(data, begins, State())
        # The first run may toggle, and the last one go on behind `data`.
        known = ends[~toggles & (ends < data.size)]
        return int(known[0]) if known.size else -1

    def _scan(self, piece: Bytes, state: State, mask: Mask, other: Mask) -> tuple[Positions, State]:
        mask = np.equal(piece, self._end, out=mask[: piece.size])
        if self._quote is None:
            return np.flatnonzero(mask), state
        quotes = other[: piece.size]
        np.equal(piece, self._quote, out=quotes)
        if not quotes.any():
            ends = np.flatnonzero(mask[:0] if state.is_quoted else mask)
            toggles = state.is_quoted or self._starts_at(piece, np.array([piece.size]), state)[0]
            return ends, State(state.is_quoted, bool(toggles))
        marks = np.flatnonzero(np.logical_or(mask, quotes, out=quotes))
        is_quote = piece[marks] == self._quote
        newlines, own = marks[~is_quote], np.flatnonzero(is_quote)
        firsts, runs, run_ends = _find_odd_runs(marks[own])
        toggles = self._starts_at(piece, runs, state)
        quoted = np.empty(runs.size + 1, np.bool_)
        quoted[0] = state.is_quoted
        total = np.cumsum(toggles) + int(state.is_quoted)
        if not toggles.all():
            total -= np.maximum.accumulate(np.where(toggles, 0, total))
        quoted[1:] = total & 1
        # Of the marks before a quote, those that are no quotes are newlines.
        counts = np.diff(own[firsts] - firsts, prepend=0, append=newlines.size)
        closing = np.flatnonzero(quoted[:-1] & ~quoted[1:] & (counts[:-1] > 0))
        behind = self._state_behind(piece, state, runs, toggles, quoted)
        if closing.size:
            behind = behind._replace(odd=self._find_odd(piece, run_ends[closing]))
        return newlines[~np.repeat(quoted, counts)], behind

    def _find_odd(self, piece: Bytes, places: Positions) -> int:
        """Return the first of the places behind fields of several lines at which no field ends; -1 if there is none."""
        places = places[places < piece.size]
        odd = places[~(self._may_precede[piece[places]] | (piece[places] == _BLANK))]
        return int(odd[0]) if odd.size else -1

    def _state_behind(
        self, piece: Bytes, state: State, runs: Positions, toggles: Mask, quoted: Mask
    ) -> State:
        if quoted[-1] or self._starts_at(piece, np.array([piece.size]), state)[0]:
            return State(bool(quoted[-1]), True)
        if piece[-1] != self._quote:
            return State(False, False)
        begin = piece.size - _count_last(piece, self._quote)
        toggles_there = bool(self._starts_at(piece, np.array([begin]), state)[0])
        if runs.size and runs[-1] == begin:
            return State(False, bool(toggles[-1] or quoted[-2]), True)  # behind the end of a quoted field
        # Behind an empty quoted field, or an even run in an unquoted one.
        return State(False, toggles_there, True)

    def _starts_at(self, piece: Bytes, places: Positions, state: State) -> Mask:
        """Tell of ascending places whether a quote there would be at the start of a field, were it outside of quotes."""
        before = places - 1
        if self.dialect.is_padded:
            solid = np.flatnonzero(piece != _BLANK)
            before = np.append(solid, -1)[np.searchsorted(solid, places) - 1]
        starts: Mask = self._starts_field[piece[before]]
        starts[before < 0] = state.toggles
        if state.is_closed:
            starts[(before < 0) & (places > 0)] = False
        return starts


def _find_odd_runs(quotes: Positions) -> tuple[Positions, Positions, Positions]:
    """Return, for each run of odd length, the index of its first quote, and the places where it begins and ends."""
    firsts = np.flatnonzero(np.diff(quotes, prepend=-2) != 1)
    lengths = np.diff(firsts, append=quotes.size)
    odd = lengths & 1 == 1
    firsts, lengths = firsts[odd], lengths[odd]
    return firsts, quotes[firsts], quotes[firsts] + lengths


def strip_padding(data: Bytes, dialect: Dialect) -> Bytes:
    """Return whole records without the blanks before quotes that open fields."""
    blanks = QuoteScanner(dialect, _BLANK).find_all(data) - 1
    starts = np.flatnonzero(np.diff(blanks, prepend=-2) != 1)
    begins, lengths = blanks[starts], np.diff(starts, append=blanks.size)
    behind = data[np.minimum(begins + lengths, data.size - 1)]
    wanted = (behind == dialect.quote[0]) & (
        (begins == 0) | np.isin(data[begins - 1], [_NEWLINE, _RETURN, dialect.delimiter[0]])
    )
    return np.delete(data, blanks[np.repeat(wanted, lengths)])


def find_returns(data: Bytes, dialect: Dialect) -> Positions:
    """Return the carriage returns outside of quotes that no newline follows. `data` is whole records."""
    if not (data == _RETURN).any():
        return np.empty(0, np.int64)
    behind = QuoteScanner(dialect, _RETURN).find_all(data)
    lone: Positions = behind[data[behind] != _NEWLINE] - 1
    return lone


def _count_last(piece: Bytes, byte: int | None) -> int:
    others = np.flatnonzero(piece != byte)
    return int(piece.size - 1 - others[-1]) if others.size else int(piece.size)
