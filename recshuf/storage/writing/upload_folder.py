"""Local folders of files on their way to a store."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from recshuf.errors import OutputError
from recshuf.system.locks import is_own, lock_folder
from recshuf.system.paths import write_error

if TYPE_CHECKING:
    from pathlib import Path

PREFIX = "recshuf-output-"
"""Prefix of their names."""


class UploadFolder:
    """A folder that is locked until `close`, which deletes it. What dead processes left beside it is deleted, too.

    Parameters
    ----------
    parent
        Where it is made.
    output
        Name of the output, for messages.

    Raises
    ------
    OutputError
        When it cannot be made.
    """

    def __init__(self, parent: Path, output: str) -> None:
        _delete_dead(parent, output)
        name = f"{PREFIX}{secrets.token_hex(16)}"
        self.path, draft = parent.absolute() / name, parent.absolute() / f".{name}"
        try:
            self._lock: int | None = lock_folder(draft, output)
            draft.rename(self.path)  # locked before others look for dead ones
        except OSError as error:
            raise write_error(error, str(parent), parent) from error

    def close(self) -> None:
        """Delete it. Idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):
                os.close(lock)


def _delete_dead(parent: Path, output: str) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError, OutputError):  # in use, or of another user
            if folder.is_dir() and not folder.is_symlink() and is_own(folder.lstat()):
                lock = lock_folder(folder, output)
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)
