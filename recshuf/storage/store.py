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


class Store(Protocol):
    """A bucket, or all of a scheme. Many threads may use it.

    Every method raises an `InputError` that names the object when a request fails for good.
    """

    requests: Requests
    is_bound: bool
    """Whether `get` compares ETags."""

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
