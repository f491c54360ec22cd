"""Where a task finds its run: small values that an engine hands to other processes.

Arrow reads the settings of its allocators when it is imported, and only the run tells them. So nothing here imports it.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from recshuf.output.local.log import FileResults
from recshuf.storage.settings import StorageOptions
from recshuf.storage.urls import is_url

if TYPE_CHECKING:
    from recshuf.output.run_log import TaskResults


class RunAddress(NamedTuple):
    """Where tasks find their run."""

    tasks: str
    """Address of its task folder."""
    output: str
    """Name of its output, for messages."""
    run_id: str
    memory_bytes: int
    """Memory limit of a task."""
    workers: int
    """Threads of a task."""
    processes: int
    """How many tasks of this machine run at a time; 0 if others do the work."""
    endpoint_url: str | None
    storage_options: tuple[tuple[str, str], ...]

    @property
    def storage(self) -> StorageOptions:
        """How object stores are reached, which nothing in the task folder tells."""
        return StorageOptions(self.endpoint_url, dict(self.storage_options))

    def open_tasks(self) -> TaskResults:
        """Return the task folder."""
        return _open_objects(self) if is_url(self.tasks) else FileResults(Path(self.tasks))


@lru_cache(maxsize=1)
def _open_objects(run: RunAddress) -> TaskResults:
    """Return a task folder in an object store; the next task of the run uses its connections again."""
    from recshuf.output.objects.log import ObjectResults

    return ObjectResults.open(run.tasks, run.storage, run.output)


class Task(NamedTuple):
    """A task of a run."""

    run: RunAddress
    number: int

    def __str__(self) -> str:
        """Return its name in messages."""
        return f"task {self.number}"
