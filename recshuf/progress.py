"""How a run tells what it is doing: the protocol, and the listener that says nothing."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Hears of the passes of a run. Called from many threads."""

    def start(self, name: str, record_total: int | None, byte_total: int | None) -> None:
        """A pass begins; totals are estimates, None where nothing is known."""

    def advance(self, records: int, byte_count: int) -> None:
        """So many more records and bytes are through the pass."""

    def warn(self, message: str) -> None:
        """Something the user should know, and that stops nothing."""

    def stop(self) -> None:
        """The run is over, well or not. Idempotent."""


class SilentProgress:
    """A listener that keeps no track of progress and drops warnings."""

    def start(self, name: str, record_total: int | None, byte_total: int | None) -> None: ...

    def advance(self, records: int, byte_count: int) -> None: ...

    def warn(self, message: str) -> None: ...

    def stop(self) -> None: ...
