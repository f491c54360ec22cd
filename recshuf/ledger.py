"""Row numbers of an input whose parts are read by many threads."""

from __future__ import annotations

import threading

from recshuf.errors import Stopped


class RowLedger:
    """Hands out row numbers of one input: fragments claim theirs in order, whoever reads them first.

    A fragment of unknown size must have been read before the next one can know its rows; so a claim waits
    until the fragments before it are `finish`ed.
    """

    def __init__(self) -> None:
        self._turn = 0
        self._rows = 0
        self._changed = threading.Condition()
        self._stopped = False

    @property
    def rows(self) -> int:
        """Rows claimed so far."""
        return self._rows

    def claim(self, fragment_index: int, count: int) -> int:
        """Return the first row of the next `count` records of a fragment, once it is that fragment's turn.

        Raises
        ------
        Stopped
            When `stop` was called.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._turn == fragment_index or self._stopped)
            if self._stopped:
                raise Stopped
            first_row = self._rows
            self._rows += count
            return first_row

    def finish(self, fragment_index: int) -> None:
        """Pass the turn to the next fragment: this one has claimed all its rows."""
        self.claim(fragment_index, 0)
        with self._changed:
            self._turn += 1
            self._changed.notify_all()

    def stop(self) -> None:
        """Wake everybody who waits, with `Stopped`."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
