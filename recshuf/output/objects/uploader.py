"""Uploads shards in the background, as files or while they are written, in parts that are never on a disk; uploads stay open."""

from __future__ import annotations

import io
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, BinaryIO, cast

import xxhash

from recshuf.errors import OutputError, Stopped
from recshuf.output.manifest import find_checksum
from recshuf.storage.writing import (
    PART_BYTES,
    PART_THREADS,
    Conflict,
    MissingUpload,
    send_file,
)
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future
    from pathlib import Path

    from _typeshed import ReadableBuffer

    from recshuf.output.entries import FinishedShard
    from recshuf.storage.writing import Bucket, Match, Part


class ShardStream(io.RawIOBase):
    """Takes the bytes of a shard; one thread appends to it. `send` is called with each full part, and may wait."""

    def __init__(self, key: str, send: Callable[[ShardStream, bytes], None]) -> None:
        super().__init__()
        self.key = key
        self.upload_id: str | None = None
        """The upload; None before its begin."""
        self.parts: list[Future[Part]] = []
        self._send = send
        self._part = io.BytesIO()
        self._byte_count = 0
        self._checksum = xxhash.xxh3_128()

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer, /) -> int:
        """Append all bytes, and send the parts that are full."""
        view = memoryview(data).cast("B")
        self._checksum.update(view)
        self._byte_count += len(view)
        place = 0
        while place < len(view):
            place += self._part.write(view[place : place + PART_BYTES - self._part.tell()])
            if self._part.tell() == PART_BYTES:
                self._send(self, self.take())
        return place

    @property
    def waiting_bytes(self) -> int:
        return self._part.tell()

    def take(self) -> bytes:
        part, self._part = self._part, io.BytesIO()
        return part.getvalue()

    def describe(self, shard: FinishedShard) -> FinishedShard:
        return replace(shard, byte_count=self._byte_count, checksum=self._checksum.hexdigest())


MOST_STREAMED_BYTES = 4 << 30
"""Larger shards are files first, so that their size is known and parts of one size suffice."""
MOST_SHARDS = 8
"""So many shards are uploaded at once if they are small: a shard takes three requests, one after the other."""
_LEAST_SHARDS = 2
_WAITING_BYTES = 256 << 20


