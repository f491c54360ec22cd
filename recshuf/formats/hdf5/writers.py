"""The file of a shard, and writers that append rows to one of its datasets: by HDF5, as chunks filtered in threads, or as lists.

HDF5 writes the file through Python, so that a full disk is an ordinary error.
"""

from __future__ import annotations

import io
from abc import ABC, abstractmethod
from functools import partial
from itertools import product
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from h5py import h5t
from h5py._objects import phil

from recshuf.formats.hdf5.columns import Column, select_rows
from recshuf.formats.hdf5.roles import SHAPE
from recshuf.formats.hdf5.types import Kind, unwrap_values, wrap_rows
from recshuf.records.arrays import view_bytes, view_offsets
from recshuf.system.files import BehindFile

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import h5py
    from h5py import h5d
    from numpy.typing import NDArray

    from recshuf.formats.hdf5.filters import Bytes, Pipeline
    from recshuf.system.threads import TaskQueue

    _Offset = tuple[int, ...]
    _Chunk = tuple[int, Bytes]


_TASK_BYTES = 256 << 10
"""Chunks smaller than this are filtered several at a time."""
_COPIES = 3
"""Copies of a chunk: its block, shuffled, compressed, and rows that wait for a thread."""


class ShardFile:
    """A new file that records the first failed write and ignores later writes.

    HDF5 cannot close a file that it cannot write, and reports errors until the interpreter ends. So failures are hidden
    from HDF5, and its callers check for the error afterwards.
    """

    def __init__(self, path: Path, image: bytes) -> None:
        self.error: OSError | None = None
        self._path = path
        self._pretends = False
        self._file: io.RawIOBase | io.BytesIO = BehindFile(path, "x+b")
        try:
            self.write(image)
            self.check()
        except OSError:
            self._file.close()
            raise

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def pretend(self) -> None:
        """Ignore all later writes."""
        self._pretends = True

    def close(self) -> None:
        """Close the file; HDF5 continues with an empty file in memory if it still uses it."""
        self._file.close()
        self._file = io.BytesIO()
        self._pretends = True

    # h5py calls these methods from inside the HDF5 library; they must not raise.

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def readinto(self, buffer: bytes | memoryview) -> int:
        """Fill a buffer, with zeros for bytes whose write was ignored."""
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view):
            count = self._file.readinto(view[done:])
            if not count:
                view[done:] = bytes(len(view) - done)
                break
            done += count
        return len(view)

    def write(self, buffer: bytes | memoryview) -> int:
        view = memoryview(buffer).cast("B")
        done = 0
        while done < len(view) and not self._pretends:
            try:
                done += self._file.write(view[done:])
            except OSError as error:
                self._fail(error)
        return len(view)

    def truncate(self, size: int) -> int:
        try:
            if not self._pretends:
                self._file.truncate(size)
        except OSError as error:
            self._fail(error)
        return size

    def flush(self) -> None:
        """Do nothing: writes are not buffered."""

    def _fail(self, error: OSError) -> None:
        error.filename = str(self._path)
        self.error = error
        self._pretends = True


def task_bytes(band_bytes: int, chunk_bytes: int, threads: int) -> int:
    """Return the peak memory of chunks while they are filtered, of `chunk_bytes` at most.

    `band_bytes` are those of all chunks that wait for their last rows.
    """
    tasks, bands, copies = (1, 1, _COPIES) if threads == 1 else (threads + 1, 2, _COPIES + 1)
    return bands * band_bytes + tasks * copies * max(chunk_bytes, _TASK_BYTES)


class RowWriter(ABC):
    """Appends rows to a dataset that begins empty."""

    def __init__(self, dataset: h5d.DatasetID) -> None:
        self._dataset = dataset

    @property
    def row_count(self) -> int:
        """Rows in the file."""
        return int(self._dataset.shape[0])

    @abstractmethod
    def append(self, pieces: Sequence[pa.Array]) -> None:
        """Append rows, given in at least one piece; they may reach the dataset later."""

    def finish(self) -> None:  # noqa: B027 # by default no rows wait
        """Write the waiting rows at the end."""


class LibraryWriter(RowWriter):
    """Appends rows by HDF5."""

    def __init__(self, dataset: h5d.DatasetID, column: Column, tasks: TaskQueue) -> None:
        super().__init__(dataset)
        self.column = column
        self._tasks = tasks
        self._appended = 0

    def append(self, pieces: Sequence[pa.Array]) -> None:
        rows = _join(pieces)
        self._tasks.drain()
        start, self._appended = self._appended, self._appended + len(rows)
        self._dataset.set_extent((self._appended, *self.column.row_shape))
        if self.column.row_bytes == 0:
            return
        spaces = select_rows(self._dataset, start, len(rows), self.column.row_shape)
        if self.column.kind is Kind.FIXED:
            self._dataset.write(*spaces, view_bytes(rows), self._dataset.get_type())
        else:
            values = unwrap_values(rows, self.column.kind, self.column.tid)
            self._dataset.write(*spaces, values, h5t.py_create(self._dataset.dtype))


