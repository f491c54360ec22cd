"""Messages on standard error, and a progress display if it is a terminal."""

from __future__ import annotations

import sys
from contextlib import suppress
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

from recshuf.audit.reports.text import one_line
from recshuf.job.report import SilentProgress
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from rich.progress import Progress as Display
    from rich.progress import TaskID

    from recshuf.job.report import Progress


def say(text: str) -> None:
    """Print one line on standard error, with the name of the program; errors are ignored."""
    with suppress(OSError, AttributeError):
        sys.stderr.write(f"recshuf: {one_line(text)}\n")
        sys.stderr.flush()


def open_terminal(*, shows_records: bool = False) -> Progress:
    """Return a display if standard error is a terminal, else one that prints warnings only.

    Parameters
    ----------
    shows_records
        Whether the records go to the terminal too, where a display would be among them.
    """
    if sys.stderr is None or not sys.stderr.isatty() or shows_records:
        return Warnings()
    return TerminalProgress()


class Warnings(SilentProgress):
    """Progress that prints warnings only."""

    def warn(self, message: str) -> None:
        say(f"warning: {message}")


class TerminalProgress:
    """Progress display on standard error: records, bytes, rate, time left. It disappears at the end of the run."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._display: Display | None = None
        self._task: TaskID | None = None
        self._records = self._byte_count = 0
        self._total: int | None = None
        self._started = monotonic()

    def start(self, name: str, record_total: int | None, byte_total: int | None) -> None:  # noqa: ARG002 - the time left follows from records
        """Show a new pass instead of the last one."""
        of_total = "" if record_total is None else f" of {record_total:,}"
        with self._lock:
            display = self._display = self._display or _open_display()
            if self._task is not None:
                display.remove_task(self._task)
            self._records = self._byte_count = 0
            self._total = record_total
            self._started = monotonic()
            self._task = display.add_task(
                name, total=record_total, of_total=of_total, share=self._share, amount=""
            )

    @property
    def _share(self) -> str:
        """The part of the records that is done; their number where that is not known."""
        return f"{100 * self._records // max(1, self._total)} %" if self._total else f"{self._records:,}"

    def advance(self, records: int, byte_count: int) -> None:
        with self._lock:
            self._records += records
            self._byte_count += byte_count
            rate = self._byte_count / max(1e-3, monotonic() - self._started)
            amount = f"{format_size(self._byte_count)} at {format_size(rate)}/s"
            if self._display is not None and self._task is not None:
                self._display.update(self._task, completed=self._records, share=self._share, amount=amount)

    def warn(self, message: str) -> None:
        if self._display is None:
            say(f"warning: {message}")
        else:
            text = f"recshuf: warning: {one_line(message)}"
            self._display.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        with self._lock:
            display, self._display, self._task = self._display, None, None
        if display is not None:
            display.stop()


_COLUMNS = (
    (0, "{task.description}"),
    (0, "{task.fields[share]}"),
    (110, "bar"),
    (75, "{task.completed:,.0f}{task.fields[of_total]} records"),
    (95, "{task.fields[amount]}"),
)
"""Columns of the display, with the least width of a terminal that has room for each and those with less."""


def _open_display() -> Display:
    from rich import progress
    from rich.console import Console

    console = Console(file=sys.stderr)
    shown = [
        progress.BarColumn(bar_width=24) if text == "bar" else progress.TextColumn(text, markup=False)
        for least_width, text in _COLUMNS
        if console.width >= least_width
    ]
    display = progress.Progress(
        *shown,
        progress.TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    display.start()
    return display
