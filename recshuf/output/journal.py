"""The journal of a run: its job and finished tasks, so that a later run can continue.

The first entry describes the job; each other one names a finished task, or a further folder of pile sets. An entry is
written after the task that it names, but before that folder is made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

Entry = dict[str, Any]
_TASKS = ("set", "shard", "commit")
"""Keys of all entries but the first."""


class Journal(ABC):
    """The journal of a run: the entries of an earlier run, and new ones, appended from many threads."""

    def __init__(self) -> None:
        self.header: Entry | None = None
        """The first entry."""
        self.entries: list[Entry] = []
        """Entries of the earlier run; empty for a new run."""
        self.pile_folders: list[str] = []
        """Folders of pile sets, in the order in which they were noted."""
        self._has_finished = False

    @abstractmethod
    def read(self) -> list[Entry]:
        """Return all entries, without damaged ones; none if the first one is damaged or missing.

        Raises
        ------
        OSError
            When they cannot be read.
        """

    @abstractmethod
    def note(self, entry: Entry) -> None:
        """Append an entry.

        Raises
        ------
        OutputError
            When that fails.
        """

    def load(self) -> int:
        """Read the entries of an earlier run, and return the number of finished tasks.

        Raises
        ------
        OSError
            When they cannot be read.
        """
        self.entries = self.read()
        self.header = self.entries[0] if self.entries else None
        self.pile_folders = list_pile_folders(self.entries)
        return sum(map(_is_finished, self.entries))

    def clear(self) -> None:
        """Drop the loaded entries."""
        self.entries, self.header, self.pile_folders = [], None, []

    @property
    def is_resumable(self) -> bool:
        """Whether a later run can continue from here."""
        return bool(self.entries) or self._has_finished

    def last(self, key: str) -> Any:
        """Return the value of a key in the last entry that has it; None if none has."""
        return next((entry[key] for entry in reversed(self.entries) if key in entry), None)

    def _take(self, entry: Entry) -> None:
        """Remember that an entry was written."""
        self.header = self.header or entry
        self.pile_folders += list_pile_folders([entry])
        self._has_finished = self._has_finished or _is_finished(entry)


def list_pile_folders(entries: Iterable[Entry]) -> list[str]:
    """Return the folders of pile sets that some entries name."""
    return [entry["piles"] for entry in entries if entry.get("piles")]


def is_header(entry: Entry | None) -> bool:
    """Tell whether an entry is the first one of a run."""
    return entry is not None and entry.keys().isdisjoint(_TASKS)


def _is_finished(entry: Entry) -> bool:
    """Tell whether an entry names a pile set or a shard."""
    return not entry.keys().isdisjoint(("set", "shard"))
