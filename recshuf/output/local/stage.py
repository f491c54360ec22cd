"""The work folder of a run, which holds everything until the commit, and the shards in it.

It lies beside the output, so that a rename puts everything in place at once. Its name begins with a dot:

    journal.jsonl  shards/  .shards.recshuf.json  piles/  quarantine/
    tasks/  results of tasks, and a folder of shards for each of the second pass
    old/  the output that is replaced, if the file system cannot exchange folders
    ended  there while everything else is removed

A run that dies leaves it behind, and a later run can continue from it.
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from recshuf.errors import OutputError, RecshufError
from recshuf.output import Stage, TaskShards
from recshuf.output.local.log import FileLog, FileResults, ShardSyncer
from recshuf.output.manifest import (
    SHARD_PREFIX,
    find_checksum,
    manifest_path,
    name_manifest,
    work_folder_path,
)
from recshuf.output.run_log import TASK_FOLDER, list_apart, remove_sets
from recshuf.system.files import NO_EXCHANGE, copy_access, exchange, lock_folder, sync
from recshuf.system.paths import naming_errors, real_path
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from recshuf.output.entries import FinishedShard
    from recshuf.output.manifest import Manifest
    from recshuf.storage import StorageOptions


def _replace_folder(folder: Path, target: Path, old: Path) -> None:
    """Exchange two folders; where the file system cannot, move the target to `old`, and the folder to its place."""
    try:
        exchange(folder, target)
    except OSError as error:
        if error.errno not in NO_EXCHANGE:
            raise
    else:
        return
    shutil.rmtree(old, ignore_errors=True)
    target.rename(old)
    try:
        folder.rename(target)
    except BaseException:
        if not target.exists():
            old.rename(target)
        raise


def _list_parts(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()]


def _list_shards(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        yield from path.iterdir() if path.is_dir() else (path,)


_READERS = 4
"""So many shards are read at once."""


class FileTaskShards(TaskShards):
    """Shards in a folder of their own."""

    def __init__(self, parent: Path, name_of: Callable[[str], str]) -> None:
        self.folder = parent / f"shards-{secrets.token_hex(8)}"
        self.folder.mkdir()
        self.name_of = name_of

    def open_writer(self, on_kept: Callable[[FinishedShard], None], *, drop_page_cache: bool) -> ShardSyncer:
        place = {"folder": self.folder.name}
        return ShardSyncer(
            lambda shard: on_kept(replace(shard, place=place)), drop_page_cache=drop_page_cache
        )

    def discard(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


_ENDED = "ended"
_OWN_FILES = ("journal.jsonl", name_manifest("shards"), _ENDED)
_OWN_FOLDERS = ("shards", "piles", "quarantine", "old", TASK_FOLDER)


class WorkFolder(Stage):
    """The work folder of one output, locked from `enter` to `release` or `remove`. `storage` is for pile sets in object stores."""

    keeps_files = True

    def __init__(self, output: Path, storage: StorageOptions, *, is_directory: bool) -> None:
        self._output, self._storage, self._is_directory = output, storage, is_directory
        self._target = real_path(output)
        self.path = work_folder_path(output)
        self.name = str(self.path)
        self.folder = self.path / "shards"
        self.log: FileLog = FileLog(self.path / "journal.jsonl")
        self.name_of = lambda name: name if is_directory else self._target.name
        self.tasks = FileResults(self.path / TASK_FOLDER)
        self._made_parents: list[Path] = []
        self._lock: int | None = None
        self._warn: Callable[[str], None] = lambda _: None

    @property
    def removal(self) -> str:
        return " and ".join(["delete that folder", *list_apart(self._list_sets())])

    def _list_sets(self) -> list[str | None]:
        """Return where the pile sets of its runs are: as the journal says, which tasks do not write, and their results."""
        return [*self.log.pile_folders, self.tasks.find_sets()]

    @property
    def written(self) -> Path:
        if self.is_committed:
            return self._target
        return self.folder if self._is_directory else self.folder / self._target.name

    @property
    def is_committed(self) -> bool:
        try:
            found = self._target.stat()
        except OSError:
            return False
        return any(entry.get("commit") == [found.st_dev, found.st_ino] for entry in self.log.entries)

    @property
    def has_ended(self) -> bool:
        """Whether a process has begun to remove everything, so that nothing can be continued."""
        return (self.path / _ENDED).exists()

    @property
    def is_resumable(self) -> bool:
        return self._lock is not None and (self.log.is_resumable or self.tasks.count() > 0)

    def open_writer(self, on_kept: Callable[[FinishedShard], None], *, drop_page_cache: bool) -> ShardSyncer:
        # An output file gets no journal entry, because the run ends with it.
        return ShardSyncer(on_kept if self._is_directory else None, drop_page_cache=drop_page_cache)

    def adopt(self, shards: Sequence[FinishedShard]) -> list[FinishedShard]:
        if self.is_committed:
            return []
        for shard in shards:
            for file in shard.files:
                with suppress(FileNotFoundError):  # an earlier run has moved it, or it is lost
                    written = self.tasks.path / shard.place["folder"] / file.name
                    written.rename(self.path_of(file.name))
        self._sync_folders(self.folder)
        whole = self._find_whole(shards)
        if self._is_directory:
            for shard in shards:
                if shard.number in whole:
                    self.log.note(replace(shard, place={}).to_json())
        return [shard for shard in shards if shard.number not in whole]

    def _find_whole(self, shards: Sequence[FinishedShard]) -> set[int]:
        """Return the numbers of shards that are there: by their checksums, or by their sizes if they were just written."""
        if self.is_continued:
            return self.find_unchanged(shards)
        sizes = self.find_sizes()
        return {
            shard.number
            for shard in shards
            if all(sizes.get(file.name) == file.byte_count for file in shard.files)
        }

    def find_unchanged(self, shards: Iterable[FinishedShard]) -> set[int]:
        """Return the numbers of those shards whose checksum is that in the log."""
        folder = self.written if self._is_directory else self.written.parent
        some = list(shards)
        files = [(shard.number, folder / file.name, file.checksum) for shard in some for file in shard.files]
        with Pool(_READERS, "checksum") as pool:
            checks = pool.map(lambda file: file[1].is_file() and find_checksum(file[1]) == file[2], files)
            changed = {
                number for (number, *_), is_unchanged in zip(files, checks, strict=True) if not is_unchanged
            }
        return {shard.number for shard in some} - changed

    def keep_only(self, names: set[str]) -> None:
        if not self.is_committed:
            for path in list(_list_shards(self.folder)):
                if str(path.relative_to(self.folder)) not in names:
                    path.unlink()

    def find_sizes(self) -> dict[str, int]:
        if not self._is_directory and self.is_committed:
            return {self._target.name: self._target.stat().st_size}
        folder = self.written if self._is_directory else self.folder
        return {
            str(path.relative_to(folder)): path.stat().st_size
            for path in _list_shards(folder)
            if not self._is_directory or path.name.startswith(SHARD_PREFIX)
        }

    def commit(self, manifest: Manifest | None, documents: Mapping[str, bytes]) -> None:
        """Rename the synced shards into place, unless an earlier run has done so, and then the manifest."""
        with naming_errors(str(self._output), self._target.parent):
            if manifest is not None:
                replace(manifest, folder=self.folder).write()
            if not self.is_committed:
                for name, content in documents.items():
                    path = self.path_of(name)
                    path.write_bytes(content)
                    sync(path)
                self._place()
            self._place_companions()
            self._place_manifest()
            for folder in (self._target, *self._made_parents):
                sync(folder.parent)

    def _place(self) -> None:
        """Rename what was written to the output. The log has the inode that the output gets."""
        written, target = self.written, self._target
        replaces_folder = self._is_directory and target.exists()
        if target.exists():
            copy_access(target, written)
        if self._is_directory:
            for part in _list_parts(written) if replaces_folder else ():
                if (target / part.name).is_dir():
                    copy_access(target / part.name, part)
            self._sync_folders(written)
        else:
            sync(written)
        found = written.stat()
        self.log.note({"commit": [found.st_dev, found.st_ino]})
        if replaces_folder:
            _replace_folder(written, target, self.path / "old")
            return
        moved = self._set_companions_aside()
        try:
            written.rename(target)
        except BaseException:
            for before, aside in moved if written.exists() else ():
                aside.rename(before)
            raise

    def _list_companions(self) -> list[Path]:
        """Return the files that lie beside the only shard until it is in place."""
        if self._is_directory or not self.folder.is_dir():
            return []
        return [path for path in self.folder.iterdir() if path.name != self._target.name]

    def _set_companions_aside(self) -> list[tuple[Path, Path]]:
        """Move companions of the output that is replaced out of the way, since nobody may read them with another file."""
        moved = []
        for path in self._list_companions():
            before, aside = self._target.with_name(path.name), self.path / "old" / path.name
            if before.exists():
                aside.parent.mkdir(exist_ok=True)
                before.rename(aside)
                moved.append((before, aside))
        return moved

    def _place_companions(self) -> None:
        """Rename companions of the only shard, which is in place, to their places: readers look for it beside them."""
        companions = self._list_companions()
        # A run that has begun to write it again, since one died in its commit, has placed them.
        if companions and not (self.folder / self._target.name).exists():
            sync(self._target.parent)
            for path in companions:
                path.rename(self._target.with_name(path.name))

    @staticmethod
    def _sync_folders(folder: Path) -> None:
        for part in (*_list_parts(folder), folder):
            sync(part)

    def _place_manifest(self) -> None:
        """Rename a manifest in the folder to its place beside the output, if there is one."""
        written = manifest_path(self.folder)
        if written.is_file():
            written.rename(manifest_path(self._target))

    def enter(self, warn: Callable[[str], None], *, resumes: bool) -> None:
        self._warn = warn
        try:
            with naming_errors(str(self.path.parent), self.path.parent):
                self._make_parents()
                self._lock = lock_folder(self.path, str(self._output))
                self._take_over(warn, resumes=resumes)
                self.folder.mkdir(exist_ok=True)
        except BaseException:
            self._leave()
            raise

    def _make_parents(self) -> None:
        missing = [folder for folder in self.path.parents if not folder.exists()]
        for folder in reversed(missing):
            self._made_parents.append(folder)  # a signal may come before `mkdir` returns
            try:
                folder.mkdir()
            except FileExistsError:  # another run has just made it
                self._made_parents.remove(folder)

    def _take_over(self, warn: Callable[[str], None], *, resumes: bool) -> None:
        names = set(os.listdir(self.path))  # noqa: PTH208 - names are wanted
        if foreign := sorted(names - {*_OWN_FILES, *_OWN_FOLDERS}):
            problem = f"holds {foreign[0]!r}, which is not from an earlier run"
            raise OutputError(f"{self.path}: {problem}; move it away, or choose another output")
        finished = self.log.load() + self.tasks.count()
        if self.has_ended:
            self._clear()
            return
        if self.is_committed:
            self._place_companions()
        if finished and resumes:
            self.is_continued = True
            return
        if finished and self.is_committed:
            self._place_manifest()
            warn(f"{self.path}: removed; its run had put everything in place and then died")
        elif finished:
            removal = self.removal
            self.log.clear()
            by_tasks = (
                " with --engine processes or ray, or run the tasks that are left,"
                if self.tasks.count()
                else ""
            )
            raise OutputError(
                f"{self._output}: an unfinished run left {self.path}, finished parts: {finished}; give --resume{by_tasks} to "
                f"continue it, or {removal} to start anew"
            )
        elif names:
            warn(f"{self.path}: removed; it was left by a run that died before any part was finished")
        if names:
            self._clear()

    def _clear(self) -> None:
        """Delete everything in the folder, and the pile sets that its journal names.

        If this process dies meanwhile, the next one completes it.
        """
        self._end()
        for place in list_apart(self._list_sets()):
            try:
                remove_sets(place, self._storage)
            except RecshufError as error:
                problem, _, _ = str(error).partition("; ")
                prefix = place.rstrip("/").rpartition("/")[0]
                self._warn(f"{problem}; recshuf clean {prefix}/ lists and removes what is left there")
        self.log.clear()
        for path in self.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name != _ENDED:
                path.unlink()
        (self.path / _ENDED).unlink(missing_ok=True)

    def _end(self) -> None:
        with suppress(OSError):  # on a full disk things can only be deleted
            (self.path / _ENDED).touch()

    def remove(self) -> None:
        """Delete the folder, its content, and empty parents that this run made. Idempotent."""
        if self._lock is not None:
            self._end()
            with suppress(OSError):
                self._clear()
            shutil.rmtree(self.path, ignore_errors=True)
            self.release()

    def _leave(self) -> None:
        """Abandon an attempt to enter the folder, and delete it if it is empty."""
        if self._lock is not None and not self.log.path.exists():
            for folder in (self.folder, self.path):
                with suppress(OSError):
                    folder.rmdir()
        self.release()

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(OSError):  # the lock is released anyway
                os.close(lock)
        for folder in reversed(self._made_parents):
            with suppress(OSError):  # mostly because it is not empty
                folder.rmdir()
