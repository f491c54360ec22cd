"""Ranges of objects that are fetched before they are read, as many at a time as memory and requests allow."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from recshuf.storage.reading.read_ahead import PART_BYTES, divide
from recshuf.system.threads import TransientPool

if TYPE_CHECKING:
    from concurrent.futures import Future

    Range = tuple[int, int]
    """Bytes ``begin:end``."""

File = TypeVar("File", bound=Hashable)
_GAP_BYTES = 64 << 10
"""Ranges that are so close together are fetched together."""
_REQUESTS = 16
"""So many requests are in flight at once at most."""


@dataclass(slots=True, eq=False)
class _Piece(Generic[File]):
    """Bytes ``begin:end`` of a file."""

    file: File
    begin: int
    end: int
    left: int
    """How many of them are still to be read; at 0 they are given up."""
    content: Future[bytes] | None = None
    """Set when it is in flight, or in memory."""

    @property
    def size(self) -> int:
        return self.end - self.begin


class Fetcher(Generic[File]):
    """Fetches what is expected, in the order in which it is announced, and keeps it until it is read. Used by many threads.

    What is expected has at most so many bytes in flight and in memory. What is read is fetched at once, if it was not before. `get`
    returns bytes of a file, given the file, the begin and the end.
    """

    def __init__(self, most_bytes: int, get: Callable[[File, int, int], bytes]) -> None:
        self._most_bytes, self._get = most_bytes, get
        self._pool = TransientPool(_REQUESTS, "fetch")
        self._pieces: dict[File, list[_Piece[File]]] = {}
        """Those of each file, which do not overlap."""
        self._waiting: deque[_Piece[File]] = deque()
        self.held_bytes = 0
        """Bytes in flight and in memory."""
        self._in_flight = 0
        self._ahead, self._urgent = 0, 0
        """Requests that must end before others begin, and how many of them have not begun: the first that wait."""
        self._lock = threading.RLock()  # a request may end, or be given up, where it is held

    def expect(self, file: File, ranges: Sequence[Range]) -> None:
        """Note that ranges of a file, which do not overlap, will be read. Those that are near each other become one request."""
        with self._lock:
            for begin, end, used in _join(ranges):
                if not self._find(file, begin, end):  # else the rest is fetched when it is read
                    self._waiting += self._add(file, begin, end, used)
            self._begin_more()

    def hasten(self) -> None:
        """Let what was expected so far not share the link with what follows: that begins when this has ended."""
        with self._lock:
            self._urgent = len(self._waiting)
            self._ahead = self._in_flight + self._urgent

    def read_into(self, file: File, view: memoryview, offset: int) -> int:
        """Fill a view with the bytes from an offset on, and return their number."""
        stop = offset + len(view)
        with self._lock:
            at = offset
            for piece in self._find(file, offset, stop):
                self._add(file, at, piece.begin)
                at = piece.end
            self._add(file, at, stop)
            pieces = self._find(file, offset, stop)
            for piece in pieces:
                self._begin(piece)
        for piece in pieces:
            begin, end = max(offset, piece.begin), min(stop, piece.end)
            try:
                assert piece.content is not None  # noqa: S101 - it has begun
                content = piece.content.result()
            except BaseException:
                self._take(piece, piece.left)
                raise
            view[begin - offset : end - offset] = memoryview(content)[begin - piece.begin : end - piece.begin]
            del content
            self._take(piece, end - begin)
        return len(view)

    def forget(self, file: File) -> None:
        """Give up what was expected of a file."""
        for piece in self._pieces.get(file, [])[:]:
            self._take(piece, piece.left)

    def _take(self, piece: _Piece[File], count: int) -> None:
        """Note that bytes of a piece are not wanted any more."""
        with self._lock:
            piece.left -= count
            own = self._pieces.get(piece.file, [])
            if piece.left > 0 or piece not in own:
                return
            own.remove(piece)
            if not own:
                del self._pieces[piece.file]
            if piece.content is not None:
                self.held_bytes -= piece.size
                piece.content.cancel()
            self._begin_more()

    # Under the lock

    def _find(self, file: File, begin: int, end: int) -> list[_Piece[File]]:
        """Return the pieces that hold some of these bytes, in order."""
        found = [one for one in self._pieces.get(file, ()) if one.begin < end and begin < one.end]
        return sorted(found, key=lambda one: one.begin)

    def _add(self, file: File, begin: int, end: int, used: int | None = None) -> list[_Piece[File]]:
        """Add pieces for bytes that no piece holds, `used` of which will be read; by default all."""
        step = divide(max(1, end - begin), PART_BYTES)
        unused = 0 if used is None else end - begin - used
        made = [
            _Piece(file, start, min(start + step, end), min(step, end - start) - unused)
            for start in range(begin, end, step)
        ]
        if made:
            self._pieces.setdefault(file, []).extend(made)
        return made

    def _begin_more(self) -> None:
        """Begin what waits, as far as there is memory."""
        while self._waiting:
            piece = self._waiting[0]
            is_wanted = piece.content is None and piece in self._pieces.get(piece.file, ())
            is_full = self.held_bytes and self.held_bytes + piece.size > self._most_bytes
            allowed = _REQUESTS if self._urgent or not self._ahead else 0
            if is_wanted and (is_full or self._in_flight >= allowed):
                return
            self._waiting.popleft()
            if is_wanted:
                self._begin(piece)
            elif self._urgent:
                self._ahead -= 1
            self._urgent = max(0, self._urgent - 1)

    def _begin(self, piece: _Piece[File]) -> None:
        if piece.content is None:
            self.held_bytes += piece.size
            self._in_flight += 1
            piece.content = self._pool.submit(partial(self._get, piece.file, piece.begin, piece.end))
            piece.content.add_done_callback(self._note_end)

    def _note_end(self, _: Future[bytes]) -> None:
        with self._lock:
            self._in_flight -= 1
            self._ahead = max(0, self._ahead - 1)
            self._begin_more()


def _join(ranges: Sequence[Range]) -> list[tuple[int, int, int]]:
    """Return ranges in order, those joined that are near each other and small, and how many bytes of each were given.

    >>> _join([(100, 200), (0, 50), (10**6, 10**6 + 5)])
    [(0, 200, 150), (1000000, 1000005, 5)]
    """
    joined: list[tuple[int, int, int]] = []
    for begin, end in sorted(ranges):
        if joined and begin - joined[-1][1] <= _GAP_BYTES and end - joined[-1][0] <= PART_BYTES:
            start, _, used = joined[-1]
            joined[-1] = (start, end, used + end - begin)
        elif begin < end:
            joined.append((begin, end, end - begin))
    return joined
