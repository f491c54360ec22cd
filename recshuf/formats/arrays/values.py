"""Fields of fixed records as texts: of items that are single values, else the bytes of the row."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.formats.arrays.decoder import find_item_type, wrap_items
from recshuf.formats.arrays.sink import COLUMN, FixedLayout
from recshuf.formats.texts import check_type, locate_texts
from recshuf.interfaces import ValueReader
from recshuf.records.arrays import split_path, view_bytes, wrap_values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.arrays.sink import ArchiveLayout


class _Place(NamedTuple):
    """Where the bytes of a field are in native records."""

    column: int
    begin: int
    end: int
    dtype: np.dtype[Any] | None
    """Type of the value; None if its text is these bytes."""


class ArrayValueReader(ValueReader):
    """Reads arrays, or members of structured ones, by their names."""

    def __init__(
        self, layout: FixedLayout | ArchiveLayout, names: Sequence[str], paths: Sequence[str]
    ) -> None:
        self._names, self._paths = names, paths
        self._places = [_find_place(layout, path) for path in paths]

    def read(
        self, batch: pa.RecordBatch, input_index: int, first_row: int
    ) -> tuple[pa.LargeBinaryArray, ...]:
        name, found = self._names[input_index], []
        for path, place in zip(self._paths, self._places, strict=True):
            column = batch.column(place.column)
            rows = view_bytes(column).reshape(len(column), -1)[:, place.begin : place.end]
            if place.dtype is None:
                values = wrap_values(np.ascontiguousarray(rows), pa.binary(place.end - place.begin))
            else:
                values = wrap_items(rows, place.dtype)
            found.append(locate_texts(values, path, name, first_row))
        return tuple(found)


def _find_place(layout: FixedLayout | ArchiveLayout, path: str) -> _Place:
    column, array = 0, layout
    if isinstance(array, FixedLayout):
        dtype = array.dtype
        inner, fields = split_path(path, [COLUMN] if dtype is None or dtype.names is None else dtype.names)
        fields = fields if dtype is None or dtype.names is None else [inner, *fields]
    else:
        name, fields = split_path(path, array.names)
        column = array.names.index(name)
        array = array.arrays[column]
    dtype, shape, begin = array.dtype, array.shape, 0
    for name in fields:
        if dtype is None or dtype.fields is None or name not in dtype.fields or shape:
            raise UsageError(f"column {path!r}: there is no field {name!r} in {dtype}")
        dtype, offset = dtype.fields[name][:2]
        dtype, shape = dtype.subdtype or (dtype, ())
        begin += offset
    size = array.row_bytes if dtype is None else dtype.itemsize * prod(shape)
    if dtype is None or prod(shape) != 1:
        return _Place(column, begin, begin + size, None)
    check_type(find_item_type(dtype, path), path)
    return _Place(column, begin, begin + size, dtype)
