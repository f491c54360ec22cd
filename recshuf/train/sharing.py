"""Batches on their way from a worker process to the one that trains: many of them in one parcel.

A parcel is a file in memory without a name, which holds an Arrow stream with one message a batch. What is pickled for a
batch is where its parcel lies and its number there:

    worker     write batches -> parcel 0 | parcel 1 | ...       pickled: (process, descriptor, parcel, number, ...)
    consumer   opens /proc/PROCESS/fd/DESCRIPTOR, maps it, reads one message a batch: its tensors are views of the map

The memory goes with the last process that has it open or mapped, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import weakref
from functools import cache
from itertools import islice
from mmap import mmap
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.train.blocks import make_batch

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

PARCEL_BYTES = 4 << 20
"""About; batches of records that vary much fill more or less."""
_SECONDS_TO_END = 10


class Label(NamedTuple):
    """What a consumer needs to find a batch."""

    process: int
    descriptor: int
    parcel: int
    """Number of the parcel among those of the process."""
    size: int
    """Bytes of the parcel."""
    number: int
    """Of the batch in the parcel."""
    is_last: bool
    """Whether the parcel holds no more."""
    output: str
    """Form of the batch."""


class Parcel:
    """A file in memory with a stream of batches, written by this process.

    Parameters
    ----------
    batches
        Not empty.
    """

    _count = 0

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        Parcel._count += 1
        self.serial = Parcel._count
        self.descriptor = os.memfd_create("recshuf")
        weakref.finalize(self, os.close, self.descriptor).atexit = False
        self.count = len(batches)
        path = f"/proc/self/fd/{self.descriptor}"
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, batches[0].schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        self.size = os.fstat(self.descriptor).st_size

    @property
    def is_taken(self) -> bool:
        """Whether a consumer has mapped it."""
        return os.fstat(self.descriptor).st_size > self.size


class SharedBatch:
    """A batch in the worker that made it; a dictionary in the process that it is sent to.

    It has the methods of a dictionary. One that nobody has used is sent as a `Label`. Any use makes it a dictionary of its
    own, which is sent with all changes.
    """

    __slots__ = ("_label", "_parcel", "_values")

    def __init__(self, parcel: Parcel, number: int, output: str) -> None:
        place = (os.getpid(), parcel.descriptor, parcel.serial, parcel.size)
        self._label = Label(*place, number, number == parcel.count - 1, output)
        self._parcel = parcel
        self._values: dict[str, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._values is not None:
            return dict, (self._values,)
        _keep(self._parcel)
        return receive, (tuple(self._label),)

    @property
    def values_by_name(self) -> dict[str, Any]:
        """The batch as a dictionary."""
        if self._values is None:
            self._values = _Mapped(self._label).read(self._label)
        return self._values

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.values_by_name, name)

    def __getitem__(self, name: str) -> Any:
        return self.values_by_name[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.values_by_name[name] = value

    def __delitem__(self, name: str) -> None:
        del self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def __contains__(self, name: object) -> bool:
        return name in self.values_by_name

    def __repr__(self) -> str:
        return repr(self.values_by_name)


def share_batches(
    batches: Iterable[pa.RecordBatch], output: str, together: int
) -> Iterator[list[SharedBatch]]:
    """Yield batches to be sent to another process, `together` in a list. The first is alone, so that it arrives soon."""
    waiting = iter(batches)
    count = 1
    while chosen := list(islice(waiting, count)):
        parcel = Parcel(chosen)
        yield [SharedBatch(parcel, number, output) for number in range(parcel.count)]
        count = together


@cache
def end_with_parent() -> None:
    """End this process when the one that made it ends, however that does.

    PyTorch's workers look every 5 s whether their parent lives, which with forkserver is not the one that made them.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(
            target=_end_after, args=(parent.sentinel,), name="recshuf-parent", daemon=True
        ).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


def receive(fields: tuple[Any, ...]) -> dict[str, Any]:
    """Return a batch that another process sent. Batches of one process must arrive in order."""
    label = Label(*fields)
    mapped = _mapped.get(label.process)
    if mapped is None or mapped.parcel != label.parcel:
        mapped = _mapped[label.process] = _map(label)
        _forget_with_process(label.process)
    batch = mapped.read(label)
    if label.is_last:
        del _mapped[label.process]
    return batch


def _map(label: Label) -> _Mapped:
    try:
        return _Mapped(label)
    except FileNotFoundError as error:
        # Files of a process go a moment before it ends; then PyTorch can tell that its worker is dead.
        for child in multiprocessing.active_children():
            if child.pid == label.process:
                child.join(_SECONDS_TO_END)
        raise RuntimeError(f"worker process {label.process} has ended, and its batches are lost") from error


class _Mapped:
    """A parcel in the memory of the consumer."""

    def __init__(self, label: Label) -> None:
        self.parcel = label.parcel
        descriptor = os.open(f"/proc/{label.process}/fd/{label.descriptor}", os.O_RDWR)
        try:
            self._bytes = np.frombuffer(mmap(descriptor, label.size), np.uint8)
            if label.process != os.getpid():
                os.ftruncate(descriptor, label.size + 1)  # tells the sender: see `Parcel.is_taken`
        finally:
            os.close(descriptor)
        self._stream = pa.ipc.open_stream(pa.py_buffer(self._bytes))
        self._next = 0

    def read(self, label: Label) -> dict[str, Any]:
        """Return a batch behind those read before."""
        while self._next < label.number:  # those were sent as dictionaries
            self._stream.read_next_batch()
            self._next += 1
        records = self._stream.read_next_batch()
        self._next += 1
        batch: dict[str, Any] = make_batch(label.output, own_memory(records, self._bytes))
        return batch


_mapped: dict[int, _Mapped] = {}
"""The parcel that each sending process is being received from."""
_kept: list[Parcel] = []
"""The parcels of this process that have been sent, and perhaps not yet been mapped."""


def _keep(parcel: Parcel) -> None:
    _kept[:] = [one for one in _kept if one is not parcel and not one.is_taken]
    if not parcel.is_taken:
        _kept.append(parcel)


def _forget_with_process(process: int) -> None:
    """Free what is left of a worker's parcel when nobody has the worker any more."""
    for child in multiprocessing.active_children():
        if child.pid == process:
            weakref.finalize(child, _mapped.pop, process, None)


def own_memory(records: pa.RecordBatch, memory: NDArray[np.uint8]) -> pa.RecordBatch:
    """Return records in memory that is ours with buffers that may be written to, where arrays need them."""
    columns = [_own(column, memory) for column in records.columns]
    return pa.RecordBatch.from_arrays(columns, schema=records.schema)


def _own(column: pa.Array, memory: NDArray[np.uint8]) -> pa.Array:
    kind = column.type
    if column.null_count:
        return column
    if pa.types.is_fixed_size_list(kind):
        values = _own(column.values, memory)
        return pa.FixedSizeListArray.from_buffers(kind, len(column), [None], 0, column.offset, [values])
    is_flat = pa.types.is_primitive(kind) or pa.types.is_fixed_size_binary(kind)
    if not is_flat or not len(column):
        return column
    data = column.buffers()[1]
    start = data.address - memory.ctypes.data
    return pa.Array.from_buffers(
        kind, len(column), [None, pa.py_buffer(memory[start : start + data.size])], 0, column.offset
    )
