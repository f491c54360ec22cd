"""The journal of a run as objects: one for each entry, and one for each run that wrote or continued the output.

    00001.run           the first run
    00001-000000.entry  its entries, the header first
    00002.run           the run that continued it, or the commit of the first one

No object is replaced. Who makes the object of the next number is the only one that may commit: a run whose commit
comes after that of another one, or after another one took over, finds its number taken.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from recshuf.errors import OutputError
from recshuf.output.journal import Journal, format_entry, is_header, parse_entry
from recshuf.storage.s3 import Conflict, Match
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from recshuf.output.journal import Entry
    from recshuf.storage.s3 import S3Bucket

_READERS = 8


class ObjectJournal(Journal):
    """The journal of an output in a bucket.

    Parameters
    ----------
    bucket, prefix
        Where its objects lie.
    shown
        URL of the prefix, for messages.
    """

    def __init__(self, bucket: S3Bucket, prefix: str, shown: str) -> None:
        super().__init__()
        self._bucket = bucket
        self._prefix = prefix
        self._shown = shown
        self._known: dict[str, Entry] = {}
        """Loaded and written entries by the names of their objects."""
        self._runs: dict[int, Entry] = {}
        self._number = 0
        """Number of the last object of this run, or of the last one found."""
        self._run = 0
        """Number of this run."""
        self._count = 0
        self._lock = threading.Lock()

    @property
    def runs(self) -> list[Entry]:
        """What the runs said of themselves when they began, in their order; that of a commit has the key ``commit``."""
        return [self._runs[number] for number in sorted(self._runs)]

    @property
    def has_remains(self) -> bool:
        """Whether `load` found anything."""
        return bool(self._runs or self._known)

    @property
    def named_entries(self) -> dict[str, Entry]:
        """All entries by name, in their order."""
        with self._lock:
            return {name: self._known[name] for name in sorted(self._known)}

    def read(self) -> list[Entry]:
        """Return all entries; none if the first one is no header."""
        entries = list(self.named_entries.values())
        return entries if entries and is_header(entries[0]) else []

    def load(self) -> int:
        """Read the entries of earlier runs, and return the number of finished tasks."""
        names = [found.key.removeprefix(self._prefix) for found in self._bucket.list(self._prefix)]
        with Pool(_READERS, "journal") as pool:
            found = dict(zip(names, pool.map(self._read, names), strict=True))
        self._known = {name: entry for name, entry in found.items() if entry and name.endswith(".entry")}
        runs = [name for name in names if name.endswith(".run")]
        self._runs = {_number_of(name): found[name] or {} for name in runs}
        self._number = max([self._run, *self._runs])
        return super().load()

    def _read(self, name: str) -> Entry | None:
        found = self._bucket.read(f"{self._prefix}{name}")
        return None if found is None else parse_entry(found[0].rstrip(b"\n"))

    def begin(self, entry: Entry) -> None:
        """Take over the journal, as it is after the last `load`.

        Raises
        ------
        OutputError
            When another run has done so since.
        """
        self.claim(entry)
        self._run = self._number

    def claim(self, entry: Entry) -> None:
        """Make the object of the next number.

        Raises
        ------
        OutputError
            When another run has made it.
        """
        try:
            self._bucket.put(f"{self._prefix}{self._number + 1:05d}.run", format_entry(entry), Match())
        except Conflict as error:
            raise OutputError(
                f"{self._shown}: another run is writing this output, or has taken it over; wait for its end"
            ) from error
        self._number += 1
        self._runs[self._number] = entry

    def note(self, entry: Entry) -> None:
        """Write an entry."""
        with self._lock:
            name = f"{self._run:05d}-{self._count:06d}.entry"
            self._count += 1
        try:
            self._bucket.put(f"{self._prefix}{name}", format_entry(entry), Match())
        except Conflict as error:
            raise OutputError(f"{self._shown}{name}: was written by another program; start anew") from error
        with self._lock:
            self._known[name] = entry
            self._take(entry)

    def last(self, key: str) -> Any:
        """Return the value of a key in the last run or entry that has it; None if none has."""
        found = next((run[key] for run in reversed(self.runs) if key in run), None)
        return super().last(key) if found is None else found

    def is_latest(self) -> bool:
        """Tell whether no other run has taken over or deleted the journal."""
        keys = [found.key.removeprefix(self._prefix) for found in self._bucket.list(self._prefix)]
        return max(map(_number_of, keys), default=None) == self._number

    def delete(self) -> None:
        """Delete all objects, those of the runs last, so that a later run sees what a killed deletion left."""
        keys = [found.key for found in self._bucket.list(self._prefix)]
        self._bucket.delete([key for key in keys if not key.endswith(".run")])
        self._bucket.delete([key for key in keys if key.endswith(".run")])


def _number_of(name: str) -> int:
    digits = name.removesuffix(".run")
    return int(digits) if digits.isdecimal() else 0
