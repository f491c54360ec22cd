"""What a run has done, for a later attempt and for other machines.

The journal of a run is for the process that holds its lock. The first entry describes the job; each other one names a
finished part, or a further folder of pile sets. An entry is written after the part that it names, but before that folder is
made. The task folder is for many machines: the results of finished tasks, JSON with a checksum, and what tasks have
written under names of their own. Of tasks that ran twice, one result is there, and only what it names counts.

Pile sets of runs that have ended are removed: a folder outside the work folder, or objects below a prefix.
"""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from recshuf.errors import MissingBucketError, OutputError, UsageError
from recshuf.storage import Url, is_url

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from recshuf.storage import StorageOptions


PILES_PREFIX = "recshuf-piles-"
"""Prefix of the last part of the path or URL."""


def refuse_missing(tasks: Sequence[int]) -> UsageError:
    """Return the error of a task for others that it needs, and that are not done, of many the first.

    >>> str(refuse_missing([3, 5])).partition(":")[0], str(refuse_missing(range(7))).partition(":")[0]
    ('task 3, task 5', 'task 0, task 1, task 2, task 3, task 4 and 2 more')
    """
    few = ", ".join(f"task {number}" for number in tasks[:5])
    named = few if len(tasks) <= 5 else f"{few} and {len(tasks) - 5} more"
    return UsageError(f"{named}: not done; run recshuf task with these numbers, then this one")


Entry = dict[str, Any]
"""JSON values; see `entries`."""
_TASKS = ("set", "shard", "commit")
"""Keys of all entries but the first."""


class RunLog(ABC):
    """The journal of a run: the entries of an earlier run, and new ones, appended from many threads."""

    def __init__(self) -> None:
        self.header: Entry | None = None
        self.entries: list[Entry] = []
        """Entries of the earlier run; empty for a new run."""
        self.pile_folders: list[str] = []
        """Folders of pile sets, in the order in which they were noted."""
        self._has_finished = False

    @abstractmethod
    def read(self) -> list[Entry]:
        """Return all entries, without damaged ones; none if the first one is damaged or missing."""

    @abstractmethod
    def note(self, entry: Entry) -> None:
        """Append an entry."""

    def load(self) -> int:
        """Read the entries of an earlier run, and return the number of finished tasks."""
        self.entries = self.read()
        self.header = self.entries[0] if self.entries else None
        self.pile_folders = list_pile_folders(self.entries)
        return sum(map(_is_finished, self.entries))

    def clear(self) -> None:
        self.entries, self.header, self.pile_folders = [], None, []

    @property
    def is_resumable(self) -> bool:
        return bool(self.entries) or self._has_finished

    def last(self, key: str) -> Any:
        return next((entry[key] for entry in reversed(self.entries) if key in entry), None)

    def _take(self, entry: Entry) -> None:
        self.header = self.header or entry
        self.pile_folders += list_pile_folders([entry])
        self._has_finished = self._has_finished or _is_finished(entry)


def list_pile_folders(entries: Iterable[Entry]) -> list[str]:
    return [entry["piles"] for entry in entries if entry.get("piles")]


def is_header(entry: Entry | None) -> bool:
    return entry is not None and entry.keys().isdisjoint(_TASKS)


def _is_finished(entry: Entry) -> bool:
    return not entry.keys().isdisjoint(("set", "shard"))


_SEAL = "xxh3"
_UNSEALED = ("storage", _SEAL)
"""Keys of what users may change, and of the checksum."""


def seal(values: dict[str, Any]) -> dict[str, Any]:
    """Return JSON values with a checksum of all but the storage options, which users renew."""
    return values | {_SEAL: _sum(values)}


def is_sealed(values: dict[str, Any]) -> bool:
    try:
        return bool(values.get(_SEAL) == _sum(values))
    except (ValueError, TypeError, RecursionError):
        return False


def encode_sealed(values: dict[str, Any]) -> bytes:
    return json.dumps(seal(values)).encode()


