"""The choice of the bucket that an output goes to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from recshuf.storage.settings import StorageOptions
    from recshuf.storage.urls import Url
    from recshuf.storage.writing.bucket import Bucket


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
    if url.scheme == "s3":
        from recshuf.storage.writing.s3 import S3Bucket

        return S3Bucket(url.bucket, options, is_hurried=is_hurried)
    if url.scheme == "gs":
        from recshuf.storage.writing.gcs import GcsBucket

        return GcsBucket(url.bucket, options, scratch, is_hurried=is_hurried)
    if url.scheme == "az":
        from recshuf.storage.writing.azure import AzureBucket

        return AzureBucket(url.bucket, options, is_hurried=is_hurried)
    raise UsageError(f"{url}: is no place for outputs")
