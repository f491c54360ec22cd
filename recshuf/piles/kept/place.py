"""The place of a pile store, on a disk or in a bucket: numbered snapshots, of which the newest whole one counts, and sets.

    STORE/
        snapshot-000017.json    one line: xxh3 of the rest in hexadecimal digits, a space, a JSON object
        sets/NAME-00000.piles   pile sets, which never change

A snapshot is put in place only if its number is free: whoever is second reads the newest one again, and takes the next
number. The newest is never deleted, so a listed snapshot that is gone means that there is a newer one.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from contextlib import closing, suppress
from itertools import chain
from shlex import quote
from typing import TYPE_CHECKING, TypeVar

from recshuf.errors import MissingStoreError, OutputError, PileError, UsageError
from recshuf.piles.set_folder import remake_store
from recshuf.system.paths import PLAIN_NAME_RULE, is_plain_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager, ExitStack
    from pathlib import Path

    from recshuf.piles.kept.snapshots import Snapshot
    from recshuf.piles.set_folder import SetFolder
    from recshuf.system.files import Lease


SETS_FOLDER = "sets"
Seen = TypeVar("Seen")
_MOST_NAMED = 3
SNAPSHOT = re.compile(r"snapshot-(\d{6,})\.json")


def name_snapshot(number: int) -> str:
    return f"snapshot-{number:06d}.json"


def list_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the snapshots among some names, the newest first."""
    return sorted((int(match[1]) for match in map(SNAPSHOT.fullmatch, names) if match), reverse=True)


def check_writer(name: str) -> None:
    """Refuse a name that no sets can have."""
    if str(name) != name or not is_plain_name(name):
        raise UsageError(f"name={name!r}: {PLAIN_NAME_RULE}")


