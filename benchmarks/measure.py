"""What a command takes, measured as a whole process from start to end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROJECT = Path(__file__).resolve().parent.parent
LAUNCHER = Path(__file__).with_name("launch.py")


@dataclass(frozen=True, slots=True)
class Usage:
    """What one run took, its children included."""

    seconds: float
    """Wall time, startup included."""
    cpu_seconds: float
    """User and system time."""
    peak_bytes: int
    """Resident memory of the largest process."""
    read_bytes: int
    """Passed through read calls; what a mapping shows is not in it."""
    written_bytes: int
    """Passed through write calls."""
    disk_read_bytes: int
    """Fetched from the disk, since the page cache did not have it."""
    disk_written_bytes: int
    """Made dirty in the page cache, through whatever call."""
    sync_seconds: float = 0.0
    """After its end, until its output was on the disk."""

    @property
    def durable_seconds(self) -> float:
        """Wall time until the output was on the disk."""
        return self.seconds + self.sync_seconds


class CommandError(Exception):
    """A command failed; the text says how."""


class LimitError(CommandError):
    """A command was ended, since it took longer than it may."""


def measure(
    command: Sequence[str],
    *,
    log: Path,
    limit_seconds: float,
    stdin: Path | None = None,
    stdout: Path | None = None,
    environment: Mapping[str, str] | None = None,
    cores: int | None = None,
    group: Path | None = None,
) -> Usage:
    """Run a command in the checkout, with compiled modules as after an installation, and return what it took.

    Parameters
    ----------
    log
        Where its standard error goes.
    cores
        Let it use this many cores only.
    group
        Run it in this memory group.

    Raises
    ------
    CommandError
        If it ends with another exit code than 0.
    LimitError
        If it takes longer than `limit_seconds`.
    """
    given = {
        "command": list(command),
        "limit_seconds": limit_seconds,
        "stdin": str(stdin or ""),
        "stdout": str(stdout or ""),
        "stderr": str(log),
        "environment": {"PYTHONDONTWRITEBYTECODE": "", **(environment or {})},
        "cores": cores,
        "group": str(group or ""),
    }
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER), json.dumps(given)]
    ended = subprocess.run(launcher, cwd=PROJECT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise CommandError(find_last_line(ended.stderr))
    figures = json.loads(ended.stdout)
    code = figures.pop("code")
    if code is None:
        raise LimitError(f"ended at its limit of {limit_seconds:g} s")
    if code == -signal.SIGKILL:
        raise CommandError("killed, as the memory was used up")
    if code:
        raise CommandError(f"exit code {code}: {find_last_line(log.read_text(errors='replace'))}")
    return Usage(**figures)


def find_last_line(text: str) -> str:
    """Return the last line that says something, cut to a sentence's length."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "no message"


def summarise(rounds: Sequence[Usage]) -> Usage:
    """Return the median of each figure, and the highest peak."""
    medians = {field.name: median(getattr(usage, field.name) for usage in rounds) for field in fields(Usage)}
    medians["peak_bytes"] = max(usage.peak_bytes for usage in rounds)
    return Usage(**medians)
