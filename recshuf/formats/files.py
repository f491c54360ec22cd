"""What formats share: names of parts, errors of files, options of several arrays, files read at any place, shards written to their end."""

from __future__ import annotations

import shlex
import stat
from abc import abstractmethod
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedWriter
from typing import TYPE_CHECKING, Any, BinaryIO

from recshuf.errors import InputError, MemoryLimitError, RecshufError
from recshuf.interfaces import (
    Format,
    FormatOption,
    ReadOptions,
    Sink,
    StoredInputs,
    TableDecoder,
    Target,
    load_named,
)
from recshuf.system.files import BehindFile
from recshuf.system.units import format_size, round_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from io import FileIO
    from pathlib import Path

    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.interfaces import Decoder, Handle, InputFile, Source, WriteOptions
    from recshuf.records.conforming import MisfitError


BUFFER_BYTES = 1 << 20
"""Memory of the file of a `BufferedTarget`."""
DAMAGED = "fetch or write the file again"
_BESIDE_BYTES = 20 * 10**6
"""What a run needs at least besides what is read of a file at once."""
POINTER_BYTES = 64
"""Bytes that `refuse_pointer` needs, if there are so many."""
_POINTERS = {
    b"version https://git-lfs.github.com/spec/": ("Git LFS", "git lfs pull"),
    b"version https://hawser.github.com/spec/": ("Git LFS", "git lfs pull"),
    b"/annex/objects/": ("git-annex", "git annex get ."),
}
_MOST_SHOWN = 3
MOST_LISTED = 12
"""Names that a message lists, or proposes."""
_COMMONEST = "the datasets of the commonest length, or those of --datasets"
_REFUSED = "Default: datasets of several lengths are refused."
DATASETS = FormatOption(
    "datasets",
    "HDF5, NumPy archives: datasets to read; * in a name stands for any letters. Default: all that have a first axis.",
    "A,B", group="Input", is_list=True,
)  # fmt: skip
KEEP_OTHERS = FormatOption(
    "keep_others",
    f"HDF5 and NumPy archives, each to the same format: shuffle {_COMMONEST}, and copy datasets of other lengths unchanged into "
    f"every shard. {_REFUSED}",
    side="native", group="Input",
    elsewhere=(("*", f"HDF5, NumPy archives: the records are {_COMMONEST}; others are kept as wholes. {_REFUSED}"),),
)  # fmt: skip
OTHERS = FormatOption("others", "", "A,B")
"""Paths of the datasets that are copied, if that is known."""
CHOOSE_ONE = "choose one with --columns, or --datasets (HDF5, npz)"
"""Remedy where a format holds one column."""


class LazyFormat(Format):
    """A format whose parts are named as ``package.module:Name``, so that their modules are imported when they are used."""

    source = ""
    """Is called as `open_source`."""
    target = ""
    """Is called as `open_target`."""
    decoder = ""
    """Is called as `restore_decoder`; empty if native batches are tables."""

    def open_source(self, inputs: Sequence[InputFile], options: ReadOptions) -> Source:
        source: Source = load_named(self.source)(inputs, options)
        return source

    def open_target(self, schema: pa.Schema, layout: Any, options: WriteOptions) -> Target:
        target: Target = load_named(self.target)(schema, layout, options)
        return target

    def restore_decoder(self, stored: StoredInputs) -> Decoder:
        if not self.decoder:
            return TableDecoder(stored.schema)
        decoder: Decoder = load_named(self.decoder)(stored)
        return decoder


def stored_of(source: Source) -> StoredInputs:
    """Return what decoders are made of, for records that are read as for those that are kept elsewhere."""
    names = [one.name for one in source.inputs]
    return StoredInputs(source.schema, names, lambda: source.layout, source.options or ReadOptions())


def refuse_pointer(name: str, head: bytes, kind: str = "") -> None:
    """Refuse an input that begins like a pointer: what it points to was not fetched. So is an empty one, of a kind that none is of."""
    if kind and not head:
        raise InputError(name, f"is empty (0 bytes), not {kind}")
    for begin, (what, command) in _POINTERS.items():
        if head.startswith(begin):
            raise InputError(
                name,
                f"is a pointer of {what}, and not the file that it stands for",
                remedy=f"fetch that with {command} in its repository",
            )


