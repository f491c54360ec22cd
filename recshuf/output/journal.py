"""The journal of a run: its job and finished tasks, so that a later run can continue.

The first entry describes the job; each other one names a finished task, or a further folder of pile sets. An entry is
written after the task that it names, but before that folder is made.

In a file, an entry is a line; see `system.checked_lines`.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, BinaryIO

from recshuf.system.checked_lines import format_line, parse_line
from recshuf.system.paths import open_sole, write_error

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Entry = dict[str, Any]
_TASKS = ("set", "shard", "commit")
"""Keys of all entries but the first."""
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT


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


class FileJournal(Journal):
    """The journal in a work folder."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._lock = threading.Lock()
        self._ends_well = False
        """Whether the last entry is known to be complete."""

    def read(self) -> list[Entry]:
        """Return all entries; see `read_journal`."""
        return read_journal(self.path)

    def note(self, entry: Entry) -> None:
        """Do what `append` does, but raise an `OutputError` on failure."""
        try:
            self.append(entry)
        except OSError as error:
            raise write_error(error, str(self.path), self.path.parent) from error

    def append(self, entry: Entry) -> None:
        """Append an entry; its files must be written.

        Raises
        ------
        OSError
            When that fails.
        """
        text = format_line(entry)
        with self._lock, os.fdopen(open_sole(self.path, _APPEND), "ab", buffering=0) as file:
            start = b"" if self._ends_well else self._mend(file)
            line = memoryview(start + text)
            self._ends_well = False
            while line:
                line = line[file.write(line) :]
            self._ends_well = True
            self._take(entry)

    def _mend(self, file: BinaryIO) -> bytes:
        """Return what has to follow the last entry, which a killed run may have left incomplete.

        Without the first entry nothing is read: the journal is begun anew. Only who holds the lock of the run appends.
        """
        if not read_journal(self.path):
            file.truncate(0)
            return b""
        return b"" if self._ends_in_newline() else b"\n"

    def _ends_in_newline(self) -> bool:
        with os.fdopen(open_sole(self.path, os.O_RDONLY), "rb") as file:
            file.seek(-1, 2)
            return file.read() == b"\n"


def read_journal(path: Path) -> list[Entry]:
    """Return the entries of a journal, without damaged ones; none if the first one is damaged or missing.

    Raises
    ------
    OSError
        When the file cannot be read.
    """
    try:
        with os.fdopen(open_sole(path, os.O_RDONLY), "rb") as file:
            lines = file.read().split(b"\n")
    except FileNotFoundError:
        return []
    entries = [parse_line(line) for line in lines]
    return [entry for entry in entries if entry is not None] if is_header(entries[0]) else []


def list_pile_folders(entries: Iterable[Entry]) -> list[str]:
    """Return the folders of pile sets that some entries name."""
    return [entry["piles"] for entry in entries if entry.get("piles")]


def is_header(entry: Entry | None) -> bool:
    """Tell whether an entry is the first one of a run."""
    return entry is not None and entry.keys().isdisjoint(_TASKS)


def _is_finished(entry: Entry) -> bool:
    """Tell whether an entry names a pile set or a shard."""
    return not entry.keys().isdisjoint(("set", "shard"))
