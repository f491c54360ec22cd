"""Outputs on disks of this machine, which go to a work folder first: the destination, and the check that it may be written."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from recshuf.errors import MissingFolderError, OutputError, OutputExistsError
from recshuf.output import Destination
from recshuf.output.local.log import FileResults
from recshuf.output.local.stage import FileTaskShards, WorkFolder
from recshuf.output.manifest import Manifest, list_shards, manifest_path, work_folder_path
from recshuf.output.run_log import TASK_FOLDER
from recshuf.system.paths import naming_errors, real_path, refuse_below_file

if TYPE_CHECKING:
    from recshuf.storage import StorageOptions


class LocalDestination(Destination):
    """The OUTPUT argument: a directory if it ends in ``/``, is one, or an option asks for shards; else one file."""

    def __init__(self, output: str, storage: StorageOptions, *, wants_shards: bool) -> None:
        self.path = self.local_path = Path(output)
        self.name, self._storage = str(self.path), storage
        with naming_errors(output):
            is_one = self.path.is_dir()
        self.is_directory = wants_shards or output.endswith("/") or is_one

    @property
    def tasks(self) -> FileResults:
        return FileResults(work_folder_path(self.path) / TASK_FOLDER)

    def begin_task(self, run_id: str) -> FileTaskShards:  # noqa: ARG002 - the folder is of one run
        return FileTaskShards(self.tasks.path, self.begin().name_of)

    @property
    def is_stream(self) -> bool:
        return self.path.exists() and not self.path.is_file() and not self.path.is_dir()

    def open_stream(self) -> BinaryIO:
        with naming_errors(str(self.path)):
            return self.path.open("wb", buffering=0)

    def is_complete(self) -> bool:
        if not self.is_directory:
            return self.path.is_file()
        try:
            manifest = Manifest.read(self.path)
        except (OSError, ValueError):
            return False
        return manifest is not None and manifest.fits_sizes()

    def check(self, *, overwrite: bool) -> None:
        if self.is_directory:
            self._check_folder()
            self._check_set(partial(list_shards, self.path), overwrite=overwrite)
        elif self.path.exists() or self.path.is_symlink():
            if not overwrite and not self.is_stream:
                raise OutputExistsError(f"{self.path}: exists already; give --overwrite to replace it")
        elif not self.path.parent.is_dir():
            refuse_below_file(self.path.parent, "output")
            raise MissingFolderError(f"{self.path.parent}: no such directory; create it first")

    def begin(self) -> WorkFolder:
        return WorkFolder(self.path, self._storage, is_directory=self.is_directory)

    def complete_removal(self) -> None:
        work = self.begin()
        if work.has_ended:
            work.enter(lambda _: None, resumes=False)
            work.remove()

    def has_log(self) -> bool:
        return self.begin().log.path.exists()

    def _find_remains(self) -> str | None:
        work = self.begin()
        with naming_errors(work.name):
            work.log.load()
        return work.name if work.is_committed and not work.has_ended else None

    def _check_folder(self) -> None:
        """Refuse a path where no directory can be put in place."""
        if not self.path.is_dir():
            if self.path.exists() or self.path.is_symlink():
                raise OutputError(
                    f"{self.path}: is a file, and the output is a directory of shards; remove it first"
                )
            refuse_below_file(self.path.parent, "output")
        elif not _can_replace(real_path(self.path)):
            raise OutputError(
                f"{self.path}: cannot be replaced as a whole, because it is a mount point or its parent cannot be "
                f"written; give a directory inside it, such as {self.path / 'shuffled'}/"
            )

    def _manifest_names(self) -> set[str]:
        path = manifest_path(self.path)
        try:
            manifest = Manifest.read(self.path)
        except OSError as error:
            raise OutputError(f"{path}: cannot be read: {error.strerror}; choose another output") from error
        except ValueError as error:
            raise OutputError(f"{path}: is not a manifest of recshuf; choose another output") from error
        return manifest.names if manifest else set()


def _can_replace(folder: Path) -> bool:
    parent = folder.parent
    return (
        not folder.is_mount()
        and folder.stat().st_dev == parent.stat().st_dev
        and os.access(parent, os.W_OK | os.X_OK)
    )
