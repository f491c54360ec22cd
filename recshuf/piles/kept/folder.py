"""The folder of a pile store: numbered snapshots, of which the newest whole one counts, and the sets that they refer to.

    STORE/
        snapshot-000017.json    one line: xxh3 of the rest in hexadecimal digits, a space, a JSON object
        sets/NAME-00000.piles   pile sets, which never change
        sets/NAME.lock          held while sets of this name are written

A snapshot is put in place by a hard link, which fails if the number is taken: whoever is second reads the newest one
again, and takes the next number. A number is not free again while a living process may take it: what it writes names the
number, and while it is there, nobody deletes a snapshot of this number. The newest is never deleted, so a listed snapshot
that is gone means that there is a newer one. Who commits or deletes holds a lease of a snapshot, so that the store is not
deleted and another one made meanwhile. Nobody waits for a lock.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from shlex import quote
from typing import TYPE_CHECKING

from recshuf.errors import MissingStoreError, OutputError, PileError, RecshufError, UsageError
from recshuf.piles.kept.snapshots import Snapshot, find_writer, parse_snapshot
from recshuf.piles.sealed_set import SET_SUFFIX
from recshuf.piles.set_folder import SET_MODE, remake_store
from recshuf.system.atomic import sync
from recshuf.system.locks import Lease, try_exclusive, try_shared, unlink_unless_locked
from recshuf.system.paths import find_existing, write_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def explain_damage(file: Path) -> PileError:
    """Return the error for a damaged snapshot where something is to be written or deleted."""
    return PileError(
        f"{file}: is damaged; put it back, or delete it, and the store is that of the snapshot before"
    )


def explain_gone(path: Path) -> OutputError:
    """Return the error for a store that is deleted while something is written."""
    return OutputError(f"{path}: another process has deleted it meanwhile; run again")


SETS_FOLDER = "sets"
_LOCK_SUFFIX = ".lock"
_NAME = re.compile(r"snapshot-(\d{6,})\.json")
_PART_PREFIX = ".snapshot-"
_NUMBER_DIGITS = 16
"""Hexadecimal digits after the prefix that are the number that a part is to get."""
_TRIES = 10
"""Who finds out whether a store can be deleted holds the locks of its snapshots for a moment."""
_OWN_NAME = re.compile(rf"{_NAME.pattern}|{re.escape(_PART_PREFIX)}[0-9a-f]+|{SETS_FOLDER}")


class StoreFolder:
    """The files of a pile store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sets = path / SETS_FOLDER

    def create(self, first: Snapshot) -> Snapshot:
        """Make the folder if it does not exist, and return the newest snapshot: `first`, unless there is one."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.check_free()
            self.sets.mkdir(exist_ok=True)
            while True:
                # Listed first, as in `commit`: else this would replace what another process puts in place meanwhile.
                number = max(self._numbers(), default=0) + 1
                found = self.find()
                if found is not None:
                    break
                self._put(first, number)
        except OSError as error:
            raise write_error(error, str(self.path), self.path.parent) from error
        return found

    @property
    def is_store(self) -> bool:
        """Whether there is a store, or one is being made."""
        is_there = os.path.isdir(self.sets)  # noqa: PTH112 - false in a folder that may not be read, where Path raises
        return is_there and bool(self._numbers())

    @property
    def is_rest(self) -> bool:
        """Whether there is what is left of a store that is deleted: at most a folder for sets, and no snapshot."""
        if not os.path.isdir(self.sets):  # noqa: PTH112 - as above
            return os.path.isdir(self.path) and not os.listdir(self.path)  # noqa: PTH112, PTH208 - as above
        if self._numbers() or self.list_foreign():
            return False
        return all(one.suffix in (SET_SUFFIX, _LOCK_SUFFIX) for one in self.sets.iterdir())

    def check_free(self) -> None:
        """Check that a store can be made here, or is being made by other processes."""
        try:
            foreign = self.list_foreign()
        except FileNotFoundError:
            return
        except NotADirectoryError:
            file = find_existing(self.path)  # nothing exists below a file
            other = "name for the store" if file == self.path else "folder"
            raise OutputError(f"{file}: is a file; choose another {other}") from None
        if foreign:
            raise OutputError(f"{self.path}: is not a pile store, and not empty; choose another folder")

    def list_foreign(self) -> list[str]:
        """Return the names in the folder that are not those of a store."""
        return [name for name in os.listdir(self.path) if not _OWN_NAME.fullmatch(name)]  # noqa: PTH208 - names are wanted

    def list_snapshots(self) -> list[Path]:
        """Return the files of all snapshots."""
        return list(self.path.glob("snapshot-*.json"))

    def list_parts(self) -> list[Path]:
        """Return the files of snapshots that are being written, or were when a process died."""
        return list(self.path.glob(f"{_PART_PREFIX}*"))

    def list_locks(self) -> list[Path]:
        """Return the files whose locks are held while sets are written."""
        return list(self.sets.glob(f"*{_LOCK_SUFFIX}"))

    def find(self) -> Snapshot | None:
        """Return the newest whole snapshot; None if there is no store."""
        while True:
            numbers = self._numbers()
            try:
                found = next(filter(None, map(self._read, numbers)), None)
            except FileNotFoundError:
                continue
            if found is not None:
                return found
            if numbers:
                raise PileError(
                    f"{self._file(numbers[0])}: is damaged, and no other snapshot is left; {remake_store(self.path)}"
                )
            if not self._numbers():
                return None

    def open(self, number: int | None = None) -> tuple[Snapshot, Lease]:
        """Return a snapshot, by default the newest, and a lease of its sets."""
        refused: list[int] = []
        while True:
            found = self.find() if number is None else self._find(number)
            if found is None or (number is not None and len(refused) == _TRIES):
                raise self._explain_missing(number)
            if refused.count(found.number) == _TRIES:
                raise OutputError(f"{self.path}: another process deletes it; run again")
            if found.number in refused:
                time.sleep(0.05)
            lease = try_shared(self._file(found.number))
            # Read again: what was read may be of another store, which was deleted before the lock was taken.
            leased = None if lease is None else self._find(found.number)
            if lease is not None and leased is not None:
                return leased, lease
            refused.append(found.number)

    def _explain_missing(self, number: int | None) -> UsageError:
        if number is not None:
            problem = f"has no snapshot {number}; it was replaced since, or another store is meant; open the store again"
        elif self.path.exists():
            problem = "is no pile store: it holds no snapshot; check the path, or run recshuf scatter again"
        else:
            problem = f"no such pile store; make one with recshuf scatter INPUT... -o {quote(str(self.path))}"
            return MissingStoreError(f"{self.path}: {problem}")
        return UsageError(f"{self.path}: {problem}")

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
                    raise OutputError(f"{self.path}: another store was made here meanwhile; run again")
                if newest.number < number - 1:
                    raise explain_damage(self._file(number - 1))
                made = self._put(change(newest), number)
        self.collect()  # not before the lease of the snapshot before is given back
        return made

    def collect(self) -> list[str]:
        """Delete what is left of others: old snapshots that nobody has open, sets that no snapshot refers to, what dead processes were writing.

        Returns the names of the sets. While a snapshot is damaged, all sets stay. So does what cannot be deleted.
        """
        removed: list[str] = []
        with suppress(OSError, RecshufError), ExitStack() as leases:
            number = 0
            if self._numbers():
                newest, lease = self.open()
                leases.callback(lease.close)
                number = newest.number
            self._collect_snapshots(number)
            kept = self._list_referenced()
            unreferenced = (path.stem for path in self.sets.glob(f"*{SET_SUFFIX}") if path.stem not in kept)
            writers = {find_writer(name) for name in unreferenced}
            writers |= {path.stem for path in self.list_locks()}
            for writer in sorted(writers):
                with suppress(OSError):  # mostly because it is that of another user
                    removed += self._remove_unlocked(writer)
        return removed

    def _collect_snapshots(self, newest: int) -> None:
        """Delete snapshots before one that the caller holds a lease of, if any, and what dead processes were writing."""
        numbers = self._numbers()
        # Looked for after the snapshots were listed: what comes later gets a number above theirs.
        parts = [part for part in self.list_parts() if not _remove_part(part)]
        wanted = {int(part.name[len(_PART_PREFIX) :][:_NUMBER_DIGITS], 16) for part in parts}
        for number in numbers:
            if number < newest and number not in wanted:
                unlink_unless_locked(self._file(number))

    def has_records_of(self, writer: str) -> bool:
        """Tell whether a snapshot has records that were written under a name, also in a set that a compaction has made."""
        return any(writer in one.names for one in self._read_all())

    def _list_referenced(self) -> set[str]:
        """Return the names of the sets in any snapshot. See `_read_all`."""
        return {one.name for snapshot in self._read_all() for one in snapshot.sets}

    def _read_all(self) -> list[Snapshot]:
        """Return all snapshots. Other names than theirs, if their locks are held, are in no later snapshot either."""
        while True:
            numbers = self._numbers()
            snapshots = []
            for number in numbers:
                with suppress(FileNotFoundError):
                    found = self._read(number)
                    if found is None:
                        raise explain_damage(self._file(number))
                    snapshots.append(found)
            if self._numbers()[:1] == numbers[:1]:  # else the newest may not have been read
                return snapshots

    def _remove_unlocked(self, writer: str) -> list[str]:
        """Delete sets of a writer's name, as `remove_unreferenced` does, and its lock file, unless a process holds that."""
        lock_file = self.lock_file(writer)
        lock = try_exclusive(lock_file, SET_MODE)
        if lock is None:
            return []
        try:
            removed = self.remove_unreferenced(writer)
        finally:
            lock_file.unlink(missing_ok=True)
            os.close(lock)
        return removed

    def remove_unreferenced(self, writer: str) -> list[str]:
        """Delete the sets of a writer's name that no snapshot refers to, and return their names; the caller holds the lock."""
        # Listed under the lock: its writer may have committed them, and ended.
        try:
            kept = self._list_referenced()
        except PileError:
            return []
        found = (path.stem for path in self.sets.glob(f"*{SET_SUFFIX}"))
        removed = [name for name in found if find_writer(name) == writer and name not in kept]
        for name in removed:
            (self.sets / f"{name}{SET_SUFFIX}").unlink(missing_ok=True)
        return removed

    def lock_file(self, name: str) -> Path:
        """Return the file whose lock is held while sets of a name are written."""
        return self.sets / f"{name}{_LOCK_SUFFIX}"

    def _put(self, snapshot: Snapshot, number: int) -> Snapshot | None:
        """Write a snapshot with a number, the next one; None if another process took that number."""
        made = replace(snapshot, number=number)
        lock: Lease | None = None
        try:
            # Locked, since `collect` deletes what dead processes were writing; it may have been faster. Shared, so that
            # it is at once a lease of the snapshot.
            while lock is None:
                part = self.path / f"{_PART_PREFIX}{number:0{_NUMBER_DIGITS}x}{secrets.token_hex(8)}"
                part.touch()
                lock = try_shared(part)
            with part.open("wb") as file:
                file.write(made.pack())
                file.flush()
                os.fsync(file.fileno())
            sync(self.sets)  # the names of the sets
            # Nobody deletes this number any more, but others may have taken and deleted it before the part was there.
            if max(self._numbers(), default=0) != number - 1:
                return None
            try:
                os.link(part, self._file(number))
            except FileExistsError:
                if not lock.holds(self._file(number)):  # NFS may do it, lose its answer, and do it again
                    return None
        except FileNotFoundError:
            raise explain_gone(self.path) from None
        except OSError as error:
            raise write_error(error, str(self.path), self.path) from error
        finally:
            if lock is not None:
                with suppress(OSError):
                    part.unlink()
                lock.close()
        try:
            sync(self.path)
        except OSError as error:
            raise OutputError(
                f"{self._file(number)}: is in place, but may be lost in a power cut: {error.strerror}; "
                "check the disk, and do not write the records again"
            ) from error
        return made

    def _numbers(self) -> list[int]:
        """Return the numbers of all snapshots, the newest first."""
        try:
            names = os.listdir(self.path)  # noqa: PTH208 - names are wanted
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted((int(match[1]) for match in map(_NAME.fullmatch, names) if match), reverse=True)

    def _file(self, number: int) -> Path:
        return self.path / f"snapshot-{number:06d}.json"

    def _find(self, number: int) -> Snapshot | None:
        """Return a snapshot; None if it is missing or damaged."""
        with suppress(FileNotFoundError):
            return self._read(number)
        return None

    def _read(self, number: int) -> Snapshot | None:
        """Return a snapshot; None if it is damaged, or the file of another number."""
        file = self._file(number)
        try:
            found = parse_snapshot(file.read_bytes())
        except FileNotFoundError:
            raise
        except OSError as error:
            raise PileError(
                f"{file}: cannot be read: {error.strerror}; move it away if it is no snapshot, else make it readable"
            ) from error
        return found if found is not None and found.number == number else None


def _remove_part(part: Path) -> bool:
    """Delete what a dead process was writing, or has put in place; return whether it is gone."""
    # What is in place is locked as a snapshot, by readers and for them.
    with suppress(FileNotFoundError):
        if part.stat().st_nlink > 1:
            part.unlink()
    return unlink_unless_locked(part)
