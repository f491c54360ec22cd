"""Work folders and outputs of earlier runs, as tests need them."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from recshuf.job.report import FileReport
from recshuf.output.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from recshuf.output.local.destination import LocalDestination
    from recshuf.output.local.stage import WorkFolder


def write_run(folder: Path, *names: str, content: str = "old") -> None:
    """Make a directory look like the output of an earlier run."""
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(content)
    Manifest(folder, "text", (), tuple(FileReport(name, 1, len(content)) for name in names)).write()


def read_tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def open_work(destination: LocalDestination, *, resumes: bool = False) -> WorkFolder:
    """Return a work folder in which nothing was to be removed."""
    return enter_work(destination, pytest.fail, resumes=resumes)


def enter_work(
    destination: LocalDestination, warn: Callable[[str], None], *, resumes: bool = False
) -> WorkFolder:
    work = destination.begin()
    work.enter(warn, resumes=resumes)
    return work


def stage(destination: LocalDestination, count: int = 2, content: str = "new") -> WorkFolder:
    """Return a work folder that holds shards."""
    work = open_work(destination)
    for shard in range(count if destination.is_directory else 1):
        work.shards.path_of(shard, ".txt").write_text(content)
    return work


def leave_finished(destination: LocalDestination) -> WorkFolder:
    """Make what a run leaves that was killed after its first shard."""
    work = stage(destination)
    work.journal.note({"piles": None})
    work.journal.note({"shard": 0})
    work.release()
    return work


def manifest_of(work: WorkFolder) -> Manifest | None:
    """Return the manifest of the shards in a work folder, if they are to be a directory."""
    if not work.shards.output.is_directory:
        return None
    shards = (FileReport(name, 0, size) for name, size in work.shards.list_files())
    return Manifest(work.shards.folder, "text", (), tuple(shards))


def refuse_exchange(first: Path, second: Path) -> None:
    """Be a file system on which folders cannot change places."""
    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
