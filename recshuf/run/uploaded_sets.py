"""The pile sets of tasks in an object store: each an object, whose regions are read by ranges."""

from __future__ import annotations

import os
from bisect import bisect_left
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from recshuf.errors import OutputError, PileError
from recshuf.output.pile_sets import remove_sets
from recshuf.piles.set_folder import ObjectPileFile, Scratch, SetFolder
from recshuf.storage.reading.objects import Stores, count_read_bytes
from recshuf.storage.reading.read_ahead import UNIT_BYTES
from recshuf.storage.writing.bucket import Conflict, Match, MissingUpload
from recshuf.storage.writing.buckets import open_bucket
from recshuf.storage.writing.parts import PART_THREADS, UploadFolder, send_file
from recshuf.system.paths import choose_temp_dir
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from recshuf.interfaces import Stamp
    from recshuf.job.job import Job
    from recshuf.storage.reading.objects import ObjectHandle
    from recshuf.storage.urls import Url


_COPY_BYTES = 4 << 20
_OPENED_AHEAD = 16
"""So many sets are opened at once."""


class UploadedSets(SetFolder):
    """Objects below a prefix, each written as a file and then uploaded."""

    def __init__(self, job: Job, url: Url) -> None:
        self.url = url
        self._options = job.storage
        self._bucket = open_bucket(url, job.storage, url.join("tails/").key)
        self._memory_bytes, self._workers = job.memory_bytes, job.workers
        self._stores = Stores(job.storage, job.memory_bytes, job.workers)

    def open_scratch(self, needed_bytes: int) -> Scratch:
        return _SetScratch(self, UploadFolder(choose_temp_dir(None), str(self.url)), needed_bytes)

    def keep(self, path: Path) -> None:
        try:
            self._upload(path)
        except (Conflict, MissingUpload) as error:
            # The reply to the request that completed it may have been lost.
            if self._bucket.find_token(self.url.join(path.name).key) != path.name:
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

    def show(self, name: str) -> str:
        return str(self.url.join(name))

    def discard(self, name: str) -> None:
        self._bucket.delete([self.url.join(name).key])

    @contextmanager
    def fetch(self, name: str) -> Iterator[Path]:
        with ExitStack() as cleanup:
            folder = UploadFolder(choose_temp_dir(None), str(self.url))
            cleanup.callback(folder.close)
            stamp = self.find().get(name)
            if stamp is None:
                raise PileError(f"{self.show(name)}: is missing")
            handle = self.open(name, stamp)
            cleanup.callback(handle.close)
            path = folder.path / name
            with path.open("wb") as file:
                for offset in range(0, stamp.size, _COPY_BYTES):
                    file.write(handle.read_at(offset, _COPY_BYTES))
            yield path

    def remove(self) -> None:
        remove_sets(str(self.url), self._options)

    @property
    def ahead_bytes(self) -> int:
        """Memory for ranges of sets of a task, of which each worker runs one."""
        return count_read_bytes(self._memory_bytes, self._workers) * 3 // 4 // self._workers

    def find(self) -> dict[str, Stamp]:
        """Return the stamp of each set by its name."""
        entries = self._stores.open(self.url).list(self.url.key)
        return {entry.key.removeprefix(self.url.key): entry.stamp for entry in entries}

    def open(self, name: str, stamp: Stamp) -> ObjectHandle:
        """Return a set, open for reading."""
        url = self.url.join(name)
        return self._stores.make_file(str(url), url, stamp).open()


class _SetScratch(Scratch):
    """Writes sets to a local folder, and reads those in the store."""

    def __init__(self, sets: UploadedSets, folder: UploadFolder, needed_bytes: int) -> None:
        super().__init__(folder.path, shown=folder.path.parent, kept=folder.path, needed_bytes=needed_bytes)
        self._sets, self._folder = sets, folder
        self.ahead_bytes = sets.ahead_bytes
        self._stamps: dict[str, Stamp] = {}
        self._names: list[str] = []
        self._handles: dict[str, ObjectHandle] = {}
        """Sets whose ends are fetched."""

    def reopen(self, name: str) -> ObjectPileFile:
        """Open a set in the store, and fetch the ends of the next ones by name."""
        if name not in self._stamps:
            self._stamps = self._sets.find()
            self._names = sorted(self._stamps)
        if name not in self._stamps:
            raise FileNotFoundError(2, os.strerror(2), str(self._sets.url.join(name)))
        begin = bisect_left(self._names, name)
        for each in self._names[begin : begin + _OPENED_AHEAD]:
            self._fetch_end(each)
        return ObjectPileFile(self._handles[name], str(self._sets.url.join(name)))

    def _fetch_end(self, name: str) -> None:
        if name not in self._handles:
            stamp = self._stamps[name]
            handle = self._handles[name] = self._sets.open(name, stamp)
            handle.expect([(max(0, stamp.size - UNIT_BYTES), stamp.size)])

    def close(self) -> None:
        super().close()
        for handle in self._handles.values():
            handle.close()
        with suppress(OSError):
            self._folder.close()
