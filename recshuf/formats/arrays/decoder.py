"""Fixed records as a table: one column of items, or of lists of them, axis in axis; or a column for each member."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import ConversionError
from recshuf.formats.arrays.sink import COLUMN
from recshuf.interfaces import TableDecoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.formats.arrays.sink import ArchiveLayout, FixedLayout


class FixedDecoder(TableDecoder):
    """Decodes records of one layout."""

    def __init__(self, layout: FixedLayout) -> None:
        self._dtype = layout.dtype
        self._kind = find_type(layout)
        # The members of a record are columns.
        is_struct = pa.types.is_struct(self._kind)
        super().__init__(pa.schema(list(self._kind) if is_struct else [pa.field(COLUMN, self._kind)]))

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        values = decode_rows(batch.column(0), self._dtype, self._kind)
        arrays = values.flatten() if pa.types.is_struct(self._kind) else [values]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


class ArchiveDecoder(TableDecoder):
    """Decodes the arrays of an archive, each to one column."""

    def __init__(self, layout: ArchiveLayout) -> None:
        self._dtypes = [array.dtype for array in layout.arrays]
        kinds = [find_type(array, name) for name, array in zip(layout.names, layout.arrays, strict=True)]
        super().__init__(pa.schema(list(zip(layout.names, kinds, strict=True))))

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = zip(batch.columns, self._dtypes, self.schema.types, strict=True)
        return pa.RecordBatch.from_arrays(
            [decode_rows(array, dtype, kind) for array, dtype, kind in columns], schema=self.schema
        )


def find_type(layout: FixedLayout, name: str = COLUMN) -> pa.DataType:
    if layout.dtype is None:
        return pa.binary(layout.row_bytes)
    kind = find_item_type(layout.dtype, name)
    for axis in reversed(layout.shape):
        kind = pa.list_(kind, axis)
    return kind


def decode_rows(column: pa.Array, dtype: np.dtype[Any] | None, kind: pa.DataType) -> pa.Array:
    """Return the records whose bytes are the rows of a column, as an array of a type that `find_type` found."""
    if dtype is None:
        return column.cast(kind)
    width = column.type.byte_width
    content = np.frombuffer(column.buffers()[1], np.uint8)[column.offset * width :][: len(column) * width]
    return _nest(wrap_items(content.reshape(-1, dtype.itemsize), dtype), kind)


def find_item_type(dtype: np.dtype[Any], name: str = COLUMN) -> pa.DataType:
    if dtype.subdtype is None and dtype.names is None:
        try:
            return wrap_items(np.zeros((0, dtype.itemsize), np.uint8), dtype).type
        except (pa.ArrowException, TypeError) as error:
            problem = f"items of type {dtype} have no table form"
            raise ConversionError(name, problem, remedy="keep the format of the inputs") from error
    if dtype.names is not None:
        fields = [pa.field(member, find_item_type(dtype[member], name)) for member in dtype.names]
        return pa.struct(fields)
    item, shape = dtype.subdtype or (dtype, ())
    kind = find_item_type(item, name)
    for axis in reversed(shape):
        kind = pa.list_(kind, axis)
    return kind


def wrap_items(raw: NDArray[np.uint8], dtype: np.dtype[Any]) -> pa.Array:
    """Return the items whose bytes are the rows of an array."""
    if dtype.names is not None:
        arrays, fields = [], dtype.fields
        assert fields is not None  # noqa: S101 - it has names
        for name in dtype.names:
            kind, offset = fields[name][0], fields[name][1]
            arrays.append(wrap_items(raw[:, offset : offset + kind.itemsize], kind))
        return pa.StructArray.from_arrays(arrays, fields=list(find_item_type(dtype)))
    if dtype.subdtype is not None:
        item = dtype.subdtype[0]
        items = np.ascontiguousarray(raw).reshape(-1, item.itemsize)
        return _nest(wrap_items(items, item), find_item_type(dtype))
    values = np.ascontiguousarray(raw).view(dtype).reshape(len(raw))
    return pa.array(values.astype(dtype.newbyteorder("="), copy=False))


def _nest(values: pa.Array, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_fixed_size_list(kind) or values.type == kind:
        return values
    items = _nest(values, kind.value_type)
    return pa.Array.from_buffers(kind, len(items) // kind.list_size, [None], children=[items])
