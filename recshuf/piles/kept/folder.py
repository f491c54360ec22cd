"""A pile store in a folder.

    STORE/
        snapshot-000017.json    see `place`
        sets/NAME-00000.piles
        sets/NAME.lock          held while sets of this name are written

A snapshot is put in place by a hard link, which fails if the number is taken. A number is not free again while a living
process may take it: what it writes names the number, and while it is there, nobody deletes a snapshot of this number. Who
commits or deletes holds a lease of a snapshot, so that the store is not deleted and another one made meanwhile. Nobody waits
for a lock.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import BusyNameError, OutputError, PileError, RecshufError, UsedNameError
from recshuf.piles.kept.place import (
    SETS_FOLDER,
    SNAPSHOT,
    StorePlace,
    check_writer,
    list_numbers,
    name_snapshot,
)
from recshuf.piles.kept.snapshots import find_writer, parse_snapshot
from recshuf.piles.layout import SET_SUFFIX
from recshuf.piles.set_folder import SET_MODE, SetFolder
from recshuf.system.files import Lease, lock_existing, sync, try_exclusive, try_shared, unlink_unless_locked
from recshuf.system.paths import find_existing, naming_errors, real_path, write_error

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from recshuf.piles.kept.snapshots import Snapshot


_LOCK_SUFFIX = ".lock"
_PART_PREFIX = ".snapshot-"
_NUMBER_DIGITS = 16
"""Hexadecimal digits after the prefix that are the number that a part is to get."""
_TRIES = 10
"""Who finds out whether a store can be deleted, or deletes leftovers, holds locks for a moment."""
_OWN_NAME = re.compile(rf"{SNAPSHOT.pattern}|{re.escape(_PART_PREFIX)}[0-9a-f]+|{SETS_FOLDER}")
_BLOCK_BYTES = 512
"""Unit of `st_blocks`."""


def find_store_around(path: Path) -> Path | None:
    """Return the folder of the pile store that a path lies in, which may hold nothing else; None if it lies in none."""
    for folder in real_path(path).parents:
        with suppress(OSError):  # as of a folder that may not be read
            if StoreFolder(folder).is_store:
                return folder
    return None


def refuse_in_store(path: Path, name: str | None = None) -> None:
    """Refuse an output, of this name in messages, in a pile store, which could not be dropped any more: an `OutputError`."""
    if store := find_store_around(path):
        raise OutputError(
            f"{name or path}: lies in the pile store {store}, which may hold nothing else; name another place"
        )


class _Unreferenced(NamedTuple):
    """Sets that no snapshot refers to."""

    newest: list[int]
    """Number of the newest snapshot before they were listed; none if there was none."""
    sets: dict[str, list[str]]
    """Their names, by those of their writers."""


class StoreFolder(StorePlace):
    """The files of a pile store."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path
        self.sets = path / SETS_FOLDER

    @property
    def local_path(self) -> Path:
        return self.path

    def anchor(self) -> StoreFolder:
        return StoreFolder(self.path.absolute())

    def show(self, name: str) -> str:
        return str(self.path / name)

    def exists(self) -> bool:
        return os.path.lexists(self.path)

    def create(self, first: Snapshot) -> Snapshot:
        with naming_errors(str(self.path), self.path.parent):
            self.path.mkdir(parents=True, exist_ok=True)
            if not self._numbers():
                self.check_free()
            self.sets.mkdir(exist_ok=True)
            while True:
                # Listed first, as in `commit`: else this would replace what another process puts in place meanwhile.
                number = max(self._numbers(), default=0) + 1
                found = self.find()
                if found is not None:
                    return found
                self._put(first, number)

    @property
    def is_store(self) -> bool:
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
        refuse_in_store(self.path)
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

    def _list_inner(self) -> list[str]:
        with suppress(OSError):  # as of a file, or of a folder that may not be read
            return [name for name in sorted(os.listdir(self.path)) if StoreFolder(self.path / name).is_store]  # noqa: PTH208 - as above
        return []

    def list_snapshots(self) -> list[Path]:
        return list(self.path.glob("snapshot-*.json"))

    def list_parts(self) -> list[Path]:
        """Return the files of snapshots that are being written, or were when a process died."""
        return list(self.path.glob(f"{_PART_PREFIX}*"))

    def list_locks(self) -> list[Path]:
        """Return the files whose locks are held while sets are written."""
        return list(self.sets.glob(f"*{_LOCK_SUFFIX}"))

    def open(self, number: int | None = None) -> tuple[Snapshot, Lease]:
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
            listed = self._list_unreferenced()
            for writer in sorted({*listed.sets, *(path.stem for path in self.list_locks())}):
                with suppress(OSError):  # mostly because it is that of another user
                    removed += self._remove_unlocked(writer, listed)
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

    def _remove_unlocked(self, writer: str, listed: _Unreferenced) -> list[str]:
        """Delete sets of a writer's name, as `remove_unreferenced` does, and its lock file, unless a process holds that."""
        lock_file = self.lock_file(writer)
        lock = try_exclusive(lock_file, SET_MODE)
        if lock is None:
            return []
        try:
            removed = self.remove_unreferenced(writer, listed)
        finally:
            lock_file.unlink(missing_ok=True)
            os.close(lock)
        return removed

    def remove_unreferenced(self, writer: str, listed: _Unreferenced | None = None) -> list[str]:
        """Delete the sets of a writer's name that no snapshot refers to, and return their names; the caller holds the lock.

        What was listed before counts as long as there is no newer snapshot.
        """
        # Else listed under the lock: its writer may have committed them, and ended.
        if listed is None or listed.newest != self._numbers()[:1]:
            try:
                listed = self._list_unreferenced()
            except PileError:
                return []
        removed = listed.sets.get(writer, [])
        for name in removed:
            (self.sets / f"{name}{SET_SUFFIX}").unlink(missing_ok=True)
        return removed

    def _list_unreferenced(self) -> _Unreferenced:
        newest, kept = self._numbers()[:1], self.list_referenced()
        found: dict[str, list[str]] = {}
        for path in self.sets.glob(f"*{SET_SUFFIX}"):
            if path.stem not in kept:
                found.setdefault(find_writer(path.stem), []).append(path.stem)
        return _Unreferenced(newest, found)

    def lock_file(self, name: str) -> Path:
        """Return the file whose lock is held while sets of a name are written."""
        return self.sets / f"{name}{_LOCK_SUFFIX}"

    def _put(self, snapshot: Snapshot, number: int) -> Snapshot | None:
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
            raise self._explain_gone() from None
        except OSError as error:
            raise write_error(error, str(self.path), self.path) from error
        finally:
            if lock is not None:
                with suppress(OSError):
                    part.unlink()
                lock.close()
        try:
            for folder in (self.path, self.path.parent) if number == 1 else (self.path,):
                sync(folder)
        except OSError as error:
            raise OutputError(
                f"{self._file(number)}: is in place, but may be lost in a power cut: {error.strerror}; "
                "check the disk, and do not write the records again"
            ) from error
        return made

    def _numbers(self) -> list[int]:
        try:
            return list_numbers(os.listdir(self.path))  # noqa: PTH208 - names are wanted
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _file(self, number: int) -> Path:
        return self.path / name_snapshot(number)

    def _read(self, number: int) -> Snapshot | None:
        file = self._file(number)
        try:
            found = parse_snapshot(file.read_bytes(), self.name)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise PileError(
                f"{file}: cannot be read: {error.strerror}; move it away if it is no snapshot, else make it readable"
            ) from error
        return found if found is not None and found.number == number else None

    def open_sets(self, parent: Path | None = None, needed_bytes: int = 0) -> SetFolder:
        shown = parent or self.path
        return SetFolder(
            parent or self.sets, self.sets, needed_bytes=needed_bytes, shown=shown, of_store=True
        )

    def hold_name(self, writer: str) -> SetNames:
        return SetNames(self, writer)

    def count_disk_bytes(self, names: Iterable[str]) -> int:
        """Return less than the sizes of the files where regions were reserved and not filled."""
        return _BLOCK_BYTES * sum((self.sets / (name + SET_SUFFIX)).stat().st_blocks for name in names)

    def drop(self) -> None:
        """Delete the store, also a damaged one, or what is left of one: by a drop that died, or a process that wrote to it meanwhile."""
        if not self.is_rest:
            with suppress(PileError):
                self.open()[1].close()
        if self.path.is_symlink():
            raise OutputError(
                f"{self.path}: is a symbolic link; name the folder that it leads to, {real_path(self.path)}"
            )
        if foreign := self.list_foreign():
            raise OutputError(f"{self.path}: holds {foreign[0]!r}, which is not of the store; move it away")
        busy = OutputError(f"{self.path}: a process reads or writes it; wait for its end")
        with ExitStack() as locks:
            try:
                if not self._lock_all(locks):
                    raise busy
                # Snapshots last: as long as there is one, the command can be given again.
                if self.sets.exists():
                    shutil.rmtree(self.sets)
                for file in [*self.list_parts(), *self.list_snapshots()]:
                    file.unlink(missing_ok=True)
                self.path.rmdir()
            except OSError as error:
                # Writers that began after the locks were taken make and delete files here.
                is_busy = error.errno in (errno.ENOTEMPTY, errno.ENOENT)
                raise busy if is_busy else write_error(error, str(self.path)) from error

    def _lock_all(self, locks: ExitStack) -> bool:
        """Lock all snapshots and names of the store, and tell whether no process has them."""
        snapshots = set(self.list_snapshots())
        try:
            for file in [*snapshots, *self.list_locks()]:
                locks.callback(os.close, lock_existing(file))
        except (BlockingIOError, FileNotFoundError):
            return False
        # Who has committed meanwhile had a lease of a snapshot before.
        return set(self.list_snapshots()) == snapshots


