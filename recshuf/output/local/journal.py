"""The journal of a run in its work folder: a file with a line for each entry; see `system.checked_lines`."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, BinaryIO

from recshuf.output.journal import Journal, is_header
from recshuf.system.checked_lines import format_line, parse_line
from recshuf.system.paths import open_sole, write_error

if TYPE_CHECKING:
    from pathlib import Path

    from recshuf.output.journal import Entry

_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT


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
