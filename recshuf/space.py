"""The room that a run needs on disk, compared with what there is before anything is written."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from recshuf.disk import free_bytes
from recshuf.errors import DiskFullError
from recshuf.memory import format_size

if TYPE_CHECKING:
    from pathlib import Path

    from recshuf.opening import Opened


def check_space(opened: Opened, scratch: Path, output: Path | None) -> None:
    """Refuse a run that the file systems of two folders have no room for, by its plan.

    How large an output in another format or compression comes out is not known, so only the scratch counts then.

    Parameters
    ----------
    output
        None for a stream.

    Raises
    ------
    DiskFullError
        Naming folder, needed and free bytes.
    """
    plan = opened.plan
    output_bytes = plan.peak_disk_bytes - plan.spilled_bytes if opened.keeps_size else 0
    needs = [("spilled records", scratch, plan.spilled_bytes)]
    if output is not None:
        needs.append(("the output", output, output_bytes))
    by_device = defaultdict(list)
    for need in needs:
        if need[2]:
            by_device[need[1].stat().st_dev].append(need)
    for parts in by_device.values():
        folder, needed = parts[0][1], sum(part[2] for part in parts)
        free = free_bytes(folder)
        if free is not None and needed > free:
            raise DiskFullError(
                f"{folder}: {' and '.join(part[0] for part in parts)}: about {format_size(needed)} needed, and "
                f"{format_size(free)} are free; free some, choose another --temp-dir or output, or give "
                "--no-space-check"
            )