class StorePlace(ABC):
    """The place of a pile store. `name` is its path or URL, as it was given."""

    are_objects = False
    """Whether its sets are objects, each read of which is a request."""

    def __init__(self, name: str) -> None:
        self.name = name

    @property
    def local_path(self) -> Path | None:
        """Its folder; None if it is none of this machine."""
        return None

    @abstractmethod
    def anchor(self) -> StorePlace:
        """Return the same place, wherever the process goes."""

    # What there is

    @property
    @abstractmethod
    def is_store(self) -> bool:
        """Whether there is a store, or one is being made."""

    @abstractmethod
    def check_free(self) -> None:
        """Check that a store can be made here, or is being made by other processes."""

    @abstractmethod
    def show(self, name: str) -> str:
        """Return the path or URL of a name in the store, for messages."""

    @abstractmethod
    def exists(self) -> bool:
        """Tell whether there is anything."""

    def _list_inner(self) -> list[str]:
        """Return the names of the stores in it, as a split makes them, in order; none where that takes many requests."""
        return []

    # Snapshots

    @abstractmethod
    def create(self, first: Snapshot) -> Snapshot:
        """Make the store if it does not exist, and return the newest snapshot: `first`, unless there is one."""

    @abstractmethod
    def _numbers(self) -> list[int]:
        """Return the numbers of all snapshots, the newest first."""

    def _look(self) -> tuple[list[int], dict[int, Snapshot]]:
        """Return the numbers of all snapshots, the newest first, and snapshots that were read meanwhile."""
        return self._numbers(), {}

    @abstractmethod
    def _read(self, number: int) -> Snapshot | None:
        """Return a snapshot; None if it is damaged, or that of another number; FileNotFoundError if it is gone."""

    @abstractmethod
    def _put(self, snapshot: Snapshot, number: int) -> Snapshot | None:
        """Put a snapshot in place with a number, the next one; None if another process took that number."""

    @abstractmethod
    def open(self, number: int | None = None) -> tuple[Snapshot, Lease | ExitStack]:
        """Return a snapshot, by default the newest, and what keeps it and its sets until it is closed."""

    @abstractmethod
    def collect(self) -> list[str]:
        """Delete what is left of others and nobody needs, and return the names of the sets among it."""

    def find(self) -> Snapshot | None:
        """Return the newest whole snapshot; None if there is no store."""
        while True:
            numbers, known = self._look()
            try:
                found = next(filter(None, (known.get(one) or self._read(one) for one in numbers)), None)
            except FileNotFoundError:
                continue
            if found is not None:
                return found
            if numbers:
                raise PileError(
                    f"{self._show(numbers[0])}: is damaged, and no other snapshot is left; {remake_store(self.name)}"
                )
            if not self._numbers():
                return None

    def commit(self, change: Callable[[Snapshot], Snapshot], store: str | None = None) -> Snapshot:
        """Put a new snapshot in place, and return it. Sets that no snapshot in use refers to are deleted.

        Parameters
        ----------
        change
            Returns the new snapshot for the newest; called again if another process was faster.
        store
            Identifier of the store that is changed. Default: the one that is there.
        """
        made = None
        while made is None:
            # Listed first: what is put in place after this has the number that is then tried.
            number = max(self._numbers(), default=0) + 1
            newest, lease = self.open()
            with closing(lease):
                if store not in (None, newest.store):
                    raise OutputError(f"{self.name}: another store was made here meanwhile; run again")
                if newest.number < number - 1:
                    raise self._explain_damage(number - 1)
                made = self._put(change(newest), number)
        self.collect()  # not before the lease of the snapshot before is given back
        return made

    def has_records_of(self, writer: str, most: int | None = None) -> bool:
        """Tell whether one of the newest snapshots, `most` or all of them, has records that were written under a name.

        Those in a set that a compaction has made count, too.
        """
        return any(self._look_at_all(lambda one: writer in one.names, most))

    def list_referenced(self, most: int | None = None) -> set[str]:
        """Return the names of the sets in any snapshot, or in the newest ones. See `_look_at_all`."""
        found: set[str] = set()
        self._look_at_all(lambda one: found.update(each.name for each in one.sets), most)
        return found

    def _look_at_all(self, look: Callable[[Snapshot], Seen], most: int | None = None) -> list[Seen]:
        """Return what a function gives of each snapshot, or of the newest ones. Other names than theirs, if they are held, are in no later one either.

        Few of them are in memory at a time: with the footers of their sets, they may be large.
        """

        def find(number: int) -> list[Seen]:
            with suppress(FileNotFoundError):
                found = self._read(number)
                if found is None:
                    raise self._explain_damage(number)
                return [look(found)]
            return []

        while True:
            numbers = self._numbers()[:most]
            seen = list(chain.from_iterable(self._map(find, numbers)))
            if self._numbers()[:1] == numbers[:1]:  # else the newest may not have been read
                return seen

    def _map(self, function: Callable[[int], Seen], numbers: list[int]) -> Iterable[Seen]:
        """Return what a function gives of each number; many requests may be made at once."""
        return map(function, numbers)

    def _find(self, number: int) -> Snapshot | None:
        """Return a snapshot; None if it is missing or damaged."""
        with suppress(FileNotFoundError):
            return self._read(number)
        return None

    def _show(self, number: int) -> str:
        return self.show(name_snapshot(number))

    def _explain_damage(self, number: int) -> PileError:
        """Return the error for a damaged snapshot where something is to be written or deleted."""
        return PileError(
            f"{self._show(number)}: is damaged; put it back, or delete it, and the store is that of the snapshot before"
        )

    def _explain_gone(self) -> OutputError:
        """Return the error for a store that is deleted while something is written."""
        return OutputError(f"{self.name}: another process has deleted it meanwhile; run again")

    def _explain_missing(self, number: int | None) -> UsageError:
        if number is not None:
            problem = f"has no snapshot {number}; it was replaced since, or another store is meant; open the store again"
        elif inner := self._list_inner():
            more = ", ..." if len(inner) > _MOST_NAMED else ""
            shown = ", ".join(quote(self.show(name)) for name in inner[:_MOST_NAMED])
            problem = f"is no pile store, but holds some; name one: {shown}{more}"
        elif self.exists():
            problem = "is no pile store: it holds no snapshot; check the path, or run recshuf scatter again"
        else:
            problem = f"no such pile store; make one with recshuf scatter INPUT... -o {quote(self.name)}"
            return MissingStoreError(f"{self.name}: {problem}")
        return UsageError(f"{self.name}: {problem}")

    # Sets

    @abstractmethod
    def open_sets(self, parent: Path | None = None, needed_bytes: int = 0) -> SetFolder:
        """Return the folder of the sets; the caller closes it.

        Parameters
        ----------
        parent
            Folder for files without a name. Default: none are made.
        needed_bytes
            Expected bytes of new sets, for messages.
        """

    @abstractmethod
    def hold_name(self, writer: str) -> AbstractContextManager[None]:
        """Hold the name of new sets while they are written, and delete them on an error.

        Raises
        ------
        BusyNameError
            When another process writes sets of this name.
        UsedNameError
            When the store has records of this name.
        """

    @abstractmethod
    def count_disk_bytes(self, names: Iterable[str]) -> int:
        """Return the bytes that some sets take."""

    @abstractmethod
    def drop(self) -> None:
        """Delete the store, also a damaged one, or what is left of one."""
