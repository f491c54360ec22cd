"""The journal of a run: what it was asked, and which of its tasks are finished, so that a later run can go on.

One line for each entry: the xxh3 checksum of the rest in hexadecimal digits, a space, and a JSON object. The first entry
says what the run does; each of the others names a finished task. An entry is written when the files it speaks of are.
"""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import xxhash

if TYPE_CHECKING:
    from pathlib import Path

Entry = dict[str, Any]


class Journal:
    """An open journal. Appended to by many threads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._ends_well = False
        """Whether the last entry is known to have its end."""

    def append(self, entry: Entry) -> None:
        """Write one entry.

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


def _parse(line: bytes) -> Entry | None:
    checksum, _, text = line.partition(b" ")
    if checksum != b"%016x" % xxhash.xxh3_64_intdigest(text):
        return None
    entry: Entry = json.loads(text)
    return entry
