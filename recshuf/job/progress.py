"""How a run tells what it is doing: the protocol, and the listener that says nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Progress(Protocol):
    """Hears of the passes of a run. Called from many threads."""

    def start(self, name: str, record_total: int | None, byte_total: int | None) -> None:
        """Hear that a pass begins; totals are estimates, None where nothing is known."""

    def advance(self, records: int, byte_count: int) -> None:
        """Hear that so many more records and bytes are through the pass."""

    def warn(self, message: str) -> None:
        """Hear something that the user should know, and that stops nothing."""

    def stop(self) -> None:
        """Hear that the run is over, well or not. Idempotent."""


class SilentProgress:
    """A listener that says nothing."""

    def start(self, name: str, record_total: int | None, byte_total: int | None) -> None:
        """See `Progress`."""

    def advance(self, records: int, byte_count: int) -> None:
        """See `Progress`."""

    def warn(self, message: str) -> None:
        """See `Progress`."""

    def stop(self) -> None:
        """See `Progress`."""


@contextmanager
def listen_to(progress: Progress | None) -> Iterator[Progress]:
    """Give who hears of a run, nobody if need be, and tell it of the end."""
    listener = progress or SilentProgress()
    try:
        yield listener
    finally:
        listener.stop()
