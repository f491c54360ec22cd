"""The commit: renames finished shards to the output, atomically if the file system can."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.output.manifest import MANIFEST_NAME
from recshuf.system.atomic import NO_EXCHANGE, copy_access, exchange, sync
from recshuf.system.paths import write_error

if TYPE_CHECKING:
    from recshuf.output.manifest import Manifest
    from recshuf.output.work_folder import WorkFolder


def commit(work: WorkFolder, manifest: Manifest | None) -> None:
    """Put all synced shards in place, unless an earlier run has done so.

    Parameters
    ----------
    manifest
        None if the output is a file.

    Raises
    ------
    OutputError
        When that fails. The output is then as it was, or a directory without a manifest; ``--resume`` completes it.
    """
    shards, target = work.shards, work.shards.target
    if shards.are_committed:
        return
    try:
        if manifest is not None:
            _place_directory(work, manifest)
        else:
            shard = shards.folder / target.name
            _note_inode(work, shard)
            shard.rename(target)
        sync(target.parent)
    except OSError as error:
        raise write_error(error, str(shards.destination.path), target.parent) from error


def _note_inode(work: WorkFolder, path: Path) -> None:
    """Journal the inode that the output will have."""
    found = path.stat()
    work.journal.append({"commit": [found.st_dev, found.st_ino]})


def _place_directory(work: WorkFolder, manifest: Manifest) -> None:
    folder, target = work.shards.folder, work.shards.target
    is_new = not target.exists()
    manifest.write()
    if not is_new:
        copy_access(target, folder)
    sync(folder)
    _note_inode(work, folder)
    if is_new:
        folder.rename(target)
        return
    try:
        exchange(folder, target)
    except OSError as error:
        if error.errno not in NO_EXCHANGE:
            raise
        _replace_files(work, manifest)


def _replace_files(work: WorkFolder, manifest: Manifest) -> None:
    """Replace the shards in a directory that cannot be exchanged.

    The old manifest is deleted first and the new one moved last: a directory with a manifest is complete. Each step can
    be repeated, so that a later run can complete the commit.
    """
    folder, target = work.shards.folder, work.shards.target
    previous = work.journal.last("moving")
    if previous is None:
        previous = sorted(work.shards.destination.previous_names())
        work.journal.append({"moving": previous})
        sync(work.journal.path)  # a later run needs this entry to complete the commit
    (target / MANIFEST_NAME).unlink(missing_ok=True)
    for name in {Path(name).name for name in previous} - {shard.name for shard in manifest.shards}:
        if (target / name).is_file():
            (target / name).unlink()
    for name in sorted(os.listdir(folder), key=lambda name: name == MANIFEST_NAME):  # noqa: PTH208
        (folder / name).rename(target / name)
    sync(target)
    _note_inode(work, target)
