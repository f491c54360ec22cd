"""Programs that do the same job with another library, each alone in its process.

    python -m benchmarks.rivals.duckdb '{"files": ["in.parquet"], "output": "out", ...}'

A module of this package imports the library that it is about, and nothing else that takes time.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Job:
    """What a rival is to do."""

    files: list[str]
    """The inputs, of one format."""
    output: str
    """A file, or with a slash at its end a folder; it does not exist yet."""
    memory: int
    """Bytes it may use, if it knows a limit."""
    temp: str
    """A folder for what it spills."""
    codec: str
    """Compression of the output."""
    group_rows: int
    """Rows in a row group of the output."""
    workers: int
    """Threads or processes."""

    def make_folder(self) -> Path:
        """Make the folder of the output and return it."""
        folder = Path(self.output)
        folder.mkdir()
        return folder


def read_job() -> Job:
    """Return the job that the command line tells of."""
    return Job(**json.loads(sys.argv[1]))
