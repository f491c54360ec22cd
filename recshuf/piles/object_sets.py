"""Pile sets as objects: each is written to a file of this machine and then uploaded, and read by ranges."""

from __future__ import annotations

import os
import secrets
from bisect import bisect_left
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from recshuf.errors import OutputError, PileError
from recshuf.piles.set_folder import RUN_REMEDY, PileFile, SetFolder
from recshuf.storage.reading.fetching import Fetcher
from recshuf.storage.requests import MissingObject
from recshuf.storage.writing import (
    PART_THREADS,
    Conflict,
    Match,
    MissingUpload,
    UploadFolder,
    open_bucket,
    send_file,
)
from recshuf.system.paths import choose_temp_dir
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from recshuf.storage import StorageOptions, Url
    from recshuf.storage.writing import Bucket


TAILS = "tails/"
"""Prefix below that of the sets for what a store needs for open uploads."""
Opened = TypeVar("Opened")
_TAIL_BYTES = 1 << 19
_COPY_BYTES = 4 << 20
_OPENED_AHEAD = 16
"""So many sets are opened at once."""


class Reopened(Generic[Opened]):
    """What a function opens, and again after a fork: the parent would get what belongs to its child, such as replies."""

    def __init__(self, make: Callable[[], Opened]) -> None:
        self._make, self._opened, self._process = make, make(), os.getpid()

    @property
    def here(self) -> Opened:
        if self._process != os.getpid():
            self._opened = self._make()
            self._process = os.getpid()  # last: other threads of a child use what is opened
        return self._opened


class ObjectPileFile(PileFile):
    """An object of so many bytes, as it is when it is first read."""

    def __init__(self, sets: ObjectSets, name: str, byte_count: int) -> None:
        super().__init__(sets.show(name), sets.remedy)
        self._sets, self._key = sets, sets.url.join(name).key
        self._byte_count = byte_count
        self._etag: str | None = None

    @property
    def size(self) -> int:
        return self._byte_count

    def get(self, begin: int, end: int) -> bytes:
        try:
            content, self._etag = self._sets.bucket.read_range(self._key, begin, end, self._etag)
        except (Conflict, MissingObject) as error:
            is_gone = isinstance(error, MissingObject)
            if self._etag is None:
                problem = "is missing" if is_gone else "is cut short"
                raise PileError(f"{self.name}: {problem}") from error
            raise PileError(self._sets.explain_change(self, is_gone=is_gone)) from error
        return content

    def _read_into(self, view: memoryview, offset: int) -> int:
        return self._sets.fetcher.read_into(self, view[: max(0, self.size - offset)], offset)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._sets.fetcher.expect(self, [(begin, min(begin + size, self.size)) for begin, size in ranges])

    def forget(self) -> None:
        self._sets.fetcher.forget(self)

    def close(self) -> None:
        self.forget()


