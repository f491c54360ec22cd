"""The display of progress of a command."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recshuf.job.progress import Progress


def choose_progress(quiet: bool, *, writes_records: bool = False) -> Progress:
    """Return the display of progress; `writes_records` says whether records go to standard output."""
    from recshuf.audit.reports.terminal import open_terminal
    from recshuf.job.progress import SilentProgress

    if quiet:
        return SilentProgress()
    return open_terminal(shows_records=writes_records and sys.stdout is not None and sys.stdout.isatty())
