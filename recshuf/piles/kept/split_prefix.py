"""Several new stores below a prefix of a bucket, which appear all at once.

    PREFIX/
        .scatter                    the mark: while it is there, none of the stores can be opened
        NAME/snapshot-000001.json   names the mark
        NAME/sets/...

Deleting the mark commits all of them.
"""

from __future__ import annotations

import secrets
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from recshuf.errors import OutputError, OutputExistsError, RecshufError
from recshuf.piles.kept.bucket import MARK, StoreBucket, StoreRemains, explain_mark
from recshuf.storage.urls import Url
from recshuf.storage.writing.bucket import Conflict, Match

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from recshuf.storage.settings import StorageOptions


def check_prefix(place: StoreBucket) -> None:
    """Raise `OutputError` if there is anything below a prefix."""
    if place.list_parts():
        raise explain_mark(place.name, Url.parse(place.name))
    if place.exists():
        raise OutputExistsError(
            f"{place.name}: exists already; choose another prefix, or delete what is there"
        )


@contextmanager
def hold_prefix(place: StoreBucket, options: StorageOptions) -> Iterator[Callable[[str], StoreBucket]]:
    """Give what returns the place of a new store by its name. All appear at the end; on an error they are deleted."""
    check_prefix(place)
    url, token = Url.parse(place.name), secrets.token_hex(16)
    key = url.join(MARK).key
    try:
        try:
            etag = place.bucket.put(key, token.encode(), Match())
        except Conflict:
            raise explain_mark(place.name, url) from None
        yield lambda name: StoreBucket(url.join(name), options, token)
        if place.bucket.read(key) != (token.encode(), etag):
            raise OutputError(f"{place.name}: another process has deleted it meanwhile; run again")
        place.bucket.delete_if(key, etag)
    except BaseException:
        with suppress(RecshufError):
            there, remains = place.bucket.read(key), StoreRemains(url, options)
            if there is not None and there[0] == token.encode() and remains.find():
                remains.remove()
        raise
