"""Files that are read at any place, and shards that are files of their own, written to their end."""

from __future__ import annotations

from abc import abstractmethod
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from recshuf.errors import InputError, MemoryLimitError, RecshufError
from recshuf.interfaces import Sink, Target
from recshuf.records.conforming import MisfitError
from recshuf.system.units import format_size, round_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import ExitStack
    from io import FileIO
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from recshuf.interfaces import Handle


DAMAGED = "fetch or write the file again"
_BESIDE_BYTES = 20 * 10**6
"""What a run needs at least besides what is read of a file at once."""


def check_memory(
    name: str, what: str, needed: int, memory_bytes: int | None, remedy: str = "raise --memory"
) -> None:
    """Refuse what needs more memory than a run has; the message counts what the run needs besides, too."""
    if memory_bytes is not None and needed > memory_bytes:
        raise MemoryLimitError(
            f"{name}: reading {what} needs at least {format_size(round_up(needed + _BESIDE_BYTES))} of memory, "
            f"and the limit is {format_size(memory_bytes)}; {remedy}"
        )


@contextmanager
def explained(
    name: str,
    problem: str,
    place: str | Callable[[], str] | None = None,
    remedy: str = DAMAGED,
    faults: type[Exception] | tuple[type[Exception], ...] = Exception,
) -> Iterator[None]:
    """Turn what a library says of a bad file into an `InputError` that names it."""
    try:
        yield
    except RecshufError:
        raise
    except MisfitError as error:
        raise explain_misfit(error, name, place() if callable(place) else place) from error
    except faults as error:
        said = " ".join(str(error).split())[:300]
        place = place() if callable(place) else place
        raise InputError(name, f"{problem}: {said}", place=place, remedy=remedy) from error


def explain_misfit(error: MisfitError, name: str, place: str | None) -> InputError:
    """Return the error for a value that the type which unites those of its column in all inputs does not hold."""
    problem = f"a value does not fit the type that its column has in all inputs together: {error}"
    return InputError(name, problem, place=place, remedy="correct it, or shuffle the files apart")


def fill(handle: Handle, offset: int, into: NDArray[np.uint8]) -> int:
    """Fill an array with the bytes of a file from `offset` on, and return how many are missing."""
    view = into.data
    while view and (got := handle.readinto_at(offset, view)):
        offset, view = offset + got, view[got:]
    return len(view)


def write_all(file: FileIO, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


class FileSink(Sink):
    """A shard in files that stay open until it is complete. A subclass opens them, and counts its records in `_count`."""

    _count = 0

    def __init__(self, files: ExitStack) -> None:
        self._files: ExitStack | None = files.pop_all()

    @property
    def record_count(self) -> int:
        return self._count

    @abstractmethod
    def _complete(self) -> None:
        """Write what is known at the end only."""

    def close(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            with files:
                self._complete()

    def abort(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            with suppress(OSError, ValueError):
                files.close()


class FileTarget(Target):
    """Opens shards that one thread writes, each by a call of `open_sink`; a sink takes so much memory."""

    def __init__(self, suffix: str, open_sink: Callable[[Path], Sink], sink_bytes: int) -> None:
        self.suffix, self._open_sink, self._sink_bytes = suffix, open_sink, sink_bytes

    def sink_bytes(self, threads: int) -> int:  # noqa: ARG002 - one thread writes
        return self._sink_bytes

    def open(self, path: Path, threads: int) -> Sink:  # noqa: ARG002 - as above
        return self._open_sink(path)
