"""Where a run works: its scratch, its pile store, its quarantine, and the disk space they need."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.errors import DiskFullError, OutputError
from recshuf.output.quarantine import Quarantine, check_path
from recshuf.output.work_folder import PILES_PREFIX
from recshuf.piles.codec import choose_codec
from recshuf.piles.scratch import Scratch
from recshuf.piles.store import PileStore
from recshuf.system.paths import free_bytes, real_path
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from recshuf.job.job import Job
    from recshuf.output.work_folder import WorkFolder
    from recshuf.run.opening import Opened
    from recshuf.run.resume import Earlier


def open_scratch(opened: Opened, staging: WorkFolder | None, earlier: Earlier | None) -> Scratch:
    """Return where piles are spilled, which is where the run that is continued has spilled them.

    Raises
    ------
    OutputError
        When the folder that the user has named is not there.
    """
    job, needed = opened.job, opened.plan.spilled_bytes
    parent = _choose_scratch_parent(job, staging)
    if staging is None:
        return Scratch(parent, needed_bytes=needed)
    if earlier is not None and earlier.header["piles"]:
        return Scratch(parent, kept=Path(earlier.header["piles"]), needed_bytes=needed)
    if job.temp_dir is None:
        return Scratch(parent, staging.path.parent, staging.path / "piles", needed)
    kept = real_path(parent) / f"{PILES_PREFIX}{secrets.token_hex(8)}"
    return Scratch(parent, kept=kept, needed_bytes=needed)


def _choose_scratch_parent(job: Job, staging: WorkFolder | None) -> Path:
    if job.temp_dir is not None:
        if not job.temp_dir.is_dir():
            raise OutputError(f"{job.temp_dir}: no such directory; create it, or choose another --temp-dir")
        return job.temp_dir
    if staging is not None:
        return staging.path
    # With no output folder: what the user has set, else the place meant for large temporary files.
    for candidate in (os.environ.get("TMPDIR"), "/var/tmp"):  # noqa: S108 - a private folder is made in it
        if candidate and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    return Path(tempfile.gettempdir())


def open_quarantine(
    opened: Opened, staging: WorkFolder | None, parent: Path, cleanup: ExitStack
) -> Quarantine | None:
    """Return what gathers bad records, None where they are errors; `cleanup` withdraws it unless it was settled.

    Raises
    ------
    UsageError
        When its file cannot be used; see `check_path`.
    """
    path = opened.job.quarantine
    if path is None:
        return None
    destination = opened.destination
    inputs = [file.path for file in opened.files if file.path is not None and file.stamp is not None]
    overwrite = opened.job.overwrite or opened.job.resume
    check_path(path, inputs, destination.path if destination else None, overwrite=overwrite)
    if staging is not None:
        folder = staging.path / "quarantine"
    else:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="recshuf-", dir=parent)))
    read = opened.job.read
    quarantine = Quarantine(
        path,
        folder,
        [summary.name for summary in opened.source.inputs],
        header_lines=read.header_lines,
        separator_bytes=len(read.separator),
    )
    for index in range(len(opened.source.inputs)):
        quarantine.discard(index)  # a run that is continued looks at all records again
    cleanup.callback(quarantine.withdraw)
    return quarantine


def make_store(opened: Opened, scratch: Scratch, on_sealed: Callable[[int, int], None] | None) -> PileStore:
    """Return an empty store for the piles of a run; `on_sealed` is that of `PileStore`."""
    plan = opened.plan
    set_sizes: list[float | None] = [0.0] * plan.set_count
    for set_index, size in zip(plan.set_of_input, opened.sizes, strict=True):
        so_far = set_sizes[set_index]
        known = size.record_count is not None and so_far is not None
        set_sizes[set_index] = so_far + size.record_count if known else None  # type: ignore[operator]
    return PileStore(
        choose_codec(opened.pile_schema),
        plan.pile_count,
        scratch,
        tuple(set_sizes),
        plan.resident_bytes,
        plan.output_count,
        on_sealed=on_sealed,
        compression=plan.spill_compression,
        region_piles=plan.region_piles,
    )


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
