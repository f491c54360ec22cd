"""Where the tasks of a run find it, on any machine."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from recshuf.output.local.task_folder import LocalTaskFolder
from recshuf.storage.settings import StorageOptions
from recshuf.storage.urls import is_url

if TYPE_CHECKING:
    from recshuf.output.task_folder import TaskFolder
    from recshuf.run.tasks.shared_run import SharedRun


class RunAddress(NamedTuple):
    """Where tasks find their run."""

    tasks: str
    """Address of its task folder."""
    output: str
    """Name of its output, for messages."""
    run_id: str
    memory_bytes: int
    """Memory limit of a task."""
    endpoint_url: str | None
    storage_options: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, tasks: TaskFolder, run: SharedRun) -> RunAddress:
        """Return the address of a run."""
        memory_bytes = json.loads(run.options)["memory"]
        options = tuple(run.storage.options.items())
        return cls(tasks.address, run.output, run.id, memory_bytes, run.storage.endpoint_url, options)

    @property
    def storage(self) -> StorageOptions:
        """How object stores are reached, which nothing in the task folder tells."""
        return StorageOptions(self.endpoint_url, dict(self.storage_options))

    def open_tasks(self) -> TaskFolder:
        """Return the task folder."""
        return _open_objects(self) if is_url(self.tasks) else LocalTaskFolder(Path(self.tasks))


@lru_cache(maxsize=1)
def _open_objects(run: RunAddress) -> TaskFolder:
    """Return a task folder in an object store; the next task of the run uses its connections again."""
    from recshuf.output.objects.task_folder import ObjectTaskFolder

    return ObjectTaskFolder.open(run.tasks, run.storage, run.output)