class ObjectSets(SetFolder):
    """Objects below a prefix, those of other machines too.

    Parameters
    ----------
    most_bytes
        Memory for what is fetched before it is read.
    parent
        Folder for unnamed files. Default: the folder of files that are uploaded.
    bucket
        The bucket to read from, if it is open already.
    """

    are_sent = True

    def __init__(
        self,
        url: Url,
        options: StorageOptions,
        most_bytes: int,
        parent: Path | None = None,
        needed_bytes: int = 0,
        remedy: str = RUN_REMEDY,
        bucket: Reopened[Bucket] | None = None,
    ) -> None:
        shown = choose_temp_dir(None) if parent is None else parent
        super().__init__(shown, shown, needed_bytes=needed_bytes, shown=shown)
        self.url = url
        self.ahead_bytes = most_bytes
        self.tail_bytes = _TAIL_BYTES
        self._options, self.remedy = options, remedy
        self._local: UploadFolder | None = None
        self._sizes: dict[str, int] = {}
        self._names: list[str] = []
        self._ahead: dict[str, ObjectPileFile] = {}
        """Sets whose ends are fetched."""
        self.tokens: dict[str, str] = {}
        """That of each object that was uploaded, by its name."""
        tails = url.join(TAILS).key
        self._bucket = bucket or Reopened(lambda: open_bucket(url, options, tails, is_hurried=True))
        self._fetcher: Reopened[Fetcher[ObjectPileFile]] = Reopened(
            lambda: Fetcher(most_bytes, ObjectPileFile.get)
        )

    @property
    def bucket(self) -> Bucket:
        """The bucket to read from, which does not wait long."""
        return self._bucket.here

    @property
    def fetcher(self) -> Fetcher[ObjectPileFile]:
        return self._fetcher.here

    # Files of this machine, to be uploaded

    def make_kept(self) -> Path:
        return self._find_kept()

    def _find_kept(self) -> Path:
        if self._local is None:
            self._local = UploadFolder(choose_temp_dir(None), str(self.url))
        return self._local.path

    def keep(self, name: str) -> None:
        path = self._path_of(name)
        token = self.tokens[name] = secrets.token_hex(16)
        key = self.url.join(name).key
        try:
            self._upload(path, key, token)
        except (Conflict, MissingUpload) as error:
            # The reply to the request that completed it may have been lost.
            if self.bucket.find_token(key) != token:
                del self.tokens[name]
                raise self.explain_taken(name, error) from error
        path.unlink()

    def explain_taken(self, name: str, error: Exception) -> OutputError:  # noqa: ARG002 - of stores
        """Return the error for an object that another program has put in the place of one."""
        return OutputError(f"{error}: was aborted or replaced by another program; run again, with --resume")

    def explain_change(self, file: ObjectPileFile, *, is_gone: bool) -> str:
        """Return what to say of an object that is not any more as it was when it was opened."""
        return f"{file.name}: {'is gone' if is_gone else 'was replaced'} since it was opened; {file.remedy}"

    def _upload(self, path: Path, key: str, token: str) -> None:
        bucket = open_bucket(self.url, self._options, self.url.join(TAILS).key)
        upload_id = bucket.begin_upload(key, token, Match())
        may_be_twice = bucket.requests.retries > 0
        try:
            with Pool(PART_THREADS, "part") as pool:
                send = partial(bucket.send_part, key, upload_id)
                parts = send_file(path, send, pool, in_order=bucket.sends_in_order)
            bucket.complete_upload(key, upload_id, parts, Match())
        except BaseException:
            with suppress(OutputError):  # who removes the sets aborts it
                bucket.abort_upload(key, upload_id)
            raise
        if may_be_twice:
            # The reply to the first begin may have been lost. Whoever else writes here fails now that the object is there.
            with suppress(OutputError):
                for one in bucket.find_uploads(key, ()):
                    if one.key == key:
                        bucket.abort_upload(key, one.upload_id)

    # Objects

    def know(self, sizes: Mapping[str, int]) -> None:
        """Note which objects there are, and their bytes, so that they need not be listed."""
        self._sizes, self._names = dict(sizes), sorted(sizes)

    def reopen(self, name: str) -> PileFile:
        """Open a set in the bucket, and fetch the ends of the next ones by name."""
        if name not in self._sizes:
            self._list()
        begin = bisect_left(self._names, name)
        for each in (name, *self._names[begin : begin + _OPENED_AHEAD]):
            if each not in self._ahead:
                file = self._ahead[each] = self._open_object(each)
                file.expect([(max(0, file.size - self.tail_bytes), self.tail_bytes)])
        return self._ahead[name]

    def hasten(self) -> None:
        self.fetcher.hasten()

    def _open_object(self, name: str) -> ObjectPileFile:
        if name not in self._sizes:
            raise FileNotFoundError(2, os.strerror(2), self.show(name))
        return ObjectPileFile(self, name, self._sizes[name])

    def _list(self) -> None:
        self.know(
            {one.key.removeprefix(self.url.key): one.byte_count for one in self.bucket.list(self.url.key)}
        )

    def close(self) -> None:
        super().close()
        for file in self._ahead.values():
            file.close()
        if self._local is not None:
            with suppress(OSError):
                self._local.close()

    @contextmanager
    def fetch(self, name: str) -> Iterator[Path]:
        self._list()
        if name not in self._sizes:
            raise PileError(f"{self.show(name)}: is missing")
        file, path = self._open_object(name), self._path_of(name)
        with path.open("wb") as copy:
            for begin in range(0, file.size, _COPY_BYTES):
                copy.write(file.get(begin, min(begin + _COPY_BYTES, file.size)))
        try:
            yield path
        finally:
            path.unlink()

    def show(self, name: str) -> str:
        return str(self.url.join(name))

    def discard(self, name: str) -> None:
        self.bucket.delete([self.url.join(name).key])
