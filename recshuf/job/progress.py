"""The protocol for progress reports."""

from __future__ import annotations

from typing import Protocol, runtime_checkable


@runtime_checkable
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
