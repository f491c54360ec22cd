"""Batches as the trainer gets them: Arrow record batches, NumPy arrays or tensors.

A column of a batch is, by its type:

    numbers, booleans               array of shape (n,)
    dates, times, durations         array of datetime64 or timedelta64, shape (n,); a time is the duration since midnight
    lists of a fixed size of these  array of shape (n, size), lists in lists (n, size, size) ...
    `_id`                           array of int64 of shape (n, 2): source and row
    binary of a fixed size          array of uint8 of shape (n, size)
    text                            list of str
    binary                          list of bytes
    all others                      Arrow array

A column of numbers is an Arrow array, too, in batches where it has nulls. In lists of text, a null is None.
As tensors, dates and times are their int64 counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute  # else the first batch would import it, to take rows

from recshuf.errors import UsageError
from recshuf.records.arrow_views import view_bytes
from recshuf.train.ids import ID_TYPE, stack_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

OUTPUTS = ("numpy", "arrow", "torch")
"""Forms of batches."""


class Block(Protocol):
    """Records in the order of the epoch, to be cut to batches. Nobody else writes to the memory of a batch."""

    records: pa.RecordBatch

    def cut(self, start: int, stop: int) -> Any:
        """Return records ``start:stop`` as a batch, mostly as views."""
        ...


class ArrowBlock:
    """Cuts record batches."""

    def __init__(self, records: pa.RecordBatch) -> None:
        self.records = records

    def cut(self, start: int, stop: int) -> pa.RecordBatch:
        """See `Block`."""
        return self.records.slice(start, stop - start)


class NumpyBlock:
    """Cuts dictionaries from the names of columns to arrays and lists."""

    def __init__(self, records: pa.RecordBatch) -> None:
        self.records = records
        names, columns = records.schema.names, records.columns
        self._columns = [(name, self.view(column)) for name, column in zip(names, columns, strict=True)]

    def cut(self, start: int, stop: int) -> dict[str, Any]:
        """See `Block`."""
        rows = slice(start, stop)
        return {name: column[rows] for name, column in self._columns}

    def view(self, column: pa.Array) -> _Column:
        """Return what slices of a column are cut from."""
        return view_column(column)


class TorchBlock(NumpyBlock):
    """Cuts dictionaries from the names of columns to tensors and lists."""

    def view(self, column: pa.Array) -> _Column:
        """See `NumpyBlock`."""
        return _TensorColumn(view_column(column))


class _Column(Protocol):
    def __getitem__(self, rows: slice) -> Any: ...


class _ListColumn:
    """Lists of the values of an Arrow array."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column

    def __getitem__(self, rows: slice) -> list[Any]:
        values: list[Any] = self._column.slice(rows.start, rows.stop - rows.start).to_pylist()
        return values