def count_slots(shard_bytes: int) -> int:
    """Return how many finished shards of a size may be on the local disk at once.

    >>> count_slots(1 << 20), count_slots(100 << 20), count_slots(1 << 40)
    (8, 2, 2)
    """
    return max(_LEAST_SHARDS, min(MOST_SHARDS, _WAITING_BYTES // max(1, shard_bytes)))


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """How many parts are in memory."""

    part_threads: int = PART_THREADS
    """Number of parts that are sent at once."""
    stream_count: int = 0
    """Shards that may be streams, each with a part that is being filled; 0 if all are files."""

    @classmethod
    def within(cls, memory_bytes: int, writers: int) -> UploadLimits:
        """Return the limits for so much memory, when so many shards are written at once; streams take half of it at most.

        >>> UploadLimits.within(1 << 30, 2), UploadLimits.within(64 << 20, 2)
        (UploadLimits(part_threads=4, stream_count=2), UploadLimits(part_threads=4, stream_count=0))
        """
        parts = memory_bytes // PART_BYTES
        streams = writers if parts >= 2 * (PART_THREADS + writers) else 0
        return cls(max(1, min(PART_THREADS, parts)), streams)

    @property
    def memory_bytes(self) -> int:
        return (self.part_threads + self.stream_count) * PART_BYTES

    def can_stream(self, shard_bytes: int) -> bool:
        return self.stream_count > 0 and shard_bytes <= MOST_STREAMED_BYTES


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """Where shards are uploaded to."""

    bucket: Bucket
    key_of: Callable[[str], str]
    match_of: Callable[[str], Match]
    """Returns what must be at a key before the commit."""
    token: str
    """What the objects of this run have in their metadata."""


class ShardUploader:
    """Uploads shards in several threads, and deletes the files of those that are files.

    `on_kept` is called with each uploaded shard while its file still exists; `place` holds the upload.
    """

    def __init__(
        self,
        target: UploadTarget,
        on_kept: Callable[[FinishedShard], None],
        limits: UploadLimits = UploadLimits(),
    ) -> None:
        self._target = target
        self._on_kept = on_kept
        self._limits = limits
        self._shards = Pool(MOST_SHARDS, "upload")
        self._parts = Pool(limits.part_threads, "part")
        self._changed = threading.Condition()
        self._count = 0
        """Number of shards that wait or are uploaded."""
        self._streams: dict[str, ShardStream] = {}
        """Streams of shards that are not finished, by the names of the shards."""
        self._sent_bytes = 0
        """Bytes of streams that wait or are sent."""
        self._problem: BaseException | None = None
        self._is_closed = False

    def open_stream(self, name: str, shard_bytes: int) -> BinaryIO | None:
        """Return what uploads a shard while it is written; its upload begins with the first full part."""
        if not self._limits.can_stream(shard_bytes):
            return None
        stream = ShardStream(self._target.key_of(name), self._send_full)
        self._streams[name] = stream
        return cast("BinaryIO", stream)

    def add(self, path: Path, shard: FinishedShard) -> None:
        """Queue a shard; waits while too many are on the disk or in memory."""
        stream = self._streams.get(shard.name)
        size = path.stat().st_size if stream is None else stream.waiting_bytes
        with self._changed:
            self._changed.wait_for(lambda: self._count < count_slots(size) or self._is_closed)
            self._raise_problem()
            self._count += 1
        if stream is None:
            self._shards.submit(self._keep, partial(self._upload_file, path, shard))
            return
        try:
            self._reserve(size)
        except BaseException:
            self._release_slot()
            raise
        self._shards.submit(self._keep, partial(self._finish_stream, stream, shard))

    def finish(self) -> None:
        self._shards.shutdown()
        self._parts.shutdown()
        self._raise_problem()

    def close(self) -> None:
        self._stop(None)
        self._shards.shutdown()
        self._parts.shutdown()
        while self._streams:
            _, stream = self._streams.popitem()
            if stream.upload_id is not None:
                self._abort_upload(stream.key, stream.upload_id)

    def _stop(self, problem: BaseException | None) -> None:
        with self._changed:
            self._is_closed = True
            self._problem = self._problem or problem
            self._changed.notify_all()

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _keep(self, upload: Callable[[], None]) -> None:
        try:
            self._check_open()
            upload()
        except Stopped:
            pass
        except BaseException as error:  # raised again in `add` and `finish`
            self._stop(error)
        finally:
            self._release_slot()

    def _release_slot(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def _check_open(self) -> None:
        if self._is_closed:
            raise Stopped

    def _upload_file(self, path: Path, shard: FinishedShard) -> None:
        """Upload a file, note it, and delete it; on an error nothing of it stays in the store."""
        key = self._target.key_of(shard.name)
        upload_id = self._begin(key)
        try:
            send = partial(self._send, key, upload_id)
            parts = send_file(path, send, self._parts, in_order=self._target.bucket.sends_in_order)
            size, checksum = path.stat().st_size, find_checksum(path)
            self._note(replace(shard, byte_count=size, checksum=checksum), upload_id, parts)
        except BaseException:
            self._abort_upload(key, upload_id)
            raise
        path.unlink()

    def _finish_stream(self, stream: ShardStream, shard: FinishedShard) -> None:
        """Send the last part of a stream, and note it; `close` aborts it otherwise."""
        if stream.waiting_bytes or not stream.parts:
            self._submit(stream, stream.take())
        parts = [future.result() for future in stream.parts]
        assert stream.upload_id is not None  # noqa: S101 # it has a part
        self._note(stream.describe(shard), stream.upload_id, parts)
        del self._streams[shard.name]

    def _send_full(self, stream: ShardStream, part: bytes) -> None:
        self._reserve(len(part))
        self._submit(stream, part)

    def _reserve(self, size: int) -> None:
        """Wait until there is room for a part; a single one has it always."""
        most = self._limits.part_threads * PART_BYTES
        with self._changed:
            self._changed.wait_for(
                lambda: not self._sent_bytes or self._sent_bytes + size <= most or self._is_closed
            )
            self._raise_problem()
            self._check_open()
            self._sent_bytes += size

    def _submit(self, stream: ShardStream, part: bytes) -> None:
        if stream.upload_id is None:
            stream.upload_id = self._begin(stream.key)
        if stream.parts and self._target.bucket.sends_in_order:
            stream.parts[-1].result()
        number = len(stream.parts) + 1
        stream.parts.append(
            self._parts.submit(self._send_reserved, stream.key, stream.upload_id, number, part)
        )

    def _send_reserved(self, key: str, upload_id: str, number: int, part: bytes) -> Part:
        try:
            return self._send(key, upload_id, number, part)
        except Stopped:
            raise
        except BaseException as error:
            self._stop(error)
            raise
        finally:
            with self._changed:
                self._sent_bytes -= len(part)
                self._changed.notify_all()

    def _send(self, key: str, upload_id: str, number: int, part: bytes) -> Part:
        self._check_open()
        try:
            return self._target.bucket.send_part(key, upload_id, number, part)
        except MissingUpload as error:
            raise OutputError(
                f"{error}: its upload was aborted; another run has taken over, or recshuf clean removed it"
            ) from error

    def _note(self, shard: FinishedShard, upload_id: str, parts: list[Part]) -> None:
        place = {"upload": upload_id, "token": self._target.token, "parts": parts}
        self._on_kept(replace(shard, place=place))

    def _begin(self, key: str) -> str:
        target = self._target
        try:
            return target.bucket.begin_upload(key, target.token, target.match_of(key))
        except Conflict as error:
            raise OutputError(
                f"{error}: was written by another program during this run; remove it"
            ) from error

    def _abort_upload(self, key: str, upload_id: str) -> None:
        with suppress(OutputError):  # a later run aborts it
            self._target.bucket.abort_upload(key, upload_id)
