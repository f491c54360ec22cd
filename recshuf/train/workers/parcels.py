"""Parcels: record batches on their way from a worker process to the one that trains.

A parcel is a file in memory without a name, which holds an Arrow stream. What is pickled for a record batch is where its
parcel lies and its number there:

    worker     write record batches -> parcel 0 | parcel 1 | ...      pickled: (process, descriptor, parcel, number, ...)
    consumer   opens /proc/PROCESS/fd/DESCRIPTOR, maps it, reads the record batches: views of the map

The memory goes with the last process that has it open or mapped, however that ends.
"""

from __future__ import annotations

import multiprocessing
import os
import weakref
from mmap import mmap
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_SECONDS_TO_END = 10


class Label(NamedTuple):
    """What a consumer needs to find a record batch."""

    process: int
    descriptor: int
    parcel: int
    """Number of the parcel among those of the process."""
    size: int
    """Bytes of the parcel."""
    number: int
    """Of the record batch in the parcel."""
    is_last: bool
    """Whether the parcel holds no more."""


class Parcel:
    """A file in memory with a stream of record batches, written by this process.

    Parameters
    ----------
    batches
        Not empty.
    """

    _made = 0

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        Parcel._made += 1
        self._serial = Parcel._made
        self._descriptor = os.memfd_create("recshuf")
        weakref.finalize(self, os.close, self._descriptor).atexit = False
        self.count = len(batches)
        path = f"/proc/self/fd/{self._descriptor}"
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_stream(sink, batches[0].schema) as stream:
            for batch in batches:
                stream.write_batch(batch)
        self._size = os.fstat(self._descriptor).st_size

    @property
    def is_taken(self) -> bool:
        """Whether a consumer has mapped it."""
        return os.fstat(self._descriptor).st_size > self._size

    def label(self, number: int) -> Label:
        """Return what is sent of a record batch."""
        is_last = number == self.count - 1
        return Label(os.getpid(), self._descriptor, self._serial, self._size, number, is_last)

    def read(self, number: int) -> pa.RecordBatch:
        """Return a copy of a record batch."""
        return _Mapped(self.label(number)).read(number)

    def keep(self) -> None:
        """Keep the file until a consumer has mapped it."""
        _kept[:] = [one for one in _kept if one is not self and not one.is_taken]
        if not self.is_taken:
            _kept.append(self)


def receive(label: Label) -> pa.RecordBatch:
    """Return a record batch that another process sent, in memory that may be written to.

    Those of one process must arrive in order. Not all need to.
    """
    mapped = _mapped.get(label.process)
    if mapped is None or mapped.parcel != label.parcel:
        mapped = _mapped[label.process] = _map(label)
        _forget_with_process(label.process)
    batch = mapped.read(label.number)
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

    def read(self, number: int) -> pa.RecordBatch:
        """Return a record batch behind those read before."""
        while self._next < number:  # those did not travel in the parcel
            self._stream.read_next_batch()
            self._next += 1
        records = self._stream.read_next_batch()
        self._next += 1
        return own_memory(records, self._bytes)


_mapped: dict[int, _Mapped] = {}
"""The parcel that each sending process is being received from."""
_kept: list[Parcel] = []
"""The parcels of this process that have been sent, and perhaps not yet been mapped."""


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
