"""The journal of a run as objects: one for each entry, and one for each run that wrote or continued the output.

    00001.run                    the first run: its token, and where it runs
    00001-000000-1f6e03b2.entry  its entries, the header first, with the begin of its token
    1f0c...d2.tail               what a store keeps of an open upload, if it needs that
    00002.run                    the run that continued it, or the commit of the first one
    tasks/...                    the results of the tasks of a run

No object is replaced. A run commits only if it makes the object of the next number, and everything it wrote is there
after that: otherwise another run took over, or a user deleted the journal.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from recshuf.errors import OutputError
from recshuf.output.objects.place import format_clean_command
from recshuf.output.run_log import (
    RunLog,
    TaskResults,
    decode_sealed,
    encode_sealed,
    is_header,
    is_result,
    remove_sets,
)
from recshuf.storage import Url
from recshuf.storage.requests import ask_at_once
from recshuf.storage.writing import Bucket, Conflict, Match, OpenUpload, open_bucket
from recshuf.system.files import format_line, parse_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from recshuf.output.run_log import Entry
    from recshuf.storage import StorageOptions


class ObjectLog(RunLog):
    """The journal of an output in a bucket; `shown` is the URL of its prefix, for messages."""

    def __init__(self, bucket: Bucket, prefix: str, shown: str) -> None:
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
        self._token = ""
        self._count = 0
        self._lock = threading.Lock()
        self.is_deleted = False
        """Whether it was deleted, or `claim` has found that others deleted something."""
        self.is_lost = False
        """Whether `find_loss` has found that others deleted it."""

    @property
    def has_begun(self) -> bool:
        return self._run > 0

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
        with self._lock:
            return {name: self._known[name] for name in sorted(self._known)}

    def list_uploads(self, key_of: Callable[[str], str]) -> list[OpenUpload]:
        """Return the uploads in the entries, also completed and aborted ones, with the keys of their shards."""
        return [
            OpenUpload(key_of(entry["name"]), entry["upload"], "")
            for entry in self.named_entries.values()
            if "upload" in entry
        ]

    def read(self) -> list[Entry]:
        entries = list(self.named_entries.values())
        return entries if entries and is_header(entries[0]) else []

    def load(self) -> int:
        names = [name for name in self._list_names() if name.endswith((".run", ".entry"))]
        found = dict(zip(names, ask_at_once(self._read, names), strict=True))
        self._runs = {_number_of(name): entry or {} for name, entry in found.items() if name.endswith(".run")}
        starts = {f"{number:05d}": _shorten(run) for number, run in self._runs.items()}
        self._known = {
            name: entry
            for name, entry in found.items()
            if entry and name.endswith(".entry") and starts.get(name[:5]) == name[-14:-6]
        }
        self._number = max([self._run, *self._runs])
        return super().load()

    def _read(self, name: str) -> Entry | None:
        found = self._bucket.read(f"{self._prefix}{name}")
        return None if found is None else parse_line(found[0].rstrip(b"\n"))

    def begin(self, entry: Entry) -> None:
        """Take over the journal, as it is after the last `load`."""
        self._make_run(entry)
        self._run, self._token = self._number, _shorten(entry)
        self._check_store(entry)

    def _check_store(self, entry: Entry) -> None:
        try:
            self._bucket.put(
                f"{self._prefix}{self._run:05d}.run", format_line(entry | {"again": True}), Match()
            )
        except Conflict:
            return
        self.delete()
        raise OutputError(
            f"{self._shown}: the store ignores If-None-Match, so that runs could replace each other's output; write to a "
            "local folder, and copy it"
        )

    def claim(self, entry: Entry) -> None:
        self._make_run(entry)
        missing = {f"{self._run:05d}.run", *self._known} - set(self._list_names())
        if missing:
            self._bucket.delete([f"{self._prefix}{self._number:05d}.run"])
            self._number = -1
            self.is_deleted = True
            raise OutputError(f"{self._shown}{min(missing)}: was deleted during this run; run again, alone")

    def _make_run(self, entry: Entry) -> None:
        try:
            self._bucket.put(f"{self._prefix}{self._number + 1:05d}.run", format_line(entry), Match())
        except Conflict as error:
            raise OutputError(
                f"{self._shown}: another run is writing this output, or has taken it over; wait for its end"
            ) from error
        self._number += 1
        self._runs[self._number] = entry

    def note(self, entry: Entry) -> None:
        with self._lock:
            name = f"{self._run:05d}-{self._count:06d}-{self._token}.entry"
            self._count += 1
        try:
            self._bucket.put(f"{self._prefix}{name}", format_line(entry), Match())
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
        if max(map(_number_of, self._list_names()), default=None) != self._number:
            return False
        return _shorten(self._read(f"{self._number:05d}.run") or {}) == self._token

    def find_loss(self) -> bool:
        """Tell, and keep, whether others have deleted the object of this run."""
        if not self.is_deleted:
            found = self._read(f"{self._run:05d}.run")
            self.is_lost = self.is_deleted = _shorten(found or {}) != self._token
        return self.is_lost

    def withdraw_claims(self) -> None:
        """Delete the objects of commits, which nobody is to complete then."""
        numbers = [number for number, run in self._runs.items() if "commit" in run]
        self._bucket.delete([f"{self._prefix}{number:05d}.run" for number in numbers])

    def delete(self) -> None:
        """Delete all objects, those of the runs last: `claim` and a later run rely on it."""
        keys = [f"{self._prefix}{name}" for name in self._list_names()]
        self._bucket.delete([key for key in keys if not key.endswith(".run")])
        self._bucket.delete([key for key in keys if key.endswith(".run")])
        self.is_deleted = True

    def _list_names(self) -> list[str]:
        return [found.key.removeprefix(self._prefix) for found in self._bucket.list(self._prefix)]


def _shorten(run: Entry) -> str:
    return str(run.get("run", ""))[:8]


def _number_of(name: str) -> int:
    digits = name.removesuffix(".run")
    return int(digits) if digits.isdecimal() else 0


class ObjectResults(TaskResults):
    """Results as objects, each made on condition that there is none. The output is a URL for messages."""

    def __init__(self, bucket: Bucket, url: Url, options: StorageOptions, output: str) -> None:
        self._bucket, self._url, self._options = bucket, url, options
        self.clean_command = format_clean_command(output, options)
        self.address = str(url)

    @classmethod
    def open(cls, address: str, options: StorageOptions, output: str) -> ObjectResults:
        url = Url.parse(address)
        return cls(open_bucket(url, options, url.key), url, options, output)

    @property
    def removal(self) -> str:
        return f"remove them with {self.clean_command}"

    def count(self) -> int:
        return sum(map(is_result, self.find_names()))

    def find_names(self) -> set[str]:
        """Return the names of the objects that tasks have left."""
        return {one.key.removeprefix(self._url.key) for one in self._bucket.list(self._url.key)}

    def clear(self) -> None:
        """Delete the pile sets of the run, and then all results."""
        sets = self.find_sets()
        if sets is not None:
            remove_sets(sets, self._options)
        self._bucket.delete([self._url.join(name).key for name in self.find_names()])

    def read(self, name: str) -> Any:
        found = self._bucket.read(self._url.join(f"{name}.json").key)
        if found is None:
            return None
        try:
            return decode_sealed(found[0])
        except ValueError as error:
            raise OutputError(f"{self._url.join(name)}.json: is damaged; delete it") from error

    def read_all(self, names: Iterable[str]) -> list[Any]:
        """Return what `read` returns of each name; those that are not listed cost no request."""
        there = self.find_names()
        return ask_at_once(lambda name: self.read(name) if f"{name}.json" in there else None, names)

    def place(self, name: str, values: dict[str, Any]) -> Any:
        content = encode_sealed(values)
        try:
            self._bucket.put(self._url.join(f"{name}.json").key, content, Match())
        except Conflict:
            return self.read(name)
        return decode_sealed(content)

    def remove(self, name: str) -> None:
        self._bucket.delete([self._url.join(f"{name}.json").key])
