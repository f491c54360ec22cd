"""The removal of pile sets of runs that have ended: a folder outside the work folder, or objects below a prefix."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.errors import MissingBucketError
from recshuf.storage.urls import Url, is_url

if TYPE_CHECKING:
    from recshuf.storage.settings import StorageOptions


PILES_PREFIX = "recshuf-piles-"
"""Prefix of the last part of the path or URL."""


def remove_folder(folder: Path) -> None:
    """Delete a folder of pile sets, if it has our prefix."""
    if is_own_folder(folder):
        shutil.rmtree(folder, ignore_errors=True)


def is_own_folder(folder: Path) -> bool:
    return folder.name.startswith(PILES_PREFIX) and folder.is_dir()


def remove_sets(place: str, options: StorageOptions) -> None:
    """Delete the pile sets at a path or URL, also those that are being uploaded, if its name has our prefix."""
    if not is_url(place):
        remove_folder(Path(place))
    elif place.rstrip("/").rpartition("/")[2].startswith(PILES_PREFIX):
        from recshuf.storage.writing.buckets import open_bucket

        url = Url.parse(place)
        bucket = open_bucket(url, options, url.join("tails/").key)
        with suppress(MissingBucketError):
            for one in bucket.find_uploads(url.key, ()):
                bucket.abort_upload(one.key, one.upload_id)
            bucket.delete([one.key for one in bucket.list(url.key)])