class _NullableColumn:
    """NumPy arrays of the slices of an Arrow array that have no nulls, and Arrow arrays of the others."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column

    def __getitem__(self, rows: slice) -> Any:
        part = self._column.slice(rows.start, rows.stop - rows.start)
        return part if _has_nulls(part) else _view_values(part)


class _TensorColumn:
    """Tensors of the slices of a column that are arrays of what tensors can hold."""

    def __init__(self, column: _Column) -> None:
        from torch import from_numpy

        self._column = column
        self._from_numpy = from_numpy

    def __getitem__(self, rows: slice) -> Any:
        part = self._column[rows]
        if not isinstance(part, np.ndarray):
            return part
        return self._from_numpy(part.view(np.int64) if part.dtype.kind in "mM" else part)


_BLOCKS: dict[str, Callable[[pa.RecordBatch], Block]] = {
    "numpy": NumpyBlock,
    "arrow": ArrowBlock,
    "torch": TorchBlock,
}


def choose_block(output: str) -> Callable[[pa.RecordBatch], Block]:
    """Return the class that cuts batches of a form.

    Raises
    ------
    UsageError
        When there is no such form, or its library is missing.
    """
    if output not in OUTPUTS:
        raise UsageError(f"output={output!r}: give one of {', '.join(map(repr, OUTPUTS))}")
    if output == "torch":
        try:
            import torch  # noqa: F401 - is it there?
        except ImportError as error:
            raise UsageError(
                'output="torch" needs PyTorch, which is not installed: pip install "recshuf[torch]"'
            ) from error
    return _BLOCKS[output]


def view_column(column: pa.Array) -> _Column:
    """Return what slices of a column are cut from: an array if that holds all its values."""
    if column.type == ID_TYPE:
        return stack_ids(column)
    if _is_text(column.type):
        return _ListColumn(column)
    if _find_dtypes(column.type) is None:
        return _ArrowColumn(column)
    return _NullableColumn(column) if _has_nulls(column) else _view_values(column)


class _ArrowColumn:
    """Slices of an Arrow array."""

    def __init__(self, column: pa.Array) -> None:
        self._column = column

    def __getitem__(self, rows: slice) -> pa.Array:
        return self._column.slice(rows.start, rows.stop - rows.start)


def iterate_rows(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the records of a batch as dictionaries."""
    if isinstance(batch, pa.RecordBatch):
        yield from batch.to_pylist()
        return
    columns = [one.to_pylist() if isinstance(one, pa.Array) else one for one in batch.values()]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch, values, strict=True))


_UNITS = ("s", "ms", "us", "ns")
_DTYPES: dict[pa.DataType, tuple[str, str]] = {
    pa.bool_(): ("u1", "?"),
    **{
        getattr(pa, f"{kind}{8 * size}")(): (f"{kind[0]}{size}",) * 2
        for kind in ("int", "uint", "float")
        for size in (1, 2, 4, 8)
        if (kind, size) != ("float", 1)
    },
    pa.date32(): ("i4", "M8[D]"),
    pa.date64(): ("i8", "M8[ms]"),
    **{pa.duration(unit): ("i8", f"m8[{unit}]") for unit in _UNITS},
    **{pa.time32(unit): ("i4", f"m8[{unit}]") for unit in _UNITS[:2]},
    **{pa.time64(unit): ("i8", f"m8[{unit}]") for unit in _UNITS[2:]},
    **{pa.timestamp(unit): ("i8", f"M8[{unit}]") for unit in _UNITS},
}
"""Types that arrays hold: the type of their values in Arrow's memory, and that of the array."""


def _find_dtypes(kind: pa.DataType) -> tuple[str, str] | None:
    """Return the types of `_DTYPES` of a type, or of the values in lists of a fixed size; None if it has none."""
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    if pa.types.is_fixed_size_binary(kind):
        return "u1", "u1"
    return _DTYPES.get(pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind)


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
    )


def _has_nulls(column: pa.Array) -> bool:
    """Tell whether a column, or a list of a fixed size in it, has nulls."""
    while not column.null_count:
        if not pa.types.is_fixed_size_list(column.type):
            return False
        column = column.flatten()
    return True


def _view_values(column: pa.Array) -> NDArray[Any]:
    """Return the values of a column without nulls as an array that can be written to, copied only if need be."""
    shape = [len(column)]
    while pa.types.is_fixed_size_list(column.type):
        shape.append(column.type.list_size)
        column = column.flatten()
    dtypes = _find_dtypes(column.type)
    if dtypes is None:
        raise TypeError(f"no array holds values of type {column.type}")
    if pa.types.is_fixed_size_binary(column.type):
        shape.append(column.type.byte_width)
    stored, wanted = dtypes
    if pa.types.is_boolean(column.type):
        bits = np.frombuffer(column.buffers()[1] or b"", np.uint8)
        end = column.offset + len(column)
        values = np.unpackbits(bits, count=end, bitorder="little")[column.offset :].view(np.bool_)
        return values.reshape(shape)
    values = view_bytes(column).view(stored)
    is_wider = np.dtype(wanted).itemsize > values.itemsize
    values = values.astype(wanted) if is_wider else values.view(wanted)
    return (values if values.flags.writeable else values.copy()).reshape(shape)