def check_regular(file: InputFile, kind: str) -> None:
    """Refuse a stream, as files of a kind have places, and pipes and devices, which could block forever."""
    remedy = "save it to a file first"
    if file.is_stream:
        raise InputError(file.name, f"is a stream, and {kind} is read from files", remedy=remedy)
    if file.path and file.stamp is None:
        with suppress(OSError):  # as opening it will say
            mode = file.path.stat().st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise InputError(file.name, f"is not a regular file, which {kind} needs", remedy=remedy)


def shorten(names: Sequence[str], count: int | None = None, most: int = _MOST_SHOWN) -> str:
    """Return the first names and the number of further ones, of `count` in all, for a message."""
    shown = names[:most]
    rest = (len(names) if count is None else count) - len(shown)
    return ", ".join(shown) + (f" and {rest:,} more" if rest else "")


def write_flag(names: Sequence[str]) -> str | None:
    """Return an option that names datasets, as a shell takes it; None if that is not possible, or too long."""
    if len(names) > MOST_LISTED or any("," in name or not name.isprintable() for name in names):
        return None
    return f"--datasets {shlex.quote(','.join(names))}"


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
    except faults as error:
        from recshuf.records.conforming import MisfitError  # plans do without pyarrow

        place = place() if callable(place) else place
        if isinstance(error, MisfitError):
            raise explain_misfit(error, name, place) from error
        said = " ".join(str(error).split())[:300]
        raise InputError(name, f"{problem}: {said}", place=place, remedy=remedy) from error


def explain_misfit(error: MisfitError, name: str, place: str | None) -> InputError:
    """Return the error for a value that the type which unites those of its column in all inputs does not hold."""
    problem = f"a value does not fit the type that its column has in all inputs together: {error}"
    return InputError(name, problem, place=place, remedy="correct it, or shuffle the files apart")


def fill(handle: Handle, offset: int, into: NDArray[np.uint8], name: str) -> None:
    """Fill an array with the bytes of a file, which was long enough when it was looked at, from `offset` on."""
    view = into.data
    while view and (got := handle.readinto_at(offset, view)):
        offset, view = offset + got, view[got:]
    if view:
        raise changed(name)


def changed(name: str) -> InputError:
    return InputError(name, "changed while it was read", remedy="run again when nobody writes to it")


def write_all(file: FileIO | BinaryIO, data: bytes | bytearray | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) or 0 :]


class FileSink(Sink):
    """A shard in what stays open until it is complete. A subclass, or who makes it, opens that; it counts its records in `_count`."""

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
        if self._files is None:
            return
        try:
            self._complete()
        except BaseException:
            self.abort()
            raise
        files, self._files = self._files, None
        files.close()

    def abort(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            with suppress(OSError, ValueError):
                files.close()


class BufferedTarget(Target):
    """Opens shards that are written from their beginning to their end, each to a file or a stream."""

    def __init__(self, *, drop_page_cache: bool) -> None:
        self._drop_page_cache = drop_page_cache

    @abstractmethod
    def _open(self, stream: BinaryIO, threads: int, files: ExitStack) -> Sink:
        """Return a sink, which has the files, and flushes the stream at its end."""

    def open(self, path: Path, threads: int) -> Sink:
        with ExitStack() as files:
            file = BehindFile(path, "xb", drop_page_cache=self._drop_page_cache)
            return self._open(files.enter_context(BufferedWriter(file, BUFFER_BYTES)), threads, files)

    def open_stream(self, stream: BinaryIO, threads: int) -> Sink:
        return self._open(stream, threads, ExitStack())


class FileTarget(Target):
    """Opens shards that one thread writes, each by a call of `open_sink`; a sink takes so much memory."""

    def __init__(self, suffix: str, open_sink: Callable[[Path], Sink], sink_bytes: int) -> None:
        self.suffix, self._open_sink, self._sink_bytes = suffix, open_sink, sink_bytes

    def sink_bytes(self, threads: int) -> int:  # noqa: ARG002 - one thread writes
        return self._sink_bytes

    def open(self, path: Path, threads: int) -> Sink:  # noqa: ARG002 - as above
        return self._open_sink(path)
