"""Buckets that outputs are written to: conditional writes, and uploads that nobody sees before they are completed; their choice.

Files are uploaded in parts, and wait in local folders.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import OutputError, UsageError
from recshuf.storage.requests import PATIENCE_SECONDS, Finding, MissingObject, Requests, ask_at_once
from recshuf.system.files import lock_folder
from recshuf.system.paths import naming_errors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from recshuf.storage import StorageOptions, Url
    from recshuf.system.threads import Pool


MOST_PARTS = 10_000
MOST_PART_BYTES = 4000 << 20


class Conflict(Finding):
    """An object is not as a conditional request demands."""


class MissingUpload(Finding):
    """An upload was completed or aborted."""


class StoredObject(NamedTuple):
    """An object in a listing."""

    key: str
    byte_count: int
    etag: str
    modified: float
    """When it was written, by the clock of the store: seconds since 1970."""


class OpenUpload(NamedTuple):
    """An upload in a listing."""

    key: str
    upload_id: str
    begun: str
    """Time of its begin, in words."""


class Part(NamedTuple):
    """A part of an upload."""

    etag: str
    checksum: str
    """What the store compares, in base64; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Match:
    """What must be at a key when it is written."""

    etag: str | None = None
    """What the store calls the version of the object there: its ETag or generation. None for no object."""


class Bucket(ABC):
    """A bucket. Many threads may use it.

    Every method raises an `OutputError` that names the object when a request fails for good.
    """

    scheme: str
    sends_in_order = False
    """Whether the parts of an upload must come one after the other."""

    def __init__(self, name: str) -> None:
        self.bucket = name
        self.requests = Requests()
        self.part_sizes: list[int] = []
        """Bytes of each part that was sent."""

    def _name(self, key: str) -> str:
        return f"{self.scheme}://{self.bucket}/{key}"

    def put(self, key: str, body: bytes, match: Match) -> str:
        """Write an object, and return its ETag; one that has these bytes already is left as it is.

        A `Conflict` says that `match` does not hold.
        """
        try:
            return self._put(key, body, match)
        except Conflict:
            # The reply to an earlier attempt may have been lost.
            there = self.read(key)
            if there is None or there[0] != body:
                raise
            return there[1]

    @abstractmethod
    def _put(self, key: str, body: bytes, match: Match) -> str: ...

    def read(self, key: str) -> tuple[bytes, str] | None:
        """Return content and ETag of an object; None if there is none."""
        with suppress(MissingObject):
            return self._get(key, None, None)
        return None

    def read_range(self, key: str, begin: int, end: int, etag: str | None) -> tuple[bytes, str]:
        """Return bytes ``begin:end`` of an object, and its ETag.

        A `Conflict` says that it has another ETag than that which is given, or fewer bytes; `MissingObject`, that it is gone.
        """
        content, found = self._get(key, (begin, end), etag)
        if len(content) != end - begin:
            raise Conflict(f"{self._name(key)}: has {len(content):,} of {end - begin:,} bytes")
        return content, found

    @abstractmethod
    def _get(self, key: str, span: tuple[int, int] | None, etag: str | None) -> tuple[bytes, str]:
        """Do what `read_range` does, but its length is not compared; without a span for the whole object."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects whose keys begin with a prefix, in the order of keys."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, if they exist."""
        ask_at_once(self._delete, keys)

    def delete_if(self, key: str, etag: str) -> None:
        """Delete an object unless it has another ETag."""
        with suppress(Conflict):
            self._delete(key, Match(etag))

    @abstractmethod
    def _delete(self, key: str, match: Match | None = None) -> None:
        """Delete an object, if it exists."""

    @abstractmethod
    def find_token(self, key: str) -> str | None:
        """Return the token of an object; None if it has none, or there is no object."""

    @abstractmethod
    def begin_upload(self, key: str, token: str, match: Match) -> str:
        """Return the identifier of a new upload; the object gets the token once it is completed.

        `match` is what is to hold at the end; a `Conflict` says that it does not hold now. Stores that compare it in
        `complete_upload` may leave it out here.
        """

    @abstractmethod
    def send_part(self, key: str, upload_id: str, number: int, body: bytes) -> Part:
        """Upload a part; the first has number 1. The store compares it with its checksum.

        `MissingUpload` says that it is not open.
        """

    @abstractmethod
    def is_whole(self, key: str, upload_id: str, parts: Sequence[Part], byte_count: int) -> bool:
        """Tell whether an open upload has exactly these parts, of so many bytes in all.

        `MissingUpload` says that it is not open.
        """

    @abstractmethod
    def complete_upload(self, key: str, upload_id: str, parts: Sequence[Part], match: Match) -> None:
        """Make an object of an upload, which was begun with the same `match`.

        After a `Conflict`, where `match` does not hold, it may be tried again with a `match` of no object. `MissingUpload` says that it
        is not open, or never can become an object, since the one that it was to replace is gone.
        """

    @abstractmethod
    def abort_upload(self, key: str, upload_id: str) -> None:
        """Abort an upload, if it is open. Stores that cannot let it expire."""

    @abstractmethod
    def find_uploads(self, prefix: str, known: Iterable[OpenUpload]) -> Iterator[OpenUpload]:
        """Yield the open uploads of keys that begin with a prefix.

        A store that cannot list uploads looks for those that are known, as they were begun; one that cannot abort them yields none.
        """


