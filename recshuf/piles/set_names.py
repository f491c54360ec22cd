"""The names of pile sets that are being written: one process at a time, and nothing is left of a dead one."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING

from recshuf.errors import OutputError
from recshuf.piles.snapshots import SET_SUFFIX
from recshuf.system.locks import try_exclusive
from recshuf.system.paths import write_error

if TYPE_CHECKING:
    from pathlib import Path

    from recshuf.piles.snapshots import StoreFolder


class SetNames:
    """Holds the lock of the sets of one name while they are written, and deletes them on an error.

    Raises
    ------
    OutputError
        When another process writes sets of this name, or the folder cannot be made.
    """

    def __init__(self, folder: StoreFolder, name: str) -> None:
        self._folder, self._name = folder, name

    def __enter__(self) -> None:
        try:
            self._made = _make_folders(self._folder.sets)
            self._lock = try_exclusive(self._folder.lock_file(self._name))
        except OSError as error:
            raise write_error(error, str(self._folder.path), self._folder.path.parent) from error
        if self._lock is None:
            raise OutputError(
                f"{self._folder.path}: another process writes {self._name!r} into it; wait for its end"
            )
        self._remove_sets()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._remove_sets()
        self._folder.lock_file(self._name).unlink(missing_ok=True)
        if self._lock is not None:
            os.close(self._lock)
        for made in reversed(self._made) if kind is not None else ():
            with suppress(OSError):  # mostly because it is not empty
                made.rmdir()

    def _remove_sets(self) -> None:
        """Delete sets of this name that no snapshot refers to."""
        snapshot = self._folder.find()
        kept = {one.name for one in snapshot.sets} if snapshot else set()
        for path in self._folder.sets.glob(f"{self._name}-*{SET_SUFFIX}"):
            if path.stem not in kept:
                path.unlink(missing_ok=True)


def _make_folders(sets: Path) -> list[Path]:
    """Make the folder of the sets, and return what was made of the path to it."""
    missing = [folder for folder in (sets, *sets.parents) if not folder.exists()]
    sets.mkdir(parents=True, exist_ok=True)
    return missing[::-1]
