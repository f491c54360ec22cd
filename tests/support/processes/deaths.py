"""Children that die in the middle of a run: before a chosen change to a folder, as if the power had failed.

What a process had not synced is lost in part: of the file that it is about to sync, a part of the last bytes.
"""

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from itertools import count
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

_DIED = 7
_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.link", "os.truncate"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class _Death:
    """Counts the changes of this process to what is in a folder, and ends it before one of them."""

    def __init__(self, folder: Path, step: int) -> None:
        self._folder = str(folder)
        self._left = step
        self._synced: dict[tuple[int, int], int] = {}
        self._fsync = os.fsync
        os.fsync = self._sync
        sys.addaudithook(self._hear)

    def _hear(self, event: str, given: tuple[Any, ...]) -> None:
        is_change = event in _CHANGES or (event == "open" and (given[2] or 0) & _WRITES)
        if not is_change or isinstance(given[0], int):
            return
        path = os.fsdecode(given[0])
        if not os.path.isabs(path) or path.startswith(self._folder):  # noqa: PTH117 - a text
            self._step()

    def _sync(self, file: Any) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()
        found = os.fstat(descriptor)
        key = found.st_dev, found.st_ino
        self._step(lambda: os.truncate(descriptor, (self._synced.get(key, 0) + found.st_size) // 2))
        self._synced[key] = found.st_size
        self._fsync(file)

    def _step(self, lose: Callable[[], None] = lambda: None) -> None:
        self._left -= 1
        if self._left < 0:
            try:
                lose()
            except OSError:  # a folder, or a file that is only read
                pass
            finally:
                os._exit(_DIED)


def dies(function: Callable[[], object], folder: Path, step: int) -> bool:
    """Call a function in a child that dies before its change number `step` to a folder; return whether it came to that."""

    def arm() -> None:
        _Death(folder, step)

    return _call_in_child(function, arm)


def dies_after_notes(function: Callable[[], object], entries: int) -> bool:
    """Call a function in a child that dies when its run has noted so many entries in its journal."""
    whole = os.open

    def open_or_die(path: Any, flags: int, *given: Any, **options: Any) -> int:
        if os.fsdecode(path).endswith("journal.jsonl") and flags & os.O_RDWR and next(left) == 0:
            os._exit(_DIED)
        return whole(path, flags, *given, **options)

    def arm() -> None:
        os.open = open_or_die

    left = iter(range(entries, -1, -1))
    return _call_in_child(function, arm)


def _call_in_child(function: Callable[[], object], arm: Callable[[], None]) -> bool:
    """Return whether a child died, as it was armed to."""
    child = os.fork()
    if not child:
        try:
            arm()
            function()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, _DIED)
    return code == _DIED


def die_everywhere(
    function: Callable[[], object], folder: Path, *, every: int = 1, first: int = 0
) -> Iterator[int]:
    """Yield the number of each step at which a child that calls a function has died; a folder is as before each time.

    Parameters
    ----------
    every
        One of so many steps, from the first one on.
    """
    aside = folder.with_name(f"{folder.name}-aside")
    shutil.copytree(folder, aside)
    for step in count(first, every):
        shutil.rmtree(folder)
        shutil.copytree(aside, folder)
        if not dies(function, folder, step):
            break
        yield step
    shutil.rmtree(aside)


# Processes that change a pile store and are killed at any moment


def fork(job: Callable[[], object]) -> tuple[int, int]:
    """Begin a job in a child, and return its number and a pipe that ends with it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    code = 1
    try:
        job()
        code = 0
    except BaseException:  # the child must not go on as its parent
        traceback.print_exc(file=sys.stderr)
    os._exit(code)


def join(child: tuple[int, int], seconds: float | None = None) -> int:
    """Wait for a child, killed after some seconds, and return its exit code; negative for a signal."""
    number, pipe = child
    if not wait([pipe], seconds):
        os.kill(number, signal.SIGKILL)
    os.close(pipe)
    return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])


def list_files(store: Path) -> set[str]:
    """Return the names of all files of a store, its one snapshot without the number."""
    names = sorted(path.relative_to(store).as_posix() for path in store.rglob("*") if path.is_file())
    assert sum(name.startswith("snapshot-") for name in names) == 1
    return {"snapshot" if name.startswith("snapshot-") else name for name in names}
