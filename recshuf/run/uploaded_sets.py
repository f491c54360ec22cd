"""The pile sets of tasks in an object store: each an object, whose regions are read by ranges."""

from __future__ import annotations

import os
from bisect import bisect_left
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from recshuf.errors import OutputError, PileError
from recshuf.output.run_log import remove_sets
from recshuf.piles.set_folder import PileFile, SetFolder
from recshuf.storage.reading.objects import Stores, count_read_bytes
from recshuf.storage.reading.read_ahead import UNIT_BYTES
from recshuf.storage.writing.bucket import Conflict, Match, MissingUpload
from recshuf.storage.writing.buckets import open_bucket
from recshuf.storage.writing.parts import PART_THREADS, UploadFolder, send_file
from recshuf.system.paths import choose_temp_dir
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from recshuf.interfaces import Stamp
    from recshuf.job.job import Job
    from recshuf.storage.reading.objects import ObjectHandle
    from recshuf.storage.urls import Url


_COPY_BYTES = 4 << 20
_OPENED_AHEAD = 16
"""So many sets are opened at once."""


class ObjectPileFile(PileFile):
    """An object."""

    def __init__(self, handle: ObjectHandle, name: str) -> None:
        super().__init__(name)
        self._handle = handle

    @property
    def size(self) -> int:
        return self._handle.stamp.size

    def _read_into(self, view: memoryview, offset: int) -> int:
        return self._handle.readinto_at(offset, view)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._handle.expect([(offset, offset + size) for offset, size in ranges])

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.expect(ranges)

    def close(self) -> None:
        self._handle.close()


class UploadedSets(SetFolder):
    """Objects below a prefix, each written to a file of this machine and then uploaded. Those of all tasks are read."""

    def __init__(self, job: Job, url: Url, needed_bytes: int) -> None:
        self._local = UploadFolder(choose_temp_dir(None), str(url))
        path = self._local.path
        super().__init__(path, path, needed_bytes=needed_bytes, shown=path.parent)
        self.url = url
        # Memory for ranges of sets of a task, of which each worker runs one.
        self.ahead_bytes = count_read_bytes(job.memory_bytes, job.workers) * 3 // 4 // job.workers
        self._options = job.storage
        self._bucket = open_bucket(url, job.storage, url.join("tails/").key)
        self._stores = Stores(job.storage, job.memory_bytes, job.workers)
        self._stamps: dict[str, Stamp] = {}
        self._names: list[str] = []
        self._handles: dict[str, ObjectHandle] = {}
        """Sets whose ends are fetched."""

    def reopen(self, name: str) -> PileFile:
        """Open a set in the store, and fetch the ends of the next ones by name."""
        if name not in self._stamps:
            self._stamps = self._list()
            self._names = sorted(self._stamps)
        if name not in self._stamps:
            raise FileNotFoundError(2, os.strerror(2), self.show(name))
        begin = bisect_left(self._names, name)
        for each in self._names[begin : begin + _OPENED_AHEAD]:
            self._fetch_end(each)
        return ObjectPileFile(self._handles[name], self.show(name))

    def _fetch_end(self, name: str) -> None:
        if name not in self._handles:
            stamp = self._stamps[name]
            handle = self._handles[name] = self._open_object(name, stamp)
            handle.expect([(max(0, stamp.size - UNIT_BYTES), stamp.size)])

    def _list(self) -> dict[str, Stamp]:
        """Return the stamp of each object by its name."""
        entries = self._stores.open(self.url).list(self.url.key)
        return {entry.key.removeprefix(self.url.key): entry.stamp for entry in entries}

    def _open_object(self, name: str, stamp: Stamp) -> ObjectHandle:
        url = self.url.join(name)
        return self._stores.make_file(str(url), url, stamp).open()

    def close(self) -> None:
        super().close()
        for handle in self._handles.values():
            handle.close()
        with suppress(OSError):
            self._local.close()

    def keep(self, name: str) -> None:
        path = self._path_of(name)
        try:
            self._upload(path)
        except (Conflict, MissingUpload) as error:
            # The reply to the request that completed it may have been lost.
            if self._bucket.find_token(self.url.join(name).key) != name:
                raise OutputError(
                    f"{error}: was aborted or replaced by another program; run again, with --resume"
                ) from error
        path.unlink()

    def _upload(self, path: Path) -> None:
        key = self.url.join(path.name).key
        upload_id = self._bucket.begin_upload(key, path.name, Match())
        try:
            with Pool(PART_THREADS, "part") as pool:
                send = partial(self._bucket.send_part, key, upload_id)
                parts = send_file(path, send, pool, in_order=self._bucket.sends_in_order)
            self._bucket.complete_upload(key, upload_id, parts, Match())
        except BaseException:
            with suppress(OutputError):  # `remove` aborts it
                self._bucket.abort_upload(key, upload_id)
            raise

    @contextmanager
    def fetch(self, name: str) -> Iterator[Path]:
        stamp = self._list().get(name)
        if stamp is None:
            raise PileError(f"{self.show(name)}: is missing")
        path = self._path_of(name)
        with closing(self._open_object(name, stamp)) as handle, path.open("wb") as file:
            for offset in range(0, stamp.size, _COPY_BYTES):
                file.write(handle.read_at(offset, _COPY_BYTES))
        try:
            yield path
        finally:
            path.unlink()

    def show(self, name: str) -> str:
        return str(self.url.join(name))

    def discard(self, name: str) -> None:
        self._bucket.delete([self.url.join(name).key])

    def remove(self) -> None:
        remove_sets(str(self.url), self._options)
