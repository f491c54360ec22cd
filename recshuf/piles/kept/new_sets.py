"""Pile sets that are written into a store before a snapshot refers to them, each name by one process at a time."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from recshuf.errors import BusyNameError, UsageError, UsedNameError
from recshuf.piles.codec import choose_codec
from recshuf.piles.set_folder import SET_MODE, SetFolder
from recshuf.piles.store import Store
from recshuf.system.locks import try_exclusive
from recshuf.system.paths import PLAIN_NAME_RULE, is_plain_name, write_error

if TYPE_CHECKING:
    from contextlib import ExitStack
    from pathlib import Path

    import pyarrow as pa

    from recshuf.piles.kept.folder import StoreFolder
    from recshuf.piles.layout import StorePlan


def open_new_sets(
    folder: StoreFolder, plan: StorePlan, schema: pa.Schema, cleanup: ExitStack, needed_bytes: int = 0
) -> Store:
    """Return the store of new sets, open until `cleanup`; sealed sets are synced to disk.

    The caller holds the lock of the plan's `set_prefix`. The schema has provenance. `needed_bytes` are for messages.
    """
    sets = SetFolder(folder.sets, folder.sets, needed_bytes=needed_bytes, shown=folder.path, of_store=True)
    cleanup.callback(sets.close)
    store = Store(replace(plan, syncs_sets=True), choose_codec(schema), sets)
    cleanup.callback(store.close)
    return store


_TRIES = 10
"""A process that deletes leftovers holds the lock for a moment."""


class SetNames:
    """Holds the lock of the sets of one name while they are written, and deletes them on an error."""

    def __init__(self, folder: StoreFolder, name: str) -> None:
        if str(name) != name or not is_plain_name(name):
            raise UsageError(f"name={name!r}: {PLAIN_NAME_RULE}")
        self._folder, self._name = folder, name

    def __enter__(self) -> None:
        self._process = os.getpid()
        try:
            self._made = _make_folders(self._folder.sets)
            self._lock = self._try_lock()
        except OSError as error:
            raise write_error(error, str(self._folder.path), self._folder.path.parent) from error
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
