"""Where the pile sets of tasks lie: in a folder that all machines share, or in an object store."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.output.run_log import PILES_PREFIX
from recshuf.piles.set_folder import SetFolder
from recshuf.storage.reading.objects import count_read_bytes
from recshuf.storage.urls import Url, is_url
from recshuf.system.paths import choose_temp_dir, real_path

if TYPE_CHECKING:
    from recshuf.job.job import Job


def check_sets(job: Job) -> None:
    """Refuse a prefix for pile sets that cannot be listed, before anything is written that names it."""
    if job.temp_url is not None:
        url = job.temp_url.join(PILES_PREFIX)
        from recshuf.storage.writing.bucket import open_bucket  # most runs write to no bucket

        next(open_bucket(url, job.storage, url.key).list(url.key), None)


def choose_sets(job: Job, work: Path | None) -> str:
    """Return where the pile sets of a new run go: a folder, or the URL of a prefix. `work` is the work folder, if there is one."""
    name = f"{PILES_PREFIX}{secrets.token_hex(8)}"
    if job.temp_url is not None:
        return str(job.temp_url.join(f"{name}/"))
    if work is not None and (job.temp_dir is None or real_path(job.temp_dir) == work.parent):
        return str(work / "piles")
    return str(real_path(choose_temp_dir(job.temp_dir)) / name)


def open_sets(job: Job, place: str, needed_bytes: int = 0) -> SetFolder:
    """Return the folder of pile sets at a place that `choose_sets` returned; `needed_bytes` are for messages."""
    if not is_url(place):
        return SetFolder(Path(place).parent, Path(place), needed_bytes=needed_bytes)
    from recshuf.piles.object_sets import ObjectSets  # as above

    # Memory for ranges of sets of a task, of which each worker runs one.
    most_bytes = count_read_bytes(job.memory_bytes, job.workers) * 3 // 4 // job.workers
    return ObjectSets(Url.parse(place), job.storage, most_bytes, needed_bytes=needed_bytes)
