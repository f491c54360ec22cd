"""Where pile sets lie: files that go with the process, kept files, and the folder that tasks share."""

from __future__ import annotations

import errno
import os
import shlex
import tempfile
import threading
from abc import ABC, abstractmethod
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING, Protocol

from recshuf.errors import DamagedSetError, OutputError
from recshuf.system.buffers import allocate
from recshuf.system.page_cache import open_more, read_ahead
from recshuf.system.paths import WriteMessages, open_regular, write_error

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from recshuf.interfaces import Handle
    from recshuf.system.buffers import Allocate


RUN_REMEDY = "run again with another --temp-dir"


def remake_store(store: Path) -> str:
    """Return the advice for a damaged store. Nothing is written to its path while it is there.

    >>> from pathlib import Path
    >>> remake_store(Path("my store"))
    "delete the store with recshuf store drop 'my store', and make it again"
    """
    return f"delete the store with recshuf store drop {shlex.quote(str(store))}, and make it again"


class PileFile(Protocol):
    """A file of a pile set. Many threads may use it."""

    name: str
    """Path or URL, for messages."""
    remedy: str
    """What to do if it is damaged, for messages."""

    @property
    def size(self) -> int:
        """Number of bytes."""
        ...

    def read(self, offset: int, size: int, memory: Allocate = allocate) -> NDArray[np.uint8]:
        """Return bytes of the file, in memory of their own."""
        ...

    def read_ahead(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note that these offsets and sizes will be read."""
        ...

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note that these offsets and sizes are read next, one after the other."""
        ...

    def close(self) -> None:
        """Close it. Idempotent."""
        ...


class LocalPileFile:
    """A file of this machine; a `PileFile`.

    Parameters
    ----------
    release
        Closes the descriptor.
    """

    def __init__(self, descriptor: int, path: Path, release: Callable[[int], None], remedy: str) -> None:
        self.name = str(path)
        self.remedy = remedy
        self._descriptor = descriptor
        self._release = release

    @property
    def size(self) -> int:
        """Number of bytes."""
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, size: int, memory: Allocate = allocate) -> NDArray[np.uint8]:
        region = memory(size, offset)
        view = region.data
        done = 0
        while done < size:
            count = os.preadv(self._descriptor, [view[done:]], offset + done)
            if not count:
                raise _cut_off(self, offset + done)
            done += count
        return region

    def read_ahead(self, ranges: Sequence[tuple[int, int]]) -> None:
        for offset, size in ranges:
            read_ahead(self._descriptor, offset, size)

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Do nothing: the system reads ahead."""

    def close(self) -> None:
        self._release(self._descriptor)


class ObjectPileFile:
    """An object; a `PileFile`."""

    remedy = RUN_REMEDY

    def __init__(self, handle: Handle, name: str) -> None:
        self.name = name
        self._handle = handle

    @property
    def size(self) -> int:
        """Number of bytes."""
        return self._handle.stamp.size

    def read(self, offset: int, size: int, memory: Allocate = allocate) -> NDArray[np.uint8]:
        region = memory(size, offset)
        count = self._handle.readinto_at(offset, region.data)
        if count < size:
            raise _cut_off(self, offset + count)
        return region

    def read_ahead(self, ranges: Sequence[tuple[int, int]]) -> None:
        self.fetch(ranges)

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        self._handle.expect([(offset, offset + size) for offset, size in ranges])

    def close(self) -> None:
        self._handle.close()


def _cut_off(file: PileFile, offset: int) -> DamagedSetError:
    """Return the error for a file that ends too early."""
    return DamagedSetError(file.name, f"ends at byte {offset}, before the end of a region", file.remedy)


TOO_LARGE = "a scratch file may not grow this large; raise ulimit -f"
_MESSAGES = WriteMessages(
    too_large=TOO_LARGE,
    no_space="no space left for spilled records{room}; give --temp-dir a folder with more space, or raise --memory to spill less",
    other="cannot spill records: {reason}; choose another --temp-dir",
)
STORE_MESSAGES = WriteMessages(
    too_large="a pile set may not grow this large; raise ulimit -f",
    no_space="no space left for the pile set{room}; free some",
)
_NO_NAMELESS_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)


class Scratch:
    """The files of a run's pile sets.

    Parameters
    ----------
    parent
        Folder for unnamed files, which the system deletes when the process ends.
    shown
        Folder to name in messages. Default: `parent`.
    kept
        Folder for files that a later run may adopt, made with the first of them. None for none.
    needed_bytes
        Expected bytes, for messages.
    mode
        Permissions of kept files, before the umask.
    messages
        For failed writes.
    of_store
        Whether kept files are those of a store.
    remedy
        What to do if a file is damaged, for messages; that of a kept one of a store has its own.
    earlier
        Other folders of kept files, which are read if `kept` lacks them: the first that has one.
    """

    ahead_bytes = 0
    """Bytes of all kept files to fetch before they are read; on disks the system does."""

    def __init__(
        self,
        parent: Path,
        shown: Path | None = None,
        kept: Path | None = None,
        needed_bytes: int = 0,
        mode: int = 0o600,
        messages: WriteMessages = _MESSAGES,
        of_store: bool = False,
        remedy: str = RUN_REMEDY,
        earlier: Sequence[Path] = (),
    ) -> None:
        self.parent = parent
        self.kept = kept
        self.remedy = remedy
        """What to do if a new file is damaged."""
        self._shown = shown or parent
        self._needed_bytes = needed_bytes
        self._mode = mode
        self._messages = messages
        self._of_store = of_store
        self._earlier = earlier
        self._lock = threading.Lock()
        self._open: set[int] = set()

    def create(self, name: str | None = None) -> tuple[int, Path]:
        """Create a file, named if there is a folder for kept files, and return descriptor and path."""
        with self._lock:
            try:
                if name is None or self.kept is None:
                    return self._add(_open_nameless(self.parent)), self.parent
                self._make_kept(self.kept)
                path = self.kept / name
                path.unlink(missing_ok=True)  # left unfinished by an earlier run
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                return self._add(os.open(path, flags, self._mode)), path
            except OSError as error:
                raise self.explain(error) from error

    def _make_kept(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:
            raise OutputError(f"{self._shown}: another process has deleted it meanwhile; run again") from None

    def reopen(self, name: str) -> PileFile:
        """Open a kept file of an earlier run."""
        if self.kept is None:
            raise FileNotFoundError(errno.ENOENT, "no folder for kept files")
        paths = [folder / name for folder in (self.kept, *self._earlier)]
        path = next((path for path in paths if path.exists()), paths[0])
        descriptor = open_more(lambda: open_regular(path))
        remedy = f"{remake_store(self.kept.parent)} on another disk" if self._of_store else self.remedy
        with self._lock:
            return LocalPileFile(self._add(descriptor), path, self.release, remedy)

    def _add(self, descriptor: int) -> int:
        self._open.add(descriptor)
        return descriptor

    def explain(self, error: OSError) -> OutputError:
        """Return the error to raise when writing to a scratch file failed."""
        return write_error(error, str(self._shown), self.parent, self._needed_bytes, self._messages)

    def release(self, descriptor: int) -> None:
        """Close one file; an unnamed file is then deleted. Idempotent."""
        with self._lock:
            if descriptor in self._open:
                self._open.remove(descriptor)
                with suppress(OSError):  # contents are verified when they are read
                    os.close(descriptor)

    def close(self) -> None:
        """Close every file. Idempotent."""
        for descriptor in list(self._open):
            self.release(descriptor)


def _open_nameless(folder: Path) -> int:
    """Create a file without a name."""
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NO_NAMELESS_FILES:
            raise
    descriptor, name = tempfile.mkstemp(prefix=".recshuf-piles-", dir=folder)
    os.unlink(name)  # noqa: PTH108 - a name, no path
    return descriptor


class SetFolder(ABC):
    """The pile sets of a run."""

    @abstractmethod
    def open_scratch(self, needed_bytes: int) -> Scratch:
        """Return the scratch of a task, which writes sets there, and reads those of all tasks."""

    @abstractmethod
    def keep(self, path: Path) -> None:
        """Let other machines read a set, or another file, that a task has written to the folder of its sets."""

    @abstractmethod
    def fetch(self, name: str) -> AbstractContextManager[Path]:
        """Give the path of a file that `keep` was given, which is there until the end."""

    @abstractmethod
    def show(self, name: str) -> str:
        """Return where a set or another file is, for messages."""

    @abstractmethod
    def discard(self, name: str) -> None:
        """Delete a set or another file, if it is there."""

    @abstractmethod
    def remove(self) -> None:
        """Delete all sets."""


class LocalSets(SetFolder):
    """Files in a folder, which the transaction of the output deletes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def open_scratch(self, needed_bytes: int) -> Scratch:
        return Scratch(self._folder.parent, kept=self._folder, needed_bytes=needed_bytes)

    def keep(self, path: Path) -> None:
        """Do nothing: the folder is shared."""

    def fetch(self, name: str) -> AbstractContextManager[Path]:
        return nullcontext(self._folder / name)

    def show(self, name: str) -> str:
        return str(self._folder / name)

    def discard(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def remove(self) -> None:
        """Do nothing."""
