"""Parcels: record batches on their way from a worker process to the one that trains.

A parcel is an Arrow stream in a shared file. What is pickled for a record batch is where its parcel lies and its number
there:

    worker     write record batches -> parcel 0 | parcel 1 | ...      pickled: (file, size, parcel, number, ...)
    consumer   reads the record batches: views of the file
"""

from __future__ import annotations

import multiprocessing
import os
import weakref
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from recshuf.train.shared_files import Address, Borrower, FilePool

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray


class Label(NamedTuple):
    """What a consumer needs to find a record batch."""

    address: Address
    size: int
    """Bytes of the parcel."""
    parcel: int
    """Number of the parcel among those of the process."""
    number: int
    """Of the record batch in the parcel."""
    is_last: bool
    """Whether the parcel holds no more."""


class Parcel:
    """A stream of record batches, written by this process.

    Parameters
    ----------
    batches
        Not empty.
    """

    _made = 0

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        Parcel._made += 1
        self._serial = Parcel._made
        self.count = len(batches)
        counter = pa.MockOutputStream()
        _write(batches, counter)
        self._size = counter.size()
        self._file = _pool.take(self._size)
        weakref.finalize(self, _pool.give, self._file).atexit = False
        _write(batches, pa.FixedSizeBufferWriter(pa.py_buffer(self._file.memory)))

    def send(self, number: int) -> Label:
        """Return what is sent of a record batch."""
        self._file.is_sent = True
        is_last = number == self.count - 1
        return Label(self._file.address, self._size, self._serial, number, is_last)

    def read(self, number: int) -> pa.RecordBatch:
        """Return a copy of a record batch."""
        content = self._file.memory[: self._size].copy()
        return _Opened((self._file.address, self._serial), content).read(number)


def receive(label: Label) -> pa.RecordBatch:
    """Return a record batch that another process sent, in memory that may be written to.

    Those of one process must arrive in order. Not all need to.

    Raises
    ------
    RuntimeError
        When that process has ended.
    """
    process = label.address.process
    if process not in _senders:
        _senders[process] = _Sender()
        _forget_with_process(process)
    return _senders[process].receive(label)


class _Sender:
    """A process that sends parcels."""

    def __init__(self) -> None:
        self._files = Borrower()
        self._opened: _Opened | None = None

    def receive(self, label: Label) -> pa.RecordBatch:
        """See the function."""
        opened = self._opened
        parcel = label.address, label.parcel
        if opened is None or opened.parcel != parcel:
            opened = _Opened(parcel, self._files.borrow(label.address, label.size))
        self._opened = None if label.is_last else opened
        return opened.read(label.number)


class _Opened:
    """A parcel that is being read."""

    def __init__(self, parcel: tuple[Address, int], content: NDArray[np.uint8]) -> None:
        self.parcel = parcel
        self._content = content
        self._stream = pa.ipc.open_stream(pa.py_buffer(content))
        self._next = 0

    def read(self, number: int) -> pa.RecordBatch:
        """Return a record batch behind those read before."""
        while self._next < number:  # those did not travel in the parcel
            self._stream.read_next_batch()
            self._next += 1
        records = self._stream.read_next_batch()
        self._next += 1
        return _own_memory(records, self._content)


_pool = FilePool()
"""The files of this process."""
_senders: dict[int, _Sender] = {}
"""The processes that parcels were received from."""


def _begin_anew() -> None:
    global _pool
    _pool = FilePool()
    _senders.clear()


os.register_at_fork(after_in_child=_begin_anew)  # files and senders are those of the process that was forked


def _forget_with_process(process: int) -> None:
    """Free what a worker has sent when nobody has the worker any more."""
    for child in multiprocessing.active_children():
        if child.pid == process:
            weakref.finalize(child, _senders.pop, process, None)


def _write(batches: Sequence[pa.RecordBatch], sink: pa.NativeFile) -> None:
    with sink, pa.ipc.new_stream(sink, batches[0].schema) as stream:
        for batch in batches:
            stream.write_batch(batch)


def _own_memory(records: pa.RecordBatch, memory: NDArray[np.uint8]) -> pa.RecordBatch:
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
