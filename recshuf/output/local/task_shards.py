"""The shards of a task as files in a folder that all machines share."""

from __future__ import annotations

import secrets
import shutil
from typing import TYPE_CHECKING

from recshuf.output.local.shard_sync import ShardSyncer
from recshuf.output.transaction import TaskShards

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from recshuf.output.transaction import FinishedShard


class FileTaskShards(TaskShards):
    """Shards in a folder of their own.

    Parameters
    ----------
    parent
        The task folder.
    path_of
        Returns the path of a shard in the run, which has its name.
    """

    def __init__(self, parent: Path, path_of: Callable[[int, str], Path]) -> None:
        self.folder = parent / f"shards-{secrets.token_hex(8)}"
        self.folder.mkdir()
        self._path_of = path_of

    def path_of(self, shard: int, suffix: str) -> Path:
        """Return the path to write shard number `shard` to."""
        return self.folder / self._path_of(shard, suffix).name

    def open_keeper(self, on_kept: Callable[[FinishedShard], None], *, drop_page_cache: bool) -> ShardSyncer:
        """Return what syncs finished shards."""
        return ShardSyncer(on_kept, drop_page_cache=drop_page_cache)

    def finish(self) -> None:
        """Do nothing: the files are what a run takes over."""

    def discard(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)
