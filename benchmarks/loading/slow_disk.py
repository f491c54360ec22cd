"""A disk slower than this machine's, simulated: `os.preadv` waits for the bytes that have not come in yet."""

from __future__ import annotations

import io
import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from benchmarks.loading.floors import cut, name_file
from recshuf.train.loading import compute_ahead

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path
    from typing import Any


class _Disk:
    """Transfers ranges one after the other, and knows when each is there."""

    def __init__(self, bytes_per_second: int) -> None:
        self._speed = bytes_per_second
        self._free = 0.0
        self._ready: dict[tuple[int, int], float] = {}
        self._lock = threading.Lock()

    def transfer(self, descriptor: int, offset: int, size: int) -> float:
        """Return when a range is there; it comes once."""
        with self._lock:
            place = (descriptor, offset)
            if place not in self._ready:
                self._free = max(self._free, time.perf_counter()) + size / self._speed
                self._ready[place] = self._free
            return self._ready[place]


@contextmanager
def slow_reads(bytes_per_second: int) -> Iterator[None]:
    """Let reads wait for a disk, which also reads ahead what it is told to."""
    read, advise, disk = os.preadv, os.posix_fadvise, _Disk(bytes_per_second)

    def read_slowly(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
        ready = disk.transfer(descriptor, offset, sum(map(len, buffers)))
        count = read(descriptor, buffers, offset)
        time.sleep(max(0.0, ready - time.perf_counter()))
        return count

    def advise_slowly(descriptor: int, offset: int, size: int, advice: int) -> None:
        if advice == os.POSIX_FADV_WILLNEED:
            disk.transfer(descriptor, offset, size)

    os.preadv, os.posix_fadvise = read_slowly, advise_slowly
    try:
        yield
    finally:
        os.preadv, os.posix_fadvise = read, advise


class _File(io.RawIOBase):
    """A file that is read through `os.preadv`."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._size = path.stat().st_size
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._place = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        return self._place

    def readinto(self, buffer: Any, /) -> int:
        count = os.preadv(self._file.fileno(), [buffer], self._place)
        self._place += count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def load_ordered(folder: Path) -> Iterator[Any]:
    """Yield batches of the Arrow file in order; the next records are read meanwhile, as the system would."""
    with pa.PythonFile(_File(name_file(folder)), "r") as source:
        file = pa.ipc.open_file(source)
        for records in compute_ahead(file.get_batch, range(file.num_record_batches), 2):
            yield from cut(records)
