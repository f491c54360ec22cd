"""Objects as inputs."""

from __future__ import annotations

import io
import os
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from recshuf.storage.reading.read_ahead import WORKER_BYTES, SegmentCache, SegmentedObject
from recshuf.storage.reading.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO

    from _typeshed import WriteableBuffer

    from recshuf.interfaces import InputFile, Stamp
    from recshuf.storage import StorageOptions, Url
    from recshuf.storage.requests import Requests, Store


_MEMORY_PART = 4
_MOST_AHEAD = 64


def count_read_bytes(memory_bytes: int, workers: int) -> int:
    """Return the memory for ranges of objects in a run with this memory limit."""
    return min(workers * WORKER_BYTES, memory_bytes // _MEMORY_PART)


class Stores:
    """All stores that a run reads from, each opened once. They can be pickled, and are then opened anew."""

    def __init__(
        self,
        options: StorageOptions,
        memory_bytes: int,
        workers: int,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.options = options
        self._warn = warn
        self._given = (options, memory_bytes, workers)
        # A reply is in memory twice while it arrives.
        self._cache = SegmentCache(count_read_bytes(memory_bytes, workers) * 3 // 4, workers)
        self._stores: dict[tuple[str, str], Store] = {}

    def open(self, url: Url) -> Store:
        place = (url.scheme, url.bucket)
        if place not in self._stores:
            store = self._stores[place] = open_store(url, self.options)
            store.requests.warn = self._warn
        return self._stores[place]

    def make_file(self, name: str, url: Url, stamp: Stamp) -> ObjectFile:
        store = self.open(url)
        content = SegmentedObject(name, url.key, stamp, store, self._cache)
        return ObjectFile(content, store.requests, partial(self.make_file, name, url, stamp))

    def __reduce__(self) -> tuple[Any, ...]:
        return Stores, self._given


class ObjectFile:
    """An object, as it was when it was listed; an `Opener`. Opening it makes no request. `remake` makes it in another process."""

    def __init__(
        self,
        content: SegmentedObject,
        requests: Requests,
        remake: Callable[[], ObjectFile] | None = None,
    ) -> None:
        self._content = content
        self._remake = remake
        self.requests = requests
        """Requests to its store, also those for other objects."""
        self.ahead_bytes = content.ahead_bytes
        """Most bytes that `Handle.expect` fetches at once."""

    def __reduce__(self) -> tuple[Any, ...]:
        return self._remake, ()

    def open(self) -> ObjectHandle:
        return ObjectHandle(self._content)

    def open_raw(self) -> ObjectStream:
        return ObjectStream(self.open())

    def find_stamp(self) -> Stamp | None:
        return None if self._content.is_bound else self._content.find_stamp()


class ObjectHandle:
    """An open object; a `Handle`."""

    def __init__(self, content: SegmentedObject) -> None:
        self.stamp = content.stamp
        self._content = content
        self._expected: Sequence[tuple[int, int]] = ()

    def read_at(self, offset: int, size: int) -> bytes:
        content = bytearray(max(0, min(size, self.stamp.size - offset)))
        self.readinto_at(offset, memoryview(content))
        return bytes(content)

    def readinto_at(self, offset: int, view: memoryview) -> int:
        return self._content.readinto_at(offset, view.cast("B"), self._expected)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._content.release(self._expected)
        self._expected = self._content.expect(ranges)

    def drop_pages(self, offset: int, size: int) -> None:
        """See `Handle`; there are none."""

    def take_stream(self) -> BinaryIO | None:
        return None

    def close(self) -> None:
        self._content.release(self._expected)
        self._expected = ()


class ObjectStream(io.RawIOBase):
    """An open object as a file that can be read and sought."""

    def __init__(self, handle: ObjectHandle) -> None:
        self.handle = handle
        self._place = 0

    def close(self) -> None:
        super().close()
        self.handle.close()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self.handle.stamp.size}[whence]
        self._place = base + offset
        return self._place

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        count = self.handle.readinto_at(self._place, memoryview(buffer))
        self._place += count
        return count


def look_ahead(
    files: Iterable[InputFile], *, head_bytes: int = 0, middle_bytes: int = 0, tail_bytes: int = 0
) -> Iterator[InputFile]:
    """Yield inputs in turn, while bytes at the begin, from the middle on, and at the end of the next objects are fetched."""
    waiting: deque[tuple[InputFile, ObjectHandle | None]] = deque()
    for file in files:
        waiting.append((file, _fetch_parts(file, head_bytes, middle_bytes, tail_bytes)))
        if len(waiting) > _count_ahead(file, head_bytes + middle_bytes + tail_bytes):
            yield from _release(waiting)
    while waiting:
        yield from _release(waiting)


def _fetch_parts(file: InputFile, head_bytes: int, middle_bytes: int, tail_bytes: int) -> ObjectHandle | None:
    if not isinstance(file.opener, ObjectFile):
        return None
    handle = file.opener.open()
    size = handle.stamp.size
    middle = size // 2
    parts = [
        (0, min(head_bytes, size)),
        (middle, min(middle + middle_bytes, size)),
        (max(0, size - tail_bytes), size),
    ]
    handle.expect([(begin, end) for begin, end in parts if begin < end])
    return handle


def _count_ahead(file: InputFile, byte_count: int) -> int:
    if not isinstance(file.opener, ObjectFile):
        return 0
    return min(_MOST_AHEAD, file.opener.ahead_bytes // (2 * byte_count))


def _release(waiting: deque[tuple[InputFile, ObjectHandle | None]]) -> Iterator[InputFile]:
    file, handle = waiting.popleft()
    yield file
    if handle is not None:
        handle.close()


def list_requests(files: Iterable[InputFile]) -> list[Requests]:
    of_files = (file.opener.requests for file in files if isinstance(file.opener, ObjectFile))
    return list({id(requests): requests for requests in of_files}.values())
