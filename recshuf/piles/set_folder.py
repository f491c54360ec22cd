"""Where pile sets lie: files that go with the process, and kept ones for later runs and other tasks."""

from __future__ import annotations

import errno
import os
import shlex
import threading
from abc import ABC, abstractmethod
from contextlib import nullcontext, suppress
from typing import TYPE_CHECKING

from recshuf.errors import DamagedSetError, OutputError
from recshuf.system.buffers import allocate
from recshuf.system.files import open_more, read_ahead
from recshuf.system.paths import WriteMessages, open_regular, write_error

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from recshuf.system.buffers import Allocate


RUN_REMEDY = "run again with another --temp-dir"


def remake_store(store: str) -> str:
    """Return the advice for a damaged store, given its path or URL. Nothing is written to it while it is there.

    >>> remake_store("my store")
    "delete the store with recshuf store drop 'my store', and make it again"
    """
    return f"delete the store with recshuf store drop {shlex.quote(store)}, and make it again"


class PileFile(ABC):
    """A file of a pile set. Many threads may use it. Its name, and what to do if it is damaged, are for messages."""

    def __init__(self, name: str, remedy: str = RUN_REMEDY) -> None:
        self.name = name
        self.remedy = remedy

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of bytes."""

    def read(self, offset: int, size: int, memory: Allocate = allocate) -> NDArray[np.uint8]:
        """Return bytes of the file, in memory of their own."""
        region = memory(size, offset)
        view = region.data
        done = 0
        while done < size:
            count = self._read_into(view[done:], offset + done)
            if not count:
                raise DamagedSetError(
                    self.name, f"ends at byte {offset + done}, before the end of a region", self.remedy
                )
            done += count
        return region

    def get(self, begin: int, end: int) -> bytes | memoryview:
        """Return bytes of the file, which were not expected."""
        return self.read(begin, end - begin).data

    @abstractmethod
    def _read_into(self, view: memoryview, offset: int) -> int:
        """Read some bytes of the file, and return how many; 0 at its end."""

    @abstractmethod
    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Note that these offsets and sizes will be read."""

    def forget(self) -> None:  # noqa: B027 - the system reads ahead on disks
        """Note that nothing of what was expected will be read."""

    def distrust(self, offset: int) -> bool:  # noqa: ARG002 - for files of which copies are kept
        """Note that what was read there is damaged; return whether it may be sound when it is read again."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Close it. Idempotent."""


class LocalPileFile(PileFile):
    """A file of this machine, whose descriptor `release` closes."""

    def __init__(
        self, descriptor: int, path: str | Path, release: Callable[[int], None], remedy: str
    ) -> None:
        super().__init__(str(path), remedy)
        self._descriptor = descriptor
        self._release = release

    @property
    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def _read_into(self, view: memoryview, offset: int) -> int:
        return os.preadv(self._descriptor, [view], offset)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        for offset, size in ranges:
            read_ahead(self._descriptor, offset, size)

    def close(self) -> None:
        self._release(self._descriptor)


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
SET_MODE = 0o666
"""Permissions of the files of a store, before the umask."""
_NO_NAMELESS_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)


class SetFolder:
    """The files of a run's pile sets, on a disk.

    Parameters
    ----------
    parent
        Folder for unnamed files, which the system deletes when the process ends.
    kept
        Folder for files that a later run or another task may read, made with the first of them. None for none.
    earlier
        Other folders of kept files, which are read if `kept` lacks them: the first that has one.
    needed_bytes
        Expected bytes, for messages.
    shown
        Folder to name in messages. Default: `parent`.
    of_store
        Whether kept files are those of a store.
    """

    ahead_bytes = 0
    """Bytes of all kept files to fetch before they are read; on disks the system does."""
    are_sent = False
    """Whether `keep` sends kept files elsewhere, and deletes them here."""
    tail_bytes = 0
    """Bytes at the end of each kept file to fetch when it is opened, for its footer."""

    def __init__(
        self,
        parent: Path,
        kept: Path | None = None,
        earlier: Sequence[Path] = (),
        needed_bytes: int = 0,
        shown: Path | None = None,
        *,
        of_store: bool = False,
    ) -> None:
        self.parent = parent
        self.kept = kept
        self._earlier = earlier
        self._needed_bytes = needed_bytes
        self._shown = shown or parent
        self._of_store = of_store
        self._lock = threading.Lock()
        self._open: set[int] = set()

    def create(self, name: str | None = None) -> tuple[int, Path]:
        """Create a file, named if there is a folder for kept files, and return descriptor and path."""
        with self._lock:
            try:
                if name is None or self.kept is None:
                    path = self.parent
                    descriptor = _open_nameless(path)
                else:
                    path = self.make_kept() / name
                    path.unlink(missing_ok=True)  # left unfinished by an earlier run
                    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                    descriptor = os.open(path, flags, SET_MODE if self._of_store else 0o600)
            except OSError as error:
                raise self.explain(error) from error
            self._open.add(descriptor)
            return descriptor, path

    def make_kept(self) -> Path:
        """Return the folder for kept files, which exists then."""
        kept = self._find_kept()
        try:
            kept.mkdir(mode=0o700, exist_ok=True)
        except FileNotFoundError:
            raise OutputError(f"{self._shown}: another process has deleted it meanwhile; run again") from None
        return kept

    def _find_kept(self) -> Path:
        if self.kept is None:
            raise FileNotFoundError(errno.ENOENT, "no folder for kept files")
        return self.kept

    def know(self, sizes: Mapping[str, int]) -> None:
        """Note which kept files there are, and their bytes."""

    def hasten(self) -> None:
        """Note that what was expected so far is waited for, which other reads may not delay."""

    def reopen(self, name: str) -> PileFile:
        """Open a kept file of an earlier run, or of another task."""
        kept = self._find_kept()
        paths = [folder / name for folder in (kept, *self._earlier)]
        path = next((path for path in paths if path.exists()), paths[0])
        descriptor = open_more(lambda: open_regular(path))
        remedy = f"{remake_store(str(kept.parent))} on another disk" if self._of_store else RUN_REMEDY
        with self._lock:
            self._open.add(descriptor)
        return LocalPileFile(descriptor, path, self.release, remedy)

    def explain(self, error: OSError) -> OutputError:
        """Return the error to raise when writing failed."""
        messages = STORE_MESSAGES if self._of_store and self.parent == self.kept else _MESSAGES
        return write_error(error, str(self._shown), self.parent, self._needed_bytes, messages)

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

    def keep(self, name: str) -> None:
        """Let other machines read a complete file that was written to the folder of kept ones."""

    # Kept files of tasks. All machines share the folder; the stage of the output deletes it, or the objects.

    def fetch(self, name: str) -> AbstractContextManager[Path]:
        """Give the path of a file that `keep` was given, which is there until the end."""
        return nullcontext(self._path_of(name))

    def show(self, name: str) -> str:
        """Return where a kept file is, for messages."""
        return str(self._path_of(name))

    def discard(self, name: str) -> None:
        """Delete a kept file, if it is there."""
        self._path_of(name).unlink(missing_ok=True)

    def _path_of(self, name: str) -> Path:
        return self._find_kept() / name


def _open_nameless(folder: Path) -> int:
    try:
        return os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NO_NAMELESS_FILES:
            raise
    import tempfile  # few file systems have no files without a name

    descriptor, name = tempfile.mkstemp(prefix=".recshuf-piles-", dir=folder)
    os.unlink(name)  # noqa: PTH108 - a name, no path
    return descriptor
