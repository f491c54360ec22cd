"""The journal of a run: what it was asked, and which of its tasks are finished, so that a later run can go on.

One line for each entry: the xxh3 checksum of the rest in hexadecimal digits, a space, and a JSON object. The first entry
says what the run does; each of the others names a finished task. An entry is written when the files it speaks of are.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import xxhash

from recshuf.system.paths import write_error

if TYPE_CHECKING:
    from pathlib import Path

Entry = dict[str, Any]


class Journal:
    """The journal in a work folder: what an earlier run has written, and what this one appends, in many threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: Entry | None = None
        """The first entry."""
        self.entries: list[Entry] = []
        """Those of the earlier run; empty where none is continued."""
        self._has_finished = False
        self._lock = threading.Lock()
        self._ends_well = False
        """Whether the last entry is known to have its end."""

    def load(self) -> int:
        """Read the entries of an earlier run, and return how many of them name something finished.

        Raises
        ------
        OSError
            When the file cannot be read.
        """
        self.entries = read_journal(self.path)
        self.header = self.entries[0] if self.entries else None
        return sum(map(_is_finished, self.entries))

    def forget(self) -> None:
        """Drop what was loaded."""
        self.entries, self.header = [], None

    @property
    def is_resumable(self) -> bool:
        """Whether a later run could go on from here."""
        return bool(self.entries) or self._has_finished

    def last(self, key: str) -> Any:
        """Return what the last entry of the earlier run with a key says; None where there is none."""
        return next((entry[key] for entry in reversed(self.entries) if key in entry), None)

    def note(self, entry: Entry) -> None:
        """Write an entry whose files are written; as `append`, but raise an `OutputError` when that fails."""
        try:
            self.append(entry)
        except OSError as error:
            raise write_error(error, str(self.path), self.path.parent) from error

    def append(self, entry: Entry) -> None:
        """Write an entry.

        Raises
        ------
        OSError
            When that fails.
        """
        text = json.dumps(entry, ensure_ascii=True, sort_keys=True).encode()
        with self._lock, self.path.open("ab", buffering=0) as file:
            # What an earlier run was writing when it was killed may lack its end.
            start = b"" if self._ends_well or not file.tell() or self._ends_in_newline() else b"\n"
            line = memoryview(start + b"%016x %s\n" % (xxhash.xxh3_64_intdigest(text), text))
            self._ends_well = False
            while line:
                line = line[file.write(line) :]
            self._ends_well = True
            self.header = self.header or entry
            self._has_finished = self._has_finished or _is_finished(entry)

    def _ends_in_newline(self) -> bool:
        with self.path.open("rb") as file:
            file.seek(-1, 2)
            return file.read() == b"\n"


def read_journal(path: Path) -> list[Entry]:
    """Return the entries of a journal; those that do not read back as they were written are left out.

    Without its first entry, a journal has none.

    Raises
    ------
    OSError
        When the file cannot be read.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    entries = [_parse(line) for line in lines]
    return [] if entries[0] is None else [entry for entry in entries if entry is not None]


def _is_finished(entry: Entry) -> bool:
    """Tell whether an entry names a pile set, a shard, or an output of which files are being replaced."""
    return not entry.keys().isdisjoint(("set", "shard", "moving"))


def _parse(line: bytes) -> Entry | None:
    checksum, _, text = line.partition(b" ")
    if checksum != b"%016x" % xxhash.xxh3_64_intdigest(text):
        return None
    entry: Entry = json.loads(text)
    return entry
