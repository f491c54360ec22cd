"""Fixed records as a table: one column of items, or of lists of them, axis in axis; or a column for each member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError
from recshuf.formats.arrays.sink import COLUMN
from recshuf.interfaces import Decoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.formats.arrays.sink import FixedLayout


class FixedDecoder(Decoder):
    """Decodes records of one layout.

    Raises
    ------
    ConversionError
        When Arrow has no type for the items.
    """

    def __init__(self, layout: FixedLayout) -> None:
        self._dtype = layout.dtype
        kind: pa.DataType = pa.binary(layout.row_bytes)
        if self._dtype is not None:
            kind = _find_type(self._dtype)
            for axis in reversed(layout.shape):
                kind = pa.list_(kind, axis)
        self._kind = kind
        # The members of a record are columns.
        self._schema = pa.schema(list(kind) if pa.types.is_struct(kind) else [pa.field(COLUMN, kind)])

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> None:
        """Do nothing: the schema is known."""

    def finish(self) -> pa.Schema:
        return self._schema

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._dtype is None:
            return batch.cast(self._schema)
        column = batch.column(0)
        width = column.type.byte_width
        content = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :][: len(column) * width]
        items = content.reshape(-1, self._dtype.itemsize)
        values = _nest(_wrap(items, self._dtype), self._kind)
        arrays = values.flatten() if pa.types.is_struct(self._kind) else [values]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _find_type(dtype: np.dtype[Any]) -> pa.DataType:
    """Return the type of Arrow for items."""
    if dtype.subdtype is None and dtype.names is None:
        try:
            return _wrap(np.zeros((0, dtype.itemsize), np.uint8), dtype).type
        except (pa.ArrowException, TypeError) as error:
            problem = f"items of type {dtype} have no table form"
            raise ConversionError(COLUMN, problem, remedy="shuffle to npy") from error
    if dtype.names is not None:
        fields = [pa.field(name, _find_type(dtype[name])) for name in dtype.names]
        return pa.struct(fields)
    item, shape = dtype.subdtype or (dtype, ())
    kind = _find_type(item)
    for axis in reversed(shape):
        kind = pa.list_(kind, axis)
    return kind


def _wrap(raw: NDArray[np.uint8], dtype: np.dtype[Any]) -> pa.Array:
    """Return the items whose bytes are the rows of an array."""
    if dtype.names is not None:
        arrays, fields = [], dtype.fields
        assert fields is not None  # noqa: S101 - it has names
        for name in dtype.names:
            kind, offset = fields[name][0], fields[name][1]
            arrays.append(_wrap(raw[:, offset : offset + kind.itemsize], kind))
        return pa.StructArray.from_arrays(arrays, fields=list(_find_type(dtype)))
    if dtype.subdtype is not None:
        item = dtype.subdtype[0]
        items = np.ascontiguousarray(raw).reshape(-1, item.itemsize)
        return _nest(_wrap(items, item), _find_type(dtype))
    values = np.ascontiguousarray(raw).view(dtype).reshape(len(raw))
    return pa.array(values.astype(dtype.newbyteorder("="), copy=False))


def _nest(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return flat values as an array of a type of lists."""
    if not pa.types.is_fixed_size_list(kind) or values.type == kind:
        return values
    items = _nest(values, kind.value_type)
    return pa.Array.from_buffers(kind, len(items) // kind.list_size, [None], children=[items])