def _remove_part(part: Path) -> bool:
    """Delete what a dead process was writing, or has put in place; return whether it is gone."""
    # What is in place is locked as a snapshot, by readers and for them.
    with suppress(FileNotFoundError):
        if part.stat().st_nlink > 1:
            part.unlink()
    return unlink_unless_locked(part)


class SetNames:
    """Holds the lock of the sets of one name while they are written, and deletes them on an error."""

    def __init__(self, folder: StoreFolder, name: str) -> None:
        check_writer(name)
        self._folder, self._name = folder, name

    def __enter__(self) -> None:
        self._process = os.getpid()
        with naming_errors(str(self._folder.path), self._folder.path.parent):
            self._made = _make_folders(self._folder.sets)
            self._lock = self._try_lock()
        if self._lock is None:
            raise BusyNameError(
                f"{self._folder.path}: another process writes {self._name!r} into it; wait for its end"
            )
        try:
            self._folder.collect()
            # Else its sets would be replaced, also under an open reader.
            if self._folder.has_records_of(self._name):
                raise UsedNameError(
                    f"name={self._name!r}: {self._folder.path} has records of this name; choose another name"
                )
            self._folder.remove_unreferenced(self._name)
        except BaseException as error:
            self.__exit__(type(error))
            raise

    def _try_lock(self) -> int | None:
        for _ in range(_TRIES):
            lock = try_exclusive(self._folder.lock_file(self._name), SET_MODE)
            if lock is not None:
                return lock
            time.sleep(0.05)
        return None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._process != os.getpid():  # a forked child, whose parent still writes
            return
        if kind is not None:
            self._folder.remove_unreferenced(self._name)
        self._folder.lock_file(self._name).unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
        for made in reversed(self._made) if kind is not None else ():
            with suppress(OSError):  # mostly because it is not empty
                made.rmdir()


def _make_folders(sets: Path) -> list[Path]:
    """Make the folder of the sets, and return what was made of the path to it."""
    missing = [folder for folder in (sets, *sets.parents) if not folder.exists()]
    sets.mkdir(parents=True, exist_ok=True)
    return missing[::-1]