WRITTEN_SCHEMES = ("s3", "gs", "az")
"""Schemes of buckets that `open_bucket` opens."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_prefix(url: Url, text: str, example: str) -> None:
    """Refuse a URL that is no place for the objects of a run; `text` is its text, `example` the name of a prefix."""
    if not url.key.strip("/"):
        raise UsageError(
            f"{text}: is a whole bucket; give a prefix in it, such as {url.scheme}://{url.bucket}/{example}/"
        )
    check_key(url, text)


def check_key(url: Url, text: str) -> None:
    """Refuse a URL, which is `text`, with a key that no run writes."""
    parts = url.key.removesuffix("/").split("/")
    if "" in parts:
        raise UsageError(f"{text}: has an empty part in its key, and could not be read; leave out a slash")
    for part in parts:
        if part in (".", ".."):
            raise UsageError(f"{text}: has a part {part!r} in its key, and could not be read; leave it out")
        if _CONTROL.search(part):
            raise UsageError(
                f"{text!r}: has a control character in its key, and could not be read; leave it out"
            )


def open_bucket(url: Url, options: StorageOptions, scratch: str, *, is_hurried: bool = False) -> Bucket:
    """Return the bucket of a URL; a store may need objects for open uploads, below the prefix `scratch`.

    One that is hurried fails within 30 seconds if nobody answers. It is for what takes a store no time, not for uploads.
    """
    options = options.of(url)
    bucket: Bucket
    if url.scheme == "s3":
        from recshuf.storage.writing.s3 import S3Bucket

        bucket = S3Bucket(url.bucket, options, is_hurried=is_hurried)
    elif url.scheme == "gs":
        from recshuf.storage.writing.gcs import GcsBucket

        bucket = GcsBucket(url.bucket, options, scratch, is_hurried=is_hurried)
    elif url.scheme == "az":
        from recshuf.storage.writing.azure import AzureBucket

        bucket = AzureBucket(url.bucket, options, is_hurried=is_hurried)
    else:
        raise UsageError(f"{url}: is no place for outputs")
    if is_hurried:
        bucket.requests.patience = PATIENCE_SECONDS
    return bucket


PART_BYTES = 8 << 20
PART_THREADS = 4
"""So many parts are sent at once at most."""
_MIB = 1 << 20
PREFIX = "recshuf-output-"
"""Begin of the names of folders."""


def choose_part_bytes(file_bytes: int) -> int:
    """Return the size of all parts of a file but the last.

    >>> choose_part_bytes(10**6) == PART_BYTES, choose_part_bytes(10**12) * MOST_PARTS >= 10**12
    (True, True)
    """
    wanted = -(-file_bytes // MOST_PARTS)
    return max(PART_BYTES, -(-wanted // _MIB) * _MIB)


def send_file(path: Path, send: Callable[[int, bytes], Part], pool: Pool, *, in_order: bool) -> list[Part]:
    """Send a file in parts, and return them.

    `send` gets the number of a part, from 1, and its bytes. If `in_order`, each part must arrive before the next one is sent.
    """
    size = path.stat().st_size
    part_bytes = choose_part_bytes(size)
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


class UploadFolder:
    """A folder in `parent` that is locked until `close`, which deletes it. What dead processes left beside it is deleted, too."""

    def __init__(self, parent: Path, output: str) -> None:
        _delete_dead(parent, output)
        name = f"{PREFIX}{secrets.token_hex(16)}"
        self.path, draft = parent.absolute() / name, parent.absolute() / f".{name}"
        with naming_errors(str(parent), parent):
            self._lock: int | None = lock_folder(draft, output)
            draft.rename(self.path)  # locked before others look for dead ones

    def close(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):
                os.close(lock)


def _delete_dead(parent: Path, output: str) -> None:
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError, OutputError):  # in use, or of another user
            lock = lock_folder(folder, output)
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)
