"""Buckets that outputs are written to: conditional writes, and uploads that nobody sees before they are completed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recshuf.storage.settings import StorageOptions
    from recshuf.storage.urls import Url

WRITTEN_SCHEMES = ("s3",)
"""Schemes of buckets that `open_bucket` opens."""
MOST_PARTS = 10_000
MOST_PART_BYTES = 5 << 30


class Conflict(Exception):  # noqa: N818 - no failure of its own
    """An object is not as a conditional request demands. Never reaches the user."""


class MissingUpload(Exception):  # noqa: N818 - no failure of its own
    """An upload was completed or aborted. Never reaches the user."""


class StoredObject(NamedTuple):
    """An object in a listing."""

    key: str
    byte_count: int
    etag: str


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
    """CRC-32 in base64; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Match:
    """What must be at a key when it is written."""

    etag: str | None = None
    """ETag of the object there; None for no object."""


class Bucket(Protocol):
    """A bucket, and the number of requests that succeeded, each with its retries. Many threads may use it.

    Every method raises an `OutputError` that names the object when a request fails for good.
    """

    requests: int
    retries: int
    part_sizes: list[int]
    """Bytes of each part that was sent."""

    def put(self, key: str, body: bytes, match: Match) -> str:
        """Write an object, and return its ETag; one that has these bytes already is left as it is.

        Raises
        ------
        Conflict
            When `match` does not hold.
        """
        ...

    def read(self, key: str) -> tuple[bytes, str] | None:
        """Return content and ETag of an object; None if there is none."""
        ...

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects whose keys begin with a prefix, in the order of keys."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, if they exist."""
        ...

    def delete_if(self, key: str, etag: str) -> None:
        """Delete an object unless it has another ETag."""
        ...

    def find_token(self, key: str) -> str | None:
        """Return the token of an object; None if it has none, or there is no object."""
        ...

    def begin_upload(self, key: str, token: str) -> str:
        """Return the identifier of a new upload; the object gets the token once it is completed."""
        ...

    def send_part(self, key: str, upload_id: str, number: int, body: bytes) -> Part:
        """Upload a part; the first has number 1. The store compares it with its checksum.

        Raises
        ------
        MissingUpload
            When it is not open.
        """
        ...

    def list_parts(self, key: str, upload_id: str) -> dict[int, tuple[str, int]]:
        """Return ETag and size of each part of an open upload, by its number.

        Raises
        ------
        MissingUpload
            When it is not open.
        """
        ...

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[Part], match: Match) -> None:
        """Make an object of an upload.

        Raises
        ------
        Conflict
            When `match` does not hold.
        MissingUpload
            When it is not open.
        """
        ...

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Abort an upload, if it is open."""
        ...

    def list_uploads(self, prefix: str) -> Iterator[OpenUpload]:
        """Yield the open uploads of keys that begin with a prefix."""
        ...


def open_bucket(url: Url, options: StorageOptions) -> Bucket:
    """Return the bucket of a URL.

    Raises
    ------
    UsageError
        When outputs cannot be there, a library is not installed, or takes no such option.
    """
    if url.scheme == "s3":
        from recshuf.storage.s3 import S3Bucket

        return S3Bucket(url.bucket, options)
    raise UsageError(f"{url}: is only read; write to {WRITTEN_SCHEMES[0]}:// or a local folder")
