"""What inputs in object stores are read from: what is at a key, what is below a prefix, and bytes of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

    from recshuf.interfaces import Stamp
    from recshuf.storage.requests import Requests


class Entry(NamedTuple):
    """An object in a listing."""

    key: str
    stamp: Stamp


def is_strong(etag: str) -> bool:
    """Tell whether a request can demand this ETag: it is known, and not weak."""
    return bool(etag) and not etag.startswith("W/")


def compare_weakly(now: Stamp, before: Stamp) -> str | None:
    """Describe the difference from an earlier stamp; of weak ETags that are equal, times may say more."""
    is_weak = not (is_strong(now.etag) and is_strong(before.etag))
    if is_weak and now.etag.removeprefix("W/") == before.etag.removeprefix("W/"):
        now = now._replace(etag="")
    return now.find_change(before)


class Store(Protocol):
    """A bucket, or all of a scheme. Many threads may use it.

    Every method raises an `InputError` that names the object when a request fails for good.
    """

    requests: Requests
    is_bound: bool
    """Whether `get` compares strong ETags."""

    def find(self, key: str) -> Stamp | None:
        """Return the stamp of an object; None if there is none."""
        ...

    def list(self, prefix: str) -> list[Entry]:
        """Return all objects below a prefix, which is empty or ends with a slash."""
        ...

    def get(self, key: str, begin: int, end: int, stamp: Stamp) -> ReadableBuffer:
        """Return bytes ``begin:end`` of an object.

        Raises
        ------
        ChangedObject
            When it has another stamp, as far as the store can tell.
        MissingObject
            When it is gone.
        """
        ...
