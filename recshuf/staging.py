"""The work folder of a run: shards and scratch until they are put in place, a journal, and a lock.

It lies beside the output under a name that begins with a dot, so that a rename puts everything in place at once:

    journal.jsonl  shards/  piles/  old/ (what is being replaced, where directories cannot be exchanged)

A run that dies leaves it behind; a later one can go on from it. The lock is one that the system gives up when
the process ends, however it ends.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from recshuf.disk import real_path
from recshuf.errors import OutputError
from recshuf.journal import Journal, read_journal
from recshuf.locks import is_own, lock_folder
from recshuf.renames import NO_EXCHANGE, copy_access, exchange, move, move_back, sync
from recshuf.shards import MANIFEST_NAME, write_error

if TYPE_CHECKING:
    from collections.abc import Callable

    from recshuf.journal import Entry
    from recshuf.shards import Destination

_OWN_NAMES = frozenset(("journal.jsonl", "shards", "piles", "old"))
PILES_PREFIX = "recshuf-piles-"
"""What a folder of pile sets outside the work folder begins with."""
_READ_BYTES = 128 << 10


class Staging:
    """The work folder of one destination, locked as long as the run lives.

    Parameters
    ----------
    warn
        Hears what is removed that an earlier run left.
    """

    def __init__(self, destination: Destination, warn: Callable[[str], None]) -> None:
        self.destination = destination
        self.folder = destination.work_folder
        self.files = self.folder / "shards"
        self.journal = Journal(self.folder / "journal.jsonl")
        self.entries: list[Entry] = []
        """Journal of the run that is continued; empty where there is none."""
        self._target = real_path(destination.path)
        self._header: Entry | None = None
        self._finished_count = 0
        self._made: list[Path] = []
        self._lock: int | None = None
        self._warn = warn

    def enter(self, *, resumes: bool) -> None:
        """Make the folder, or take over the one that is there, and lock it.

        Parameters
        ----------
        resumes
            Whether what a dead run left is taken over. Without, it is an error if tasks are finished in it, and
            removed with a warning if not.

        Raises
        ------
        OutputError
            When the folder cannot be made, another run holds it, or it holds finished tasks and `resumes` is not set.
        """
        try:
            self._make_parents(self.folder.parent)
            self._lock = lock_folder(self.folder, str(self.destination.path))
            self._take_over(resumes)
            self._make_own(self.files)
        except OSError as error:
            self._leave()
            raise write_error(error, str(self.folder.parent), self.folder.parent) from error
        except BaseException:
            self._leave()
            raise

    @property
    def is_committing(self) -> bool:
        """Whether the run that is continued had all shards, and was putting them in place or through with it."""
        return any("commit" in entry for entry in self.entries)

    @property
    def is_resumable(self) -> bool:
        """Whether a later run could go on from here."""
        return bool(self.entries) or self._finished_count > 0

    def begin(self, header: Entry) -> None:
        """Write the first entry of the journal of a new run.

        Raises
        ------
        OutputError
            When that fails.
        """
        self._header = header
        self._append(header)

    def note(self, entry: Entry) -> None:
        """Write into the journal that a task is finished, whose files are written.

        Raises
        ------
        OutputError
            When that fails.
        """
        self._append(entry)
        self._finished_count += 1

    def _append(self, entry: Entry) -> None:
        try:
            self.journal.append(entry)
        except OSError as error:
            raise write_error(error, str(self.journal.path), self.folder) from error

    def _make_parents(self, parent: Path) -> None:
        missing = [folder for folder in (parent, *parent.parents) if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir()
            self._made.append(folder)

    def _make_own(self, folder: Path) -> None:
        """Make a folder in this one; what is there must be no link to elsewhere."""
        with suppress(FileExistsError):
            folder.mkdir()
        if not stat.S_ISDIR(folder.lstat().st_mode):
            raise self._foreign(folder.name)

    def _foreign(self, name: str) -> OutputError:
        return OutputError(
            f"{self.folder}: holds {name!r}, which is not from an earlier run; remove it or choose another output"
        )

    def _take_over(self, resumes: bool) -> None:
        names = set(os.listdir(self.folder))  # noqa: PTH208 - names are wanted
        if foreign := sorted(names - _OWN_NAMES):
            raise self._foreign(foreign[0])
        self.entries = read_journal(self.journal.path)
        finished = sum("set" in entry or "shard" in entry for entry in self.entries)
        if finished and self.is_committing and self.is_committed and not resumes:
            self._warn(f"{self.folder}: removed; its run had put everything in place and then died")
        elif finished and resumes:
            return
        elif finished:
            path = self.destination.path
            self.entries = []
            raise OutputError(
                f"{path}: an unfinished run left {self.folder}, finished parts: {finished}; give --resume to go on "
                "from there, or delete that folder to start anew"
            )
        elif names:
            self._warn(f"{self.folder}: removed; it was left by a run that died before any part was finished")
        self._clear()

    @property
    def is_committed(self) -> bool:
        """Whether the run that is continued had put its shards in place."""
        try:
            found = self._target.stat()
        except OSError:
            return False
        return any(entry.get("commit") == [found.st_dev, found.st_ino] for entry in self.entries)

    def _clear(self) -> None:
        """Delete everything in the folder, and the scratch files that its journal speaks of."""
        self._remove_piles()
        self.entries = []
        for path in self.folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()

    def _remove_piles(self) -> None:
        header = self.entries[0] if self.entries else self._header
        piles = Path(header["piles"]) if header and header.get("piles") else None
        # Whatever a journal says, nothing is deleted but a folder that has the name and the owner of one of ours.
        is_named = piles is not None and piles.name.startswith(PILES_PREFIX)
        if piles and is_named and piles.is_dir() and not piles.is_symlink() and is_own(piles.stat()):
            shutil.rmtree(piles, ignore_errors=True)

    def path_of(self, shard: int, suffix: str) -> Path:
        """Return where shard number `shard` is to be written."""
        if not self.destination.is_directory:
            return self.files / self._target.name
        return self.files / f"shard-{shard:05d}{suffix}"

    def written_path(self, shard: int, suffix: str) -> Path:
        """Return where a shard of the run that is continued is."""
        path = self.path_of(shard, suffix)
        if not self.is_committed:
            return path
        return self._target / path.name if self.destination.is_directory else self._target

    @property
    def written(self) -> Path:
        """The file or folder that holds the shards."""
        if self.is_committed:
            return self._target
        return self.files if self.destination.is_directory else self.files / self._target.name

    def keep_only(self, names: set[str]) -> None:
        """Delete what the run that is continued had not finished: all shards but those with these names."""
        if not self.is_committed:
            for path in self.files.iterdir():
                if path.name not in names:
                    path.unlink()

    def list_files(self) -> list[tuple[str, int]]:
        """Return name and size of each shard, in their order."""
        folder = self._target if self.is_committed and self.destination.is_directory else self.files
        names = sorted(set(os.listdir(folder)) - {MANIFEST_NAME}, key=lambda name: (len(name), name))  # noqa: PTH208
        return [(name, (folder / name).stat().st_size) for name in names]

    def commit(self, manifest: dict[str, object]) -> None:
        """Put everything in place; a directory gets the manifest as well. The shards have been synced.

        Raises
        ------
        OutputError
            When that fails; what the destination held before is put back.
        """
        if self.is_committed:
            return
        try:
            if self.destination.is_directory:
                self._commit_directory(manifest)
            else:
                shard = self.files / self._target.name
                self._note_commit(shard)
                shard.rename(self._target)
            sync(self._target.parent)
            self._made.clear()
        except OSError as error:
            raise write_error(error, str(self.destination.path), self._target.parent) from error

    def _commit_directory(self, manifest: dict[str, object]) -> None:
        path = self._target
        text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
        (self.files / MANIFEST_NAME).write_text(text, encoding="utf-8", errors="surrogateescape")
        sync(self.files / MANIFEST_NAME)
        if path.exists():
            copy_access(path, self.files)
        sync(self.files)
        self._note_commit(self.files)
        if not path.exists():
            self.files.rename(path)
            return
        try:
            exchange(self.files, path)
        except OSError as error:
            if error.errno not in NO_EXCHANGE:
                raise
            self._replace_files(path)

    def _last(self, key: str) -> Any:
        """Return what the last entry with a key says in the journal of the run that is continued."""
        return next((entry[key] for entry in reversed(self.entries) if key in entry), None)

    def _note_commit(self, path: Path) -> None:
        found = path.stat()
        self.journal.append({"commit": [found.st_dev, found.st_ino]})

    def _replace_files(self, path: Path) -> None:
        """Put the shards into a directory that cannot be exchanged, instead of those of an earlier run.

        The manifest goes first and comes last: a directory that has one is whole.
        """
        old = self.folder / "old"
        self._make_own(old)
        moved: list[tuple[Path, Path]] = []
        try:
            if not self._last("moved"):
                previous = self._last("moving")
                if previous is None:
                    previous = sorted(
                        self.destination.previous_names(), key=lambda name: name != MANIFEST_NAME
                    )
                    self.journal.append({"moving": previous})
                steps = [(path / Path(name).name, old / Path(name).name) for name in previous]
                move([step for step in steps if step[0].exists()], moved)
                self.journal.append({"moved": True})
            names = sorted(os.listdir(self.files), key=lambda name: name == MANIFEST_NAME)  # noqa: PTH208
            move([(self.files / name, path / name) for name in names], moved)
        except BaseException:
            move_back(moved)
            with suppress(OSError):
                self.journal.append({"moved": False})
            raise
        sync(path)

    def remove(self) -> None:
        """Delete the folder, what is in it, and parents that were made and not used. Idempotent."""
        if self._lock is None:
            return
        self._remove_piles()
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in reversed(self._made):
            with suppress(OSError):
                folder.rmdir()
        self._made.clear()
        self.release()

    def release(self) -> None:
        """Leave the folder as it is, for a later run. Idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(OSError):  # the lock is given up all the same
                os.close(lock)

    def _leave(self) -> None:
        """Give up an attempt to get the folder, without touching what others have in it."""
        if self._lock is not None and not self.entries and not self.journal.path.exists():
            with suppress(OSError):
                self.files.rmdir()
            with suppress(OSError):
                self.folder.rmdir()
        self.release()
        for folder in reversed(self._made):
            with suppress(OSError):
                folder.rmdir()


def find_checksum(path: Path) -> str:
    """Return the xxh3 checksum of a file, 128 bits as hexadecimal digits."""
    digest = xxhash.xxh3_128()
    buffer = bytearray(_READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(memoryview(buffer)[:count])
    return digest.hexdigest()
