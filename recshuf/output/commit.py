"""The commit: finished shards get the output's name, in one step wherever the file system can do that."""

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
    """Put all shards, which have been synced, in place, unless the run that is continued has done so.

    Parameters
    ----------
    manifest
        That of a directory; None where the output is a file.

    Raises
    ------
    OutputError
        When that fails. The output is as it was, or a directory without a manifest that ``--resume`` completes.
    """
    shards, target = work.shards, work.shards.target
    if shards.are_committed:
        return
    try:
        if manifest is not None:
            _place_directory(work, manifest)
        else:
            shard = shards.folder / target.name
            _note_place(work, shard)
            shard.rename(target)
        sync(target.parent)
    except OSError as error:
        raise write_error(error, str(shards.destination.path), target.parent) from error


def _note_place(work: WorkFolder, path: Path) -> None:
    """Note in the journal the inode that the output's name is to lead to."""
    found = path.stat()
    work.journal.append({"commit": [found.st_dev, found.st_ino]})


def _place_directory(work: WorkFolder, manifest: Manifest) -> None:
    folder, target = work.shards.folder, work.shards.target
    is_new = not target.exists()
    manifest.write()
    if not is_new:
        copy_access(target, folder)
    sync(folder)
    _note_place(work, folder)
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
    """Put the shards into a directory that cannot be exchanged, instead of those of an earlier run.

    The manifest goes first and comes last: a directory that has one is whole. Each step can be taken again, so that a
    later run completes what this one began.
    """
    folder, target = work.shards.folder, work.shards.target
    previous = work.journal.last("moving")
    if previous is None:
        previous = sorted(work.shards.destination.previous_names())
        work.journal.append({"moving": previous})
        sync(work.journal.path)  # without it, nobody could tell what the directory was to become
    (target / MANIFEST_NAME).unlink(missing_ok=True)
    for name in {Path(name).name for name in previous} - {shard.name for shard in manifest.shards}:
        if (target / name).is_file():
            (target / name).unlink()
    for name in sorted(os.listdir(folder), key=lambda name: name == MANIFEST_NAME):  # noqa: PTH208
        (folder / name).rename(target / name)
    sync(target)
    _note_place(work, target)