def decode_sealed(content: bytes) -> dict[str, Any]:
    """Return the values that `encode_sealed` was given, and their checksum."""
    try:
        values = json.loads(content)
    except RecursionError as error:
        raise ValueError("lists within lists") from error
    if not isinstance(values, dict) or not is_sealed(values):
        raise ValueError("another checksum")
    return values


def _sum(values: dict[str, Any]) -> str:
    sealed = {name: value for name, value in values.items() if name not in _UNSEALED}
    return xxhash.xxh3_128_hexdigest(json.dumps(sealed, sort_keys=True).encode())


TASK_FOLDER = "tasks"


class TaskResults(ABC):
    """The results of the tasks of one run, JSON values by name, each with a checksum."""

    address: str
    """Absolute path or URL, the same on all machines."""
    private: Path | None = None
    """Folder that only the user can write; None if others may write here, too."""

    def make(self) -> None:  # noqa: B027 - prefixes need not be made
        """Make it, if it does not exist. Before that, only `read` and `count` may be called."""

    def share(self, output: str) -> AbstractContextManager[None]:  # noqa: ARG002 - for folders
        """Make it, and let no run remove it meanwhile; what is removed of a prefix, its tasks miss."""
        return nullcontext()

    @property
    @abstractmethod
    def removal(self) -> str:
        """How a user deletes it, as an infinitive."""

    def find_sets(self) -> str | None:
        """Return the path or URL of the pile sets of the run; None if there is no run, or its file is damaged."""
        try:
            match self.read(RUN):
                case {"piles": str(place)}:
                    return place
        except OutputError:
            pass
        return None

    @abstractmethod
    def count(self) -> int:
        """Return the number of results of tasks."""

    @abstractmethod
    def read(self, name: str) -> Any:
        """Return the JSON values of a result; None if there is none."""

    def read_all(self, names: Iterable[str]) -> list[Any]:
        return [self.read(name) for name in names]

    @abstractmethod
    def place(self, name: str, values: dict[str, Any]) -> Any:
        """Put a result in place, if there is none of this name, and return the one that is in place."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Delete a result, if it is there."""


def is_result(name: str) -> bool:
    """Tell whether the name of a file or object is that of the result of a task."""
    return name.startswith("task-") and name.endswith(".json")


RUN = "run"


def name_result(run_id: str, number: int) -> str:
    """Return the name of the result of a task of a run; those of other runs have others.

    >>> name_result("8d41be0720cc913f", 3)
    'task-8d41be0720cc913f-000003'
    """
    return f"task-{run_id}-{number:06d}"


def find_results(tasks: TaskResults, run_id: str, numbers: Iterable[int]) -> dict[int, Any]:
    """Return the results of some tasks, by number; None for those that are not done."""
    some = list(numbers)
    return dict(zip(some, tasks.read_all(name_result(run_id, number) for number in some), strict=True))


def read_results(tasks: TaskResults, run_id: str, numbers: range) -> dict[int, Any]:
    found = find_results(tasks, run_id, numbers)
    missing = [number for number, result in found.items() if result is None]
    if missing:
        raise refuse_missing(missing)
    return found


def is_own_folder(folder: Path) -> bool:
    return folder.name.startswith(PILES_PREFIX) and folder.is_dir()


def list_apart(places: Iterable[str | None]) -> list[str]:
    """Return those places of pile sets, each once, that do not go with the work folder of their run."""
    return [
        place for place in dict.fromkeys(filter(None, places)) if is_url(place) or is_own_folder(Path(place))
    ]


def remove_sets(place: str, options: StorageOptions) -> None:
    """Delete the pile sets at a path or URL, also those that are being uploaded, if its name has our prefix."""
    if not is_url(place):
        if is_own_folder(Path(place)):
            shutil.rmtree(place, ignore_errors=True)
    elif place.rstrip("/").rpartition("/")[2].startswith(PILES_PREFIX):
        from recshuf.storage.writing import open_bucket

        url = Url.parse(place)
        bucket = open_bucket(url, options, url.join("tails/").key, is_hurried=True)
        with suppress(MissingBucketError):
            for one in bucket.find_uploads(url.key, ()):
                bucket.abort_upload(one.key, one.upload_id)
            bucket.delete([one.key for one in bucket.list(url.key)])
