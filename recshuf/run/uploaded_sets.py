"""The pile sets of tasks in an object store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.output.run_log import remove_sets
from recshuf.piles.object_sets import ObjectSets
from recshuf.storage.reading.objects import count_read_bytes

if TYPE_CHECKING:
    from recshuf.job.job import Job
    from recshuf.storage.urls import Url


class UploadedSets(ObjectSets):
    """Objects below a prefix, written and read by all tasks."""

    def __init__(self, job: Job, url: Url, needed_bytes: int) -> None:
        # Memory for ranges of sets of a task, of which each worker runs one.
        most_bytes = count_read_bytes(job.memory_bytes, job.workers) * 3 // 4 // job.workers
        super().__init__(url, job.storage, most_bytes, needed_bytes=needed_bytes)

    def remove(self) -> None:
        remove_sets(str(self.url), self._options)
