"""The commit: renames finished shards to the output, atomically if the file system can."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from recshuf.system.atomic import NO_EXCHANGE, copy_access, exchange, sync
from recshuf.system.paths import write_error

if TYPE_CHECKING:
    from pathlib import Path

    from recshuf.output.local.journal import FileJournal
    from recshuf.output.local.shard_files import ShardFiles
    from recshuf.output.manifest import Manifest


def commit(shards: ShardFiles, journal: FileJournal, old: Path, manifest: Manifest | None) -> None:
    """Put all synced shards in place, unless an earlier run has done so, and then the manifest beside them.

    Parameters
    ----------
    old
        Where a folder is moved that cannot be exchanged.
    manifest
        None if the output is a file.

    Raises
    ------
    OutputError
        When that fails. The output is then as it was, or whole; ``--resume`` completes it.
    """
    try:
        if manifest is not None:
            replace(manifest, folder=shards.folder).write()
        if not shards.are_committed:
            _place(shards, journal, old)
        shards.place_manifest()
        sync(shards.target.parent)
    except OSError as error:
        raise write_error(error, str(shards.output), shards.target.parent) from error


def _place(shards: ShardFiles, journal: FileJournal, old: Path) -> None:
    """Rename what was written to the output."""
    written, target = shards.written, shards.target
    replaces_folder = shards.output.is_directory and target.exists()
    if replaces_folder:
        copy_access(target, written)
    sync(written)
    _note_inode(journal, written)
    if replaces_folder:
        _replace_folder(written, target, old)
    else:
        written.rename(target)


def _note_inode(journal: FileJournal, path: Path) -> None:
    """Journal the inode that the output will have."""
    found = path.stat()
    journal.append({"commit": [found.st_dev, found.st_ino]})


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
