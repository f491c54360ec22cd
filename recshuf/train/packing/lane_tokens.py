"""The tokens of a lane as one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from numpy.typing import NDArray

    from recshuf.train.packing.documents import GroupTokens


def lack_tokens() -> UsageError:
    """Return the error for an epoch in which a lane has no tokens."""
    return UsageError(
        "no document of a lane holds tokens; give fewer lanes if there are several, else name another column"
    )


class LaneTokens:
    """The stream of tokens of a lane.

    Parameters
    ----------
    groups
        The tokens of its groups, without end.
    offset
        Number of tokens of the first group to leave out.
    """

    def __init__(self, groups: Generator[GroupTokens], offset: int) -> None:
        self._groups = groups
        self._group = next(groups)
        self._offset = offset
        self._last_epoch = self._group.epoch

    def skip(self, count: int) -> None:
        """Skip some tokens."""
        for _ in self._take(count):
            pass

    def fill(self, tokens: NDArray[Any]) -> None:
        """Write the next tokens to an array of shape ``(n,)``."""
        done = 0
        for part in self._take(len(tokens)):
            tokens[done : done + len(part)] = part
            done += len(part)

    def _take(self, count: int) -> Iterator[NDArray[Any]]:
        """Yield the next tokens in parts."""
        while count:
            part = self._group.tokens[self._offset : self._offset + count]
            self._offset += len(part)
            count -= len(part)
            yield part
            if count:
                self._read_next()

    def _read_next(self) -> None:
        if len(self._group.tokens):
            self._last_epoch = self._group.epoch
        self._group, self._offset = next(self._groups), 0
        if self._group.epoch > self._last_epoch + 1:
            raise lack_tokens()
