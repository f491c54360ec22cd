"""What the tests of hostile inputs share."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.processes.command_server import Ended

GB = 1 << 30
TINY = ["in.h5", "-o", "out.h5", "--memory", "300MB"]
"""Arguments of a run over a small HDF5 file."""


def refusal(ended: Ended, folder: Path) -> str:
    """Return the one line that a failed run prints; it leaves nothing beside its inputs."""
    assert ended.status == 1, ended
    lines = [line for line in ended.stderr.splitlines() if not line.startswith("recshuf: warning: ")]
    [line] = lines
    assert line.startswith("recshuf: error: "), line
    assert not [path for path in os.listdir(folder) if path.startswith((".", "out"))]
    return line
