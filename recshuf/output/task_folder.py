"""What the tasks of a run leave for each other, which many machines use at the same time.

It holds the results of finished tasks, each a small JSON file, and what tasks have written under names of their own. Of
tasks that ran twice, one result is there, and only what it names counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

TASK_FOLDER = "tasks"


class TaskFolder(ABC):
    """The results of the tasks of one run, JSON values by name, each with a checksum."""

    removal: str
    """How a user deletes it, as an infinitive."""
    private: Path | None = None
    """Folder that only the user can write; None if others may write here, too."""

    @property
    @abstractmethod
    def address(self) -> str:
        """Absolute path or URL, the same on all machines."""

    @abstractmethod
    def make(self) -> None:
        """Make it, if it does not exist. Before that, only `read` and `count` may be called."""

    @abstractmethod
    def share(self, output: str) -> AbstractContextManager[None]:
        """Make it, and let no run remove it meanwhile.

        Parameters
        ----------
        output
            Name of the output, for messages.

        Raises
        ------
        OutputError
            When a run has it for itself, or it cannot be made.
        """

    @abstractmethod
    def count(self) -> int:
        """Return the number of results of tasks."""

    @abstractmethod
    def read(self, name: str) -> Any:
        """Return the JSON values of a result; None if there is none.

        Raises
        ------
        OutputError
            When it cannot be read, or is damaged.
        """

    def read_all(self, names: Iterable[str]) -> list[Any]:
        """Return what `read` returns of each name."""
        return [self.read(name) for name in names]

    @abstractmethod
    def place(self, name: str, values: dict[str, Any]) -> Any:
        """Put a result in place, if there is none of this name, and return the one that is in place.

        Raises
        ------
        OutputError
            When it cannot be written.
        """

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a result, if it is there."""


def is_result(name: str) -> bool:
    """Tell whether the name of a file or object is that of the result of a task."""
    return name.startswith("task-") and name.endswith(".json")
