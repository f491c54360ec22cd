"""Regions of pile sets on a disk of this machine, for stores that are far away. All processes of the machine share them.

    DIR/recshuf-regions/
        used                        bytes of all regions, in digits; its lock is held while they are counted
        parts/STORE.SET.BEGIN       a region that is being fetched; its lock is held meanwhile
        STORE/SET.CHECKSUM/BEGIN    a region, or a part of one, by the byte of its set where it begins

Who needs a region that is missing locks its part, looks again, fetches it, and renames the part. A part without a lock was
left by a process that died; whoever opens the cache, or makes room in it, deletes it. The time of a file is that of its
latest use. Slices have checksums, so nothing is synced: what a power failure has damaged is fetched again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
import warnings
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf.errors import DamagedSetError, RecshufError, RecshufWarning, UsageError
from recshuf.piles.set_folder import LocalPileFile, PileFile
from recshuf.storage.reading.read_ahead import divide
from recshuf.system.buffers import allocate
from recshuf.system.files import open_more, read_ahead, try_exclusive, unlink_unless_locked
from recshuf.system.paths import free_bytes, local_path, naming_errors, refuse_below_file
from recshuf.system.threads import TransientPool
from recshuf.system.units import format_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    import numpy as np
    from numpy.typing import NDArray

    from recshuf.system.buffers import Allocate

    Region = NDArray[np.uint8]


AHEAD_BYTES = 64 << 20
"""Most bytes that are expected at once."""
_PIECE_BYTES = 4 << 20
"""Bytes of a request of several for a region; `divide` lets it have a quarter more."""
_THREADS = 12
"""So many regions are fetched ahead at once, each of which has a piece in memory: 60 MB of all."""
_FREED_SHARE = 16
"""One part in so many of the cache is freed at once, since all files are looked at."""
_PATIENCE_SECONDS = 60.0
"""A process that holds a lock for longer has been stopped."""
_STEP_SECONDS = 0.002
_DIGITS = 20


class RegionCache:
    """Regions on a local disk. Used by many threads and processes.

    Parameters
    ----------
    place
        Folder, which is made if it does not exist. Other files in it stay.
    most_bytes
        Most bytes of all regions. Default: half of the free space, which includes what is in the cache already.
    """

    def __init__(self, place: str | os.PathLike[str], most_bytes: int | None = None) -> None:
        self.place = local_path(place).absolute()
        self._folder = self.place / "recshuf-regions"
        self._parts = self._folder / "parts"
        self._given = most_bytes
        self._keeps = True
        """Whether there was no error yet."""
        self._process, self._pool = os.getpid(), TransientPool(_THREADS, "regions")
        self._first: list[Future[None]] = []
        """Those that others wait for."""
        self._begun: dict[str, Future[None] | None] = {}
        """What is expected, by the paths. None if it is in place."""
        with naming_errors(str(self.place), self.place):
            refuse_below_file(self._folder, "cache")
            self._parts.mkdir(parents=True, exist_ok=True)
            self._remove_parts()
            with self._counting() as used:
                half = ((free_bytes(self._folder) or 0) + used[0]) // 2
            self.most_bytes = half if most_bytes is None else most_bytes

    def __reduce__(self) -> tuple[object, ...]:
        return RegionCache, (self.place, self.most_bytes)

    def hold(self, group_bytes: int) -> None:
        """Have room for a group at least; a smaller size is refused if it was given."""
        if self._given is not None and self._given < group_bytes:
            needed = f"{group_bytes} ({format_size(group_bytes)}), the bytes of a group"
            raise UsageError(f"cache_bytes={self._given}: give at least {needed}")
        self.most_bytes = max(self.most_bytes, group_bytes)

    def wrap(self, file: PileFile, store: str, name: str) -> PileFile:
        """Return a set of a store whose regions are kept. No other set of the store ever had the name."""
        return CachedPileFile(file, self, f"{self._folder / store / name}/", f"{self._parts / store}.{name}.")

    def keep(self, part: str, path: str, size: int, fetch: Callable[[int, int], bytes | memoryview]) -> None:
        """Put a region in place, unless it is there when nobody else fetches it any more, or cannot be kept.

        `fetch` returns bytes of it, from one to another. No more of them are in memory than those of a piece.
        """
        descriptor = None
        with self._noting_errors():
            descriptor = self._lock_part(part, path, size)
        if descriptor is None:
            return
        is_in_place = False
        step = divide(size, _PIECE_BYTES)
        try:
            with self._noting_errors():
                for begin in range(0, size, step):
                    _write(descriptor, memoryview(fetch(begin, min(size, begin + step))), begin)
                os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120 - text, as it is for each region
                os.rename(part, path)  # noqa: PTH104 - as above
                is_in_place = True
        finally:
            if is_in_place:  # another process may have begun to fetch it again
                os.close(descriptor)
            else:
                _discard(part, descriptor)

    def _lock_part(self, part: str, path: str, size: int) -> int | None:
        """Return a descriptor of a new part, whose bytes are counted; None if the region is in place or not to be kept."""
        if size > self.most_bytes or not self._keeps:
            return None
        self._parts.mkdir(parents=True, exist_ok=True)
        descriptor, is_new = _lock(Path(part)), False
        try:
            if not os.path.exists(path):  # noqa: PTH110 - as above
                os.ftruncate(descriptor, size)  # to be counted, also by others
                with self._counting() as used:
                    used[0] = used[0] + size if used[0] + size <= self.most_bytes else self._make_room(size)
                is_new = True
            return descriptor if is_new else None
        finally:
            if not is_new:
                _discard(part, descriptor)

    @contextmanager
    def _counting(self) -> Iterator[list[int]]:
        """Give the bytes of all regions and parts, to be changed while no other process counts them."""
        descriptor = _lock(self._folder / "used")
        try:
            text = os.pread(descriptor, _DIGITS, 0)
            used = [int(text) if text.isdigit() else self._list()[0]]
            yield used
            os.pwrite(descriptor, b"%0*d" % (_DIGITS, used[0]), 0)
        finally:
            # A process that was forked meanwhile has the descriptor, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def _make_room(self, size: int) -> int:
        """Delete the regions used least recently if there are too many; return the bytes of the others, and of parts.

        Nobody needs to know where a process died: all files are looked at.
        """
        self._remove_parts()
        used, regions = self._list()
        if used > self.most_bytes:
            most = max(self.most_bytes - self.most_bytes // _FREED_SHARE, size)
            for _, own, path in sorted(regions):
                if used <= most:
                    break
                with suppress(FileNotFoundError):
                    os.unlink(path)  # noqa: PTH108 - as above
                used -= own
        return used

    def _list(self) -> tuple[int, list[tuple[int, int, str]]]:
        """Return the bytes of all regions and parts, and the time, bytes and path of each region."""
        used, regions = 0, list[tuple[int, int, str]]()
        for store in _scan(self._folder):
            for one in _scan(store.path):
                if store.name == self._parts.name:
                    used += _find_status(one)[1]
                    continue
                for file in _scan(one.path):
                    if file.name.isdigit():  # others are not ours
                        when, own = _find_status(file)
                        used += own
                        regions.append((when, own, file.path))
        return used, regions

    def _remove_parts(self) -> None:
        """Delete what processes were fetching when they died."""
        for part in _scan(str(self._parts)):
            unlink_unless_locked(Path(part.path))

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        """Keep no more regions after an error of the system, and say so."""
        try:
            yield
        except RecshufError:  # of what is fetched
            raise
        except OSError as error:
            if self._keeps:
                self._keeps = False
                self.warn(
                    f"{self.place}: {error.strerror or error}; reading goes on, and no more regions are kept there"
                )

    def warn(self, message: str) -> None:
        warnings.warn(message, RecshufWarning, stacklevel=2)

    def begin(self, path: str, size: int, fetch: Callable[[], object]) -> None:
        """Have a thread fetch a region that will be read, or the system read it ahead."""
        if self._process != os.getpid():  # threads do not survive a fork
            self._process, self._pool = os.getpid(), TransientPool(_THREADS, "regions")
            self._begun, self._first = {}, []
        if path in self._begun:
            return
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._begun[path] = self._pool.submit(partial(_call_after, self._first, fetch))
        else:
            read_ahead(descriptor, 0, size)
            os.close(descriptor)
            self._begun[path] = None

    def hasten(self) -> None:
        """Let what was begun so far not share the link with what follows."""
        self._first = [one for one in self._begun.values() if one is not None]

    def await_begun(self, path: str) -> None:
        """Wait until a thread of this process has fetched a region; one that has not begun will not."""
        future = self._begun.pop(path, None) if self._process == os.getpid() else None
        if future is not None and not future.cancel():
            wait([future])

    def cancel(self, folder: str) -> None:
        for path in list(self._begun):
            if path.startswith(folder) and (future := self._begun.pop(path, None)) is not None:
                future.cancel()


class CachedPileFile(PileFile):
    """A set of a store, whose regions are kept in a cache: their paths begin with `folder`, those of their parts with `part`."""

    def __init__(self, file: PileFile, cache: RegionCache, folder: str, part: str) -> None:
        super().__init__(file.name, file.remedy)
        self._file, self._cache = file, cache
        self._folder, self._part = folder, part

    @property
    def size(self) -> int:
        return self._file.size

    def read(self, offset: int, size: int, memory: Allocate = allocate) -> Region:
        self._cache.await_begun(f"{self._folder}{offset}")
        found = self._find(offset, size, memory)
        if found is None:
            self._fetch(offset, size)
            found = self._find(offset, size, memory)
        return self._file.read(offset, size, memory) if found is None else found

    def _find(self, offset: int, size: int, memory: Allocate) -> Region | None:
        """Return a region of the cache; None if it is not there."""
        path = f"{self._folder}{offset}"
        try:
            descriptor = open_more(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            return None
        try:
            now = time.time_ns()  # the system's own is that of its last tick
            with suppress(OSError):
                os.utime(descriptor, ns=(now, now))
            return LocalPileFile(descriptor, path, os.close, "").read(0, size, memory)
        except (OSError, DamagedSetError):
            self.distrust(offset)
        finally:
            os.close(descriptor)
        return None

    def _fetch(self, offset: int, size: int) -> None:
        """Keep a region from now on, if that is possible."""

        def fetch(begin: int, end: int) -> bytes | memoryview:
            return self._file.get(offset + begin, offset + end)

        self._cache.keep(f"{self._part}{offset}", f"{self._folder}{offset}", size, fetch)

    def distrust(self, offset: int) -> bool:
        path = f"{self._folder}{offset}"
        try:
            os.unlink(path)  # noqa: PTH108 - text, as it is for each region
        except OSError:
            return False
        self._cache.warn(f"{path}: does not read back as it was written; it is fetched again")
        return True

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        for offset, size in ranges:
            self._cache.begin(f"{self._folder}{offset}", size, partial(self._fetch, offset, size))

    def forget(self) -> None:
        self._cache.cancel(self._folder)
        self._file.forget()

    def _read_into(self, view: memoryview, offset: int) -> int:
        return self._file._read_into(view, offset)  # noqa: SLF001 - of the same class

    def close(self) -> None:
        self.forget()
        self._file.close()


def _call_after(first: Sequence[Future[None]], function: Callable[[], object]) -> None:
    wait(first)
    function()


def _lock(path: Path) -> int:
    """Return a descriptor of a file, made if it does not exist, that holds its lock; wait for that, but not for ever."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while (descriptor := try_exclusive(path)) is None:
        if time.monotonic() > deadline:
            raise TimeoutError(
                errno.ETIMEDOUT, "another process, which may be stopped, holds a lock there", str(path)
            )
        time.sleep(_STEP_SECONDS)
    return descriptor


def _discard(part: str, descriptor: int) -> None:
    with suppress(OSError):
        os.unlink(part)  # noqa: PTH108 - text, as it is for each region
    os.close(descriptor)


def _write(descriptor: int, content: memoryview, begin: int) -> None:
    done = 0
    while done < len(content):
        done += os.pwrite(descriptor, content[done:], begin + done)


def _scan(folder: str | Path) -> list[os.DirEntry[str]]:
    """Return what is in a folder; nothing if it is none, or gone."""
    with suppress(OSError), os.scandir(folder) as entries:
        return list(entries)
    return []


def _find_status(file: os.DirEntry[str]) -> tuple[int, int]:
    """Return the time and bytes of a file; 0 if it is gone."""
    with suppress(OSError):
        status = file.stat(follow_symlinks=False)
        return status.st_mtime_ns, status.st_size
    return 0, 0
