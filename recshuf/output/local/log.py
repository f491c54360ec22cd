"""The journal and the task folder of a run in its work folder: a file with a line for each entry, a file for each result.

Finished shards are synced to disk in the background, while the next ones are written.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

from recshuf.errors import OutputError
from recshuf.output.manifest import WrittenFile, find_checksum
from recshuf.output.run_log import (
    RunLog,
    TaskResults,
    decode_sealed,
    encode_sealed,
    is_header,
    is_result,
    list_apart,
)
from recshuf.system.files import (
    begin_writing,
    drop_file_pages,
    format_line,
    lock_folder,
    parse_line,
    place_file,
    sync,
    sync_file_system,
)
from recshuf.system.paths import naming_errors
from recshuf.system.threads import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from recshuf.output.entries import FinishedShard
    from recshuf.output.run_log import Entry


T = TypeVar("T")
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
MANY = 32
"""So many waiting shards are synced at once: 5,000 shards of a few records took 5 s, and 21 one by one."""


class FileLog(RunLog):
    """The journal in a work folder."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._lock = threading.Lock()
        self._ends_well = False
        """Whether the last entry is known to be complete."""

    def read(self) -> list[Entry]:
        try:
            lines = self.path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return []
        entries = [parse_line(line) for line in lines]
        return [entry for entry in entries if entry is not None] if is_header(entries[0]) else []

    def note(self, entry: Entry) -> None:
        text = format_line(entry)
        with (
            self._lock,
            naming_errors(str(self.path), self.path.parent),
            os.fdopen(os.open(self.path, _APPEND, 0o666), "ab", buffering=0) as file,
        ):
            start = b"" if self._ends_well else self._mend(file)
            line = memoryview(start + text)
            self._ends_well = False
            while line:
                line = line[file.write(line) :]
            self._ends_well = True
            self._take(entry)

    def _mend(self, file: BinaryIO) -> bytes:
        """Return what has to follow the last entry, which a killed run may have left incomplete.

        Without the first entry nothing is read: the journal is begun anew. Only who holds the lock of the run appends.
        """
        if not self.read():
            file.truncate(0)
            return b""
        with self.path.open("rb") as written:
            written.seek(-1, 2)
            return b"" if written.read() == b"\n" else b"\n"


def read_own(path: Path, parse: Callable[[bytes], T]) -> T | None:
    """Return what a file of a run holds; None if it is not there."""
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise OutputError(
            f"{path}: cannot be read: {error.strerror}; make it readable, or delete it"
        ) from error
    except Exception as error:  # what a damaged pickle raises is not known
        raise OutputError(f"{path}: is damaged; delete it") from error


class FileResults(TaskResults):
    """A folder in the work folder of a run, which all machines share."""

    def __init__(self, path: Path) -> None:
        self.path = self.private = path
        self.address = str(path.absolute())

    @property
    def removal(self) -> str:
        return " and ".join([f"delete {self.path.parent}", *list_apart([self.find_sets()])])

    def make(self) -> None:
        self.path.mkdir(exist_ok=True)

    @contextmanager
    def share(self, output: str) -> Iterator[None]:
        """Make it, and hold the lock of the work folder together with other tasks."""
        work = self.path.parent
        work.parent.mkdir(parents=True, exist_ok=True)
        descriptor = lock_folder(work, output, is_shared=True)
        try:
            self.make()
            yield
        finally:
            os.close(descriptor)

    def count(self) -> int:
        try:
            names = os.listdir(self.path)  # noqa: PTH208 - names are wanted
        except FileNotFoundError:
            return 0
        return sum(map(is_result, names))

    def read(self, name: str) -> Any:
        return read_own(self._path_of(name), decode_sealed)

    def place(self, name: str, values: dict[str, Any]) -> Any:
        place_file(self._path_of(name), encode_sealed(values))
        return self.read(name)

    def remove(self, name: str) -> None:
        self._path_of(name).unlink(missing_ok=True)

    def _path_of(self, name: str) -> Path:
        return self.path / f"{name}.json"


class ShardSyncer:
    """Syncs shards in one thread, and calls `on_synced` with each.

    Starts to write all waiting shards before it syncs the first, so that one commit of the file system's journal serves
    them all. Many small ones are synced with their whole file system.
    """

    def __init__(self, on_synced: Callable[[FinishedShard], None] | None, *, drop_page_cache: bool) -> None:
        self._on_synced = on_synced
        self._drop_page_cache = drop_page_cache
        self._pool = Pool(1, "sync")
        self._waiting: deque[tuple[Path, FinishedShard]] = deque()
        self._problem: BaseException | None = None
        self._is_closed = False

    def open_stream(self, name: str, shard_bytes: int) -> None:
        """Return None: shards are files."""

    def add(self, path: Path, shard: FinishedShard) -> None:
        self._raise_problem()
        self._waiting.append((path, shard))
        self._pool.submit(self._sync_waiting)

    def finish(self) -> None:
        self._pool.shutdown()
        self._raise_problem()

    def close(self) -> None:
        self._is_closed = True
        self._pool.shutdown()

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise self._problem

    def _sync_waiting(self) -> None:
        shards = [self._waiting.popleft() for _ in range(len(self._waiting))]
        try:
            are_synced = len(shards) >= MANY and sync_file_system(shards[0][0])
            for step in (self._finish,) if are_synced else (self._begin, self._sync):
                for path, shard in shards:
                    if self._is_closed:
                        return
                    step(path, shard)
        except BaseException as error:  # raised again in `add` and `finish`
            self._is_closed = True
            self._problem = error

    @staticmethod
    def _begin(path: Path, shard: FinishedShard) -> None:
        for one in _list_paths(path, shard):
            begin_writing(one)

    def _sync(self, path: Path, shard: FinishedShard) -> None:
        for one in _list_paths(path, shard):
            sync(one)
        self._finish(path, shard)

    def _finish(self, path: Path, shard: FinishedShard) -> None:
        paths = _list_paths(path, shard)
        if self._on_synced is not None:
            (_, size, checksum), *others = [
                WrittenFile(file.name, one.stat().st_size, find_checksum(one))
                for file, one in zip(shard.files, paths, strict=True)
            ]
            self._on_synced(replace(shard, byte_count=size, checksum=checksum, companions=tuple(others)))
        if self._drop_page_cache:
            for one in paths:
                drop_file_pages(one)


def _list_paths(path: Path, shard: FinishedShard) -> list[Path]:
    return [path, *(path.with_name(PurePath(one.name).name) for one in shard.companions)]
