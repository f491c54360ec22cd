"""The protocol for progress reports."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class Progress(Protocol):
    """Receives the progress of a run. Called from many threads."""

    def start(self, name: str, record_total: int | None, byte_total: int | None) -> None:
        """Begin a pass; totals are estimates, None if unknown."""

    def advance(self, records: int, byte_count: int) -> None:
        """Add records and bytes to the pass."""

    def warn(self, message: str) -> None:
        """Show a warning; the run continues."""

    def stop(self) -> None:
        """End the display, after success or failure. Idempotent."""


class SilentProgress:
    """Progress that ignores all calls."""

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
    """Yield a listener, by default a silent one, and stop it at the end."""
    listener = progress or SilentProgress()
    try:
        yield listener
    finally:
        listener.stop()
