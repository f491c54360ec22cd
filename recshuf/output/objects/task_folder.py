"""The results of the tasks of a run as objects below its journal."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from recshuf.errors import OutputError
from recshuf.output.objects.clean_command import format_clean_command
from recshuf.output.pile_sets import remove_sets
from recshuf.output.sealed import decode_sealed, encode_sealed
from recshuf.output.task_folder import TaskFolder, is_result
from recshuf.storage.urls import Url
from recshuf.storage.writing.bucket import Conflict, Match
from recshuf.storage.writing.buckets import open_bucket
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from recshuf.storage.settings import StorageOptions
    from recshuf.storage.writing.bucket import Bucket

_READERS = 16
"""Threads that wait for the store."""


class ObjectTaskFolder(TaskFolder):
    """Results as objects, each made on condition that there is none.

    Parameters
    ----------
    url
        Prefix of the results.
    output
        URL of the output, for messages.
    """

    def __init__(self, bucket: Bucket, url: Url, options: StorageOptions, output: str) -> None:
        self._bucket, self._url, self._options = bucket, url, options
        self.clean_command = format_clean_command(output, options)
        self.removal = f"remove them with {self.clean_command}"

    @classmethod
    def open(cls, address: str, options: StorageOptions, output: str) -> ObjectTaskFolder:
        """Return the folder at an address."""
        url = Url.parse(address)
        return cls(open_bucket(url, options, url.key), url, options, output)

    @property
    def address(self) -> str:
        """URL of the prefix."""
        return str(self._url)

    def make(self) -> None:
        """Do nothing: prefixes need not be made."""

    def share(self, output: str) -> AbstractContextManager[None]:  # noqa: ARG002 - nothing is locked
        """Do nothing: what a run removes, its tasks miss."""
        return nullcontext()

    def count(self) -> int:
        """Return the number of results."""
        return sum(map(is_result, self._find_names()))

    @property
    def has_any(self) -> bool:
        """Whether a task has left anything, if only the file of the run."""
        return bool(self._find_names())

    def _find_names(self) -> set[str]:
        return {one.key.removeprefix(self._url.key) for one in self._bucket.list(self._url.key)}

    def find_sets(self) -> str | None:
        """Return the path or URL of the pile sets of the run; None if there is no run, or its file is damaged."""
        try:
            match self.read("run"):
                case {"run": {"piles": str(place)}}:
                    return place
        except OutputError:
            pass
        return None

    def clear(self) -> None:
        """Delete the pile sets of the run, and then all results."""
        sets = self.find_sets()
        if sets is not None:
            remove_sets(sets, self._options)
        self._bucket.delete([self._url.join(name).key for name in self._find_names()])

    def read(self, name: str) -> Any:
        """See `TaskFolder`."""
        found = self._bucket.read(self._url.join(f"{name}.json").key)
        if found is None:
            return None
        try:
            return decode_sealed(found[0])
        except ValueError as error:
            raise OutputError(f"{self._url.join(name)}.json: is damaged; delete it") from error

    def read_all(self, names: Iterable[str]) -> list[Any]:
        """Return what `read` returns of each name; those that are not listed cost no request."""
        there = self._find_names()
        with Pool(_READERS, "result") as pool:
            return list(
                pool.map(lambda name: self.read(name) if f"{name}.json" in there else None, list(names))
            )

    def place(self, name: str, values: dict[str, Any]) -> Any:
        """See `TaskFolder`."""
        content = encode_sealed(values)
        try:
            self._bucket.put(self._url.join(f"{name}.json").key, content, Match())
        except Conflict:
            return self.read(name)
        return decode_sealed(content)

    def remove(self, name: str) -> None:
        """See `TaskFolder`."""
        self._bucket.delete([self._url.join(f"{name}.json").key])
