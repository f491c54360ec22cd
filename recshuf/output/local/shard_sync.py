"""Syncs finished shards to disk in the background, while the next ones are written."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from recshuf.output.manifest import WrittenFile, find_checksum
from recshuf.system.atomic import sync, sync_file_system
from recshuf.system.page_cache import begin_writing, drop_file_pages
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from recshuf.output.entries import FinishedShard


MANY = 32
"""So many waiting shards are synced at once: 5,000 shards of a few records took 5 s, and 21 one by one."""


class ShardSyncer:
    """Syncs shards in one thread.

    Starts to write all waiting shards before it syncs the first, so that one commit of the file system's journal serves
    them all. Many small ones are synced with their whole file system.

    Parameters
    ----------
    on_synced
        Called with each synced shard; may be None.
    drop_page_cache
        Drop each shard from the page cache once it is synced.
    """

    def __init__(self, on_synced: Callable[[FinishedShard], None] | None, *, drop_page_cache: bool) -> None:
        self._on_synced = on_synced
        self._drop_page_cache = drop_page_cache
        self._pool = Pool(1, "sync")
        self._waiting: deque[tuple[Path, FinishedShard]] = deque()
        self._problem: BaseException | None = None
        self._is_closed = False

    def open_stream(self, name: str, shard_bytes: int) -> None:
        """Return None: shards are files."""

    def add(self, path: Path, shard: FinishedShard) -> None:
        """Queue a shard. Many threads may call this."""
        self._raise_problem()
        self._waiting.append((path, shard))
        self._pool.submit(self._sync_waiting)

    def finish(self) -> None:
        """Wait until all shards are synced; `add` must not be called afterwards."""
        self._pool.shutdown()
        self._raise_problem()

    def close(self) -> None:
        """Drop waiting shards, and wait for the current one. Idempotent."""
        self._is_closed = True
        self._pool.shutdown()

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _sync_waiting(self) -> None:
        shards = [self._waiting.popleft() for _ in range(len(self._waiting))]
        try:
            are_synced = len(shards) >= MANY and sync_file_system(shards[0][0])
            for step in (self._finish,) if are_synced else (self._begin, self._sync):
                for path, shard in shards:
                    if self._is_closed:
                        return
                    step(path, shard)
        except BaseException as error:  # raised again in `add` and `finish`
            self._is_closed = True
            self._problem = error

    @staticmethod
    def _begin(path: Path, shard: FinishedShard) -> None:
        for one in _list_paths(path, shard):
            begin_writing(one)

    def _sync(self, path: Path, shard: FinishedShard) -> None:
        for one in _list_paths(path, shard):
            sync(one)
        self._finish(path, shard)

    def _finish(self, path: Path, shard: FinishedShard) -> None:
        paths = _list_paths(path, shard)
        if self._on_synced is not None:
            (_, size, checksum), *others = [
                WrittenFile(file.name, one.stat().st_size, find_checksum(one))
                for file, one in zip(shard.files, paths, strict=True)
            ]
            self._on_synced(replace(shard, byte_count=size, checksum=checksum, companions=tuple(others)))
        if self._drop_page_cache:
            for one in paths:
                drop_file_pages(one)


def _list_paths(path: Path, shard: FinishedShard) -> list[Path]:
    return [path, *(path.with_name(PurePath(one.name).name) for one in shard.companions)]
