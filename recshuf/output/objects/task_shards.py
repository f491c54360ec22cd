"""The shards of a task as open uploads."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from recshuf.errors import OutputError
from recshuf.output.objects.uploader import ShardUploader
from recshuf.output.transaction import TaskShards
from recshuf.storage.writing.upload_folder import UploadFolder
from recshuf.system.paths import choose_temp_dir

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from recshuf.output.objects.keys import OutputKeys
    from recshuf.output.objects.uploader import UploadLimits, UploadTarget
    from recshuf.output.transaction import FinishedShard


class UploadedTaskShards(TaskShards):
    """Shards that are written to the temporary folder of this machine, and uploaded.

    Parameters
    ----------
    limits
        Of the parts in memory.
    """

    def __init__(self, keys: OutputKeys, target: UploadTarget, limits: UploadLimits) -> None:
        self._scratch = UploadFolder(choose_temp_dir(None), keys.show(keys.prefix))
        self.folder = self._scratch.path
        self._keys, self._target, self._limits = keys, target, limits
        self._uploads: list[tuple[str, str]] = []
        """Key and identifier of each upload."""
        self._lock = threading.Lock()

    def path_of(self, shard: int, suffix: str) -> Path:
        """Return the local path to write shard number `shard` to."""
        return self.folder / self._keys.name_shard(shard, suffix)

    def open_keeper(
        self,
        on_kept: Callable[[FinishedShard], None],
        *,
        drop_page_cache: bool,  # noqa: ARG002 - files are deleted
    ) -> ShardUploader:
        """Return what uploads finished shards."""

        def keep(shard: FinishedShard) -> None:
            with self._lock:
                self._uploads.append((self._keys.of_shard(shard.path.name), str(shard.place["upload"])))
            on_kept(shard)

        return ShardUploader(self._target, keep, self._limits)

    def finish(self) -> None:
        """Delete the folder."""
        self._scratch.close()

    def discard(self) -> None:
        """Delete the folder, and abort the uploads."""
        self.finish()
        while self._uploads:
            with suppress(OutputError):  # the run aborts all at its end
                self._target.bucket.abort_upload(*self._uploads.pop())