class ChunkWriter(RowWriter):
    """Filters chunks in threads, if there are filters, and lets HDF5 store them.

    A band is the chunks of the same rows. Rows wait until a band is full::

        rows:  [. . . . . . . . . . .]     chunks of 4 rows and half a row's width:
        bands: |       |       |          6 chunks, the last 2 filled up with the fill value

    `fill` are the bytes of an element that was never written.
    """

    def __init__(
        self, dataset: h5d.DatasetID, column: Column, pipeline: Pipeline, fill: bytes, tasks: TaskQueue
    ) -> None:
        super().__init__(dataset)
        self._shape = (*column.row_shape, pipeline.item_bytes)
        self._row_bytes = column.row_bytes
        self._pipeline = pipeline
        self._fill = np.frombuffer(fill, np.uint8)
        self._tasks = tasks
        self._band_rows = pipeline.chunk[0]
        widths = zip(column.row_shape, pipeline.chunk[1:], strict=True)
        self._inner = list(product(*(range(0, width, step) for width, step in widths)))
        self._task_chunks = max(1, _TASK_BYTES // pipeline.chunk_bytes)
        self._appended = 0
        self._extent = 0
        """Rows of the present extent of the dataset."""
        self._waiting: NDArray[np.uint8] | None = None
        self._waiting_count = 0

    def append(self, pieces: Sequence[pa.Array]) -> None:
        # Joined rows, waiting for a thread, do not keep whole piles in memory.
        for rows in [_join(pieces)] if self._pipeline.codes else pieces:
            self._append(rows)

    def _append(self, rows: pa.Array) -> None:
        values = view_bytes(rows).reshape(len(rows), self._row_bytes)
        if self._waiting_count:
            values = values[self._wait(values) :]
        whole = len(values) - len(values) % self._band_rows
        if whole:
            self._put(values[:whole])
        if whole < len(values):
            self._wait(values[whole:])

    def finish(self) -> None:
        if self._waiting is not None and self._waiting_count:
            self._put(self._waiting[: self._waiting_count])
            self._waiting_count = 0

    def _wait(self, values: NDArray[np.uint8]) -> int:
        """Add rows to the waiting band, write it if it is full, and return the number of rows added."""
        if self._waiting is None:
            self._waiting = np.empty((self._band_rows, self._row_bytes), np.uint8)
        start = self._waiting_count
        taken = min(len(values), self._band_rows - start)
        self._waiting[start : start + taken] = values[:taken]
        self._waiting_count += taken
        if self._waiting_count == self._band_rows:
            full, self._waiting, self._waiting_count = self._waiting, None, 0
            self._put(full)
        return taken

    def _put(self, values: NDArray[np.uint8]) -> None:
        """Filter and write the chunks of bands; only the last band of all may be partial."""
        rows = values.reshape(len(values), *self._shape)
        places = list(product(range(0, len(rows), self._band_rows), self._inner))
        first, self._appended = self._appended, self._appended + len(rows)
        for start in range(0, len(places), self._task_chunks):
            some = places[start : start + self._task_chunks]
            offsets = [(first + row, *inner) for row, inner in some]
            encode, write = partial(self._encode, rows, some), partial(self._write, self._appended, offsets)
            if self._pipeline.codes:
                self._tasks.put(encode, write)
            else:
                self._tasks.drain()
                write(encode())

    def _encode(self, rows: NDArray[np.uint8], places: list[tuple[int, _Offset]]) -> list[_Chunk]:
        return [self._pipeline.encode(self._cut(rows, (row, *inner))) for row, inner in places]

    def _cut(self, rows: NDArray[np.uint8], offset: _Offset) -> NDArray[np.uint8]:
        """Return a chunk of rows, contiguous, padded with the fill value over the edge."""
        chunk = self._pipeline.chunk
        part = rows[tuple(slice(low, low + width) for low, width in zip(offset, chunk, strict=True))]
        if part.shape[:-1] == chunk:
            return np.ascontiguousarray(part)
        whole = np.empty((*chunk, part.shape[-1]), np.uint8)
        whole[...] = self._fill
        whole[tuple(map(slice, part.shape))] = part
        return whole

    def _write(self, row_count: int, offsets: list[_Offset], chunks: list[_Chunk]) -> None:
        if row_count > self._extent:
            self._dataset.set_extent((row_count, *self._shape[:-1]))
            self._extent = row_count
        for offset, (mask, stored) in zip(offsets, chunks, strict=True):
            with phil:  # as in reading
                self._dataset.write_direct_chunk(offset, stored, mask)


class ListWriter(RowWriter):
    """Appends lists to a dataset of their items, and with `pointers` to another one where they end, unless another writer does.

    Without `group`, that of the matrix, another one does. It, or a dataset in it, gets the shape of the matrix at the end.
    """

    def __init__(
        self, items: RowWriter, item_bytes: int, pointers: LibraryWriter, group: h5py.Group | None
    ) -> None:
        self._items = items
        self._item_bytes = item_bytes
        self._pointers = pointers
        self._group = group
        self._last = 0
        if group is not None:
            self._point(np.zeros(1, np.int64))

    @property
    def row_count(self) -> int:
        return self._pointers.row_count - 1

    def append(self, pieces: Sequence[pa.Array]) -> None:
        flat = [wrap_rows(view_bytes(piece), self._item_bytes) for piece in pieces]
        if filled := [items for items in flat if len(items)]:
            self._items.append(filled)
        if self._group is not None:
            lengths = np.concatenate([np.diff(view_offsets(piece)) for piece in pieces])
            self._point(self._last + np.cumsum(lengths // self._item_bytes))

    def finish(self) -> None:
        """Write the shape of the matrix, too."""
        self._items.finish()
        if self._group is None:
            return
        if SHAPE in self._group:
            self._group[SHAPE][1] = self.row_count
        else:
            self._group.attrs.modify(SHAPE, [self.row_count, self._group.attrs[SHAPE][1]])

    def _point(self, places: NDArray[np.int64]) -> None:
        self._last = int(places[-1])
        dtype = self._pointers.column.tid.dtype
        self._pointers.append([wrap_rows(places.astype(dtype), dtype.itemsize)])


def _join(pieces: Sequence[pa.Array]) -> pa.Array:
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
