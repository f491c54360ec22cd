"""Uploads finished shards in the background, and leaves the uploads open."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from recshuf.errors import OutputError, Stopped
from recshuf.storage.bucket import MOST_PART_BYTES, MOST_PARTS, Conflict, MissingUpload
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from recshuf.output.transaction import FinishedShard
    from recshuf.storage.bucket import Bucket, Match, Part

PART_BYTES = 8 << 20
PART_THREADS = 4
"""So many parts are in memory at most."""
MOST_SHARDS = 8
"""So many shards are uploaded at once if they are small: a shard takes three requests, one after the other."""
_LEAST_SHARDS = 2
_WAITING_BYTES = 256 << 20
_MIB = 1 << 20


def count_slots(shard_bytes: int) -> int:
    """Return how many finished shards of a size may be on the local disk at once.

    >>> count_slots(1 << 20), count_slots(100 << 20), count_slots(1 << 40)
    (8, 2, 2)
    """
    return max(_LEAST_SHARDS, min(MOST_SHARDS, _WAITING_BYTES // max(1, shard_bytes)))


def choose_part_bytes(shard_bytes: int, least: int = PART_BYTES) -> int:
    """Return the size of all parts of a shard but the last.

    >>> choose_part_bytes(10**6) == PART_BYTES, choose_part_bytes(10**12) * MOST_PARTS >= 10**12
    (True, True)
    """
    wanted = -(-shard_bytes // MOST_PARTS)
    return max(least, -(-wanted // _MIB) * _MIB)


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """Where shards are uploaded to."""

    bucket: Bucket
    key_of: Callable[[str], str]
    """Returns the key of a shard by its name."""
    match_of: Callable[[str], Match]
    """Returns what must be at a key before the commit."""
    token: str
    """What the objects of this run have in their metadata."""


class ShardUploader:
    """Uploads shards in several threads, and deletes their files.

    Parameters
    ----------
    on_kept
        Called with each uploaded shard while its file still exists; `place` holds the upload.
    part_threads
        Number of parts that are uploaded at once.
    """

    def __init__(
        self, target: UploadTarget, on_kept: Callable[[FinishedShard], None], part_threads: int = PART_THREADS
    ) -> None:
        self._target = target
        self._on_kept = on_kept
        self._shards = Pool(MOST_SHARDS, "upload")
        self._parts = Pool(part_threads, "part")
        self._changed = threading.Condition()
        self._count = 0
        """Number of shards that wait or are uploaded."""
        self._problem: BaseException | None = None
        self._is_closed = False

    def add(self, shard: FinishedShard) -> None:
        """Queue a shard; waits while too many are on the disk."""
        size = shard.path.stat().st_size
        with self._changed:
            self._changed.wait_for(lambda: self._count < count_slots(size) or self._is_closed)
            self._raise_problem()
            self._count += 1
        self._shards.submit(self._keep, shard)

    def finish(self) -> None:
        """Wait until all shards are uploaded."""
        self._shards.shutdown()
        self._parts.shutdown()
        self._raise_problem()

    def close(self) -> None:
        """Abort the uploads in progress."""
        self._stop(None)
        self._shards.shutdown()
        self._parts.shutdown()

    def _stop(self, problem: BaseException | None) -> None:
        with self._changed:
            self._is_closed = True
            self._problem = self._problem or problem
            self._changed.notify_all()

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _keep(self, shard: FinishedShard) -> None:
        try:
            self._check_open()
            self._upload(shard)
            shard.path.unlink()
        except Stopped:
            pass
        except BaseException as error:  # raised again in `add` and `finish`
            self._stop(error)
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Stopped

    def _upload(self, shard: FinishedShard) -> None:
        """Upload a shard and note it; on an error nothing of it stays in the store."""
        bucket, key = self._target.bucket, self._target.key_of(shard.path.name)
        upload_id = self._begin(key)
        try:
            parts = self._send(shard.path, partial(bucket.send_part, key, upload_id))
            place = {"upload": upload_id, "token": self._target.token, "parts": parts}
            self._on_kept(replace(shard, place=place))
        except MissingUpload as error:
            raise OutputError(
                f"{error}: its upload was aborted; another run has taken over, or recshuf clean removed it"
            ) from error
        except BaseException:
            with suppress(OutputError):  # a later run aborts it
                bucket.abort_upload(key, upload_id)
            raise

    def _begin(self, key: str) -> str:
        target = self._target
        try:
            return target.bucket.begin_upload(key, target.token, target.match_of(key))
        except Conflict as error:
            raise OutputError(
                f"{error}: was written by another program during this run; remove it"
            ) from error

    def _send(self, path: Path, send: Callable[[int, bytes], Part]) -> list[Part]:
        def send_if_open(number: int, body: bytes) -> Part:
            self._check_open()
            return send(number, body)

        return send_file(path, send_if_open, self._parts, in_order=self._target.bucket.sends_in_order)


def send_file(path: Path, send: Callable[[int, bytes], Part], pool: Pool, *, in_order: bool) -> list[Part]:
    """Send a file in parts, and return them.

    Parameters
    ----------
    send
        Sends a part, given its number from 1 and its bytes.
    in_order
        Whether each part must arrive before the next one is sent.

    Raises
    ------
    OutputError
        When it is too large for an object, or cannot be sent.
    """
    size = path.stat().st_size
    part_bytes = choose_part_bytes(size, PART_BYTES)
    if part_bytes > MOST_PART_BYTES:
        raise OutputError(
            f"{path.name}: {size:,} bytes are more than an object can have; write more --shards"
        )

    def send_part(number: int, start: int) -> Part:
        with path.open("rb", buffering=0) as file:
            file.seek(start)
            return send(number, file.read(part_bytes))

    futures: list[Future[Part]] = []
    try:
        for number, start in enumerate(range(0, max(1, size), part_bytes), 1):
            futures.append(pool.submit(send_part, number, start))
            if in_order:
                futures[-1].result()
        return [future.result() for future in futures]
    finally:
        for future in futures:
            future.cancel()
