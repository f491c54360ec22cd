"""References to variable-length values, checked before HDF5 follows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recshuf.errors import InputError
from recshuf.formats.hdf5.file.dataset import Column, find_chunk
from recshuf.formats.hdf5.file.opening import content_of
from recshuf.formats.hdf5.file.types import Kind
from recshuf.formats.hdf5.reading.chunks import REFERENCE_BYTES, ChunkReader, make_reference_reader
from recshuf.formats.hdf5.reading.heap import SMALL_FILE_BYTES, HeapValues, check_heaps

if TYPE_CHECKING:
    import h5py
    from h5py import h5d
    from numpy.typing import NDArray

    from recshuf.interfaces import Stamp

_ADDRESS_BYTES = 8
_STEP_ROWS = 1 << 16
_HEAP_EXTRA_BYTES = 1 << 20
"""Most bytes of a heap beyond its largest value."""


class SizeLimit(NamedTuple):
    """The longest record or variable-length value that is accepted."""

    max_bytes: int
    option: str
    """The command line option that raises the limit."""


class ValueGuard:
    """Checks the variable-length values of a dataset.

    References that cannot be read are not checked: in datasets with filters other than HDF5's own, in dataset headers, and
    in files with unusual address sizes.
    """

    def __init__(
        self, file: h5py.File, dataset: h5d.DatasetID, column: Column, name: str, stamp: Stamp
    ) -> None:
        self._content = content_of(file)
        self._base = int(file.userblock_size)
        self._name = name
        self._label = column.name
        self._file_bytes = stamp.size
        self._item_bytes = 1 if column.kind is Kind.STRING else int(column.tid.get_super().get_size())
        usual = file.id.get_create_plist().get_sizes()[0] == _ADDRESS_BYTES
        chunked = find_chunk(dataset) is not None
        self._chunks: ChunkReader | None = make_reference_reader(dataset) if usual and chunked else None
        self._checked = 0
        self._offset: int | None = dataset.get_offset() if usual and not chunked else None

    def check(self, start: int, stop: int, limit: SizeLimit) -> None:
        """Check rows ``start:stop``.

        Raises
        ------
        InputError
            When a value does not fit.
        ValueError
            When the heap that holds one is damaged.
        """
        for low in range(start, stop, _STEP_ROWS):
            raw = self._read(low, min(low + _STEP_ROWS, stop))
            if raw is not None:
                self._check_references(raw.reshape(-1, REFERENCE_BYTES), low, limit)

    def _check_references(self, references: NDArray[np.uint8], start: int, limit: SizeLimit) -> None:
        lengths = references[:, :4].copy().view("<u4")[:, 0].astype(np.int64) * self._item_bytes
        addresses = references[:, 4:12].copy().view("<i8")[:, 0]
        indexes = references[:, 12:].copy().view("<u4")[:, 0].astype(np.int64)
        lengths[addresses == 0] = 0  # no value
        if lengths.max() > limit.max_bytes:
            row = int(lengths.argmax())
            problem = f"{lengths[row]} bytes are more than the {limit.max_bytes} allowed"
            place = f"row {start + row} of dataset {self._label!r}"
            raise InputError(self._name, problem, place=place, remedy=f"raise {limit.option}")
        if self._file_bytes > SMALL_FILE_BYTES:
            self._check_heaps(addresses, indexes, lengths, limit.max_bytes)

    def _check_heaps(
        self,
        addresses: NDArray[np.int64],
        indexes: NDArray[np.int64],
        sizes: NDArray[np.int64],
        most_bytes: int,
    ) -> None:
        """Check the heaps of some values, except the last one checked before."""
        unseen = (addresses != 0) & (addresses != self._checked)
        values = HeapValues(addresses[unseen] + self._base, indexes[unseen], sizes[unseen])
        check_heaps(self._content, values.sorted(), self._file_bytes, most_bytes + _HEAP_EXTRA_BYTES)
        self._checked = int(addresses[-1])

    def _read(self, start: int, stop: int) -> NDArray[np.uint8] | None:
        if self._chunks is not None:
            return self._chunks.read(start, stop)
        if self._offset is None:
            return None
        size = (stop - start) * REFERENCE_BYTES
        raw = self._content.read_at(self._offset + start * REFERENCE_BYTES, size)
        return np.frombuffer(raw, np.uint8) if len(raw) == size else None
