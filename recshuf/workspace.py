"""Where a run works: its scratch, its pile store, and its quarantine."""

from __future__ import annotations

import os
import secrets
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.disk import real_path
from recshuf.errors import OutputError
from recshuf.quarantine import Quarantine, check_path
from recshuf.records import choose_codec
from recshuf.scratch import Scratch
from recshuf.staging import PILES_PREFIX
from recshuf.store import PileStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import ExitStack

    from recshuf.job import Job
    from recshuf.opening import Opened
    from recshuf.resume import Earlier
    from recshuf.staging import Staging


def open_scratch(opened: Opened, staging: Staging | None, earlier: Earlier | None) -> Scratch:
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
        return Scratch(parent, staging.folder.parent, staging.folder / "piles", needed)
    kept = real_path(parent) / f"{PILES_PREFIX}{secrets.token_hex(8)}"
    return Scratch(parent, kept=kept, needed_bytes=needed)


def _choose_scratch_parent(job: Job, staging: Staging | None) -> Path:
    if job.temp_dir is not None:
        if not job.temp_dir.is_dir():
            raise OutputError(f"{job.temp_dir}: no such directory; create it, or choose another --temp-dir")
        return job.temp_dir
    if staging is not None:
        return staging.folder
    # With no output folder: what the user has set, else the place meant for large temporary files.
    for candidate in (os.environ.get("TMPDIR"), "/var/tmp"):  # noqa: S108 - a private folder is made in it
        if candidate and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    return Path(tempfile.gettempdir())


def open_quarantine(
    opened: Opened, staging: Staging | None, parent: Path, cleanup: ExitStack
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
    read = opened.job.read
    quarantine = Quarantine(
        path,
        parent if staging is None else staging.folder,
        [summary.name for summary in opened.source.inputs],
        secrets.token_hex(8) if staging is None else str(real_path(staging.folder)),
        header_lines=read.header_lines,
        separator_bytes=len(read.separator),
    )
    cleanup.callback(quarantine.close)
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
