"""What a program gives to a writer, as tables: Arrow's data, data frames, arrays and tensors, and values of Python."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyarrow import types as pt

from recshuf.errors import UsageError
from recshuf.records.arrays import is_contiguous_list
from recshuf.records.batch import concat_batches

if TYPE_CHECKING:
    from numpy.typing import NDArray


_TAKEN = "give record batches, tables, data frames, a dict of arrays, or a list of dicts or batches"
_NO_COLUMNS = "the records have no columns; give at least one"
_PROBLEMS = (pa.ArrowException, TypeError, ValueError, OverflowError, RuntimeError)
"""What Arrow, NumPy and libraries with arrays of their own raise."""
_UNTYPED_KINDS = "OSUT"
"""Kinds of NumPy arrays that hold objects, bytes or text: Arrow would end these at the first NUL."""
_NULLS = ("NoneType", "NaTType", "NAType")
"""Classes of values that stand for none, those of pandas among them, which need not be installed."""


def to_table(data: Any, schema: pa.Schema | None) -> pa.Table:
    """Return what a program gives to a writer as a table, which may have other columns than the store.

    Arrow's data, arrays and data frames have types, which are not changed here. Values of Python have none: they take the
    types of the store, or those that Arrow infers, and are refused unless Arrow gives back what came.

    Parameters
    ----------
    schema
        Columns of the store; None if it has none yet.
    """
    table = _make_table(data, schema)
    if table.num_rows and not table.num_columns:
        raise UsageError(_NO_COLUMNS)
    check_names(table.column_names)
    return table


def check_names(names: Sequence[str]) -> None:
    """Raise `UsageError` if two columns have one name."""
    for name, count in Counter(names).items():
        if count > 1:
            raise UsageError(f"column {name!r}: comes {count} times; give each column a name of its own")


def _make_table(data: Any, schema: pa.Schema | None) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    try:
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            return _copy(_read_frame(data))
        if isinstance(data, Mapping):
            return _join_columns(data, schema)
        if isinstance(data, Sequence) and all(isinstance(record, Mapping) for record in data):
            return _join_columns(_to_columns(data), schema)
        if isinstance(data, Sequence) and all(isinstance(part, pa.RecordBatch | pa.Table) for part in data):
            return pa.concat_tables(to_table(part, schema) for part in data)
    except UsageError:
        raise
    except _PROBLEMS as error:
        raise UsageError(f"the records are no table: {_first_line(error)}; {_TAKEN}") from error
    raise UsageError(f"{type(data).__name__} is not taken; {_TAKEN}")


def _read_frame(frame: Any) -> pa.Table:
    """Return a data frame, or other object with Arrow's C interface, as a table that may share its memory."""
    kinds = [*getattr(frame, "dtypes", ())]
    for place, kind in enumerate(kinds):
        _refuse_objects(frame.columns[place], kind)
    table = pa.table(frame)
    for place, kind in enumerate(kinds):
        if isinstance(kind, np.dtype) and kind.hasobject:
            column = table.column(place)
            _check_same(table.column_names[place], frame.iloc[:, place].tolist(), column, column.type)
    return table


def _refuse_objects(name: str, kind: object) -> None:
    """Refuse objects of polars, which exports their addresses."""
    if str(kind) == "Object":
        raise UsageError(
            f"column {name!r} has the type Object of polars, which Arrow lacks; give its values as a list, as to_list() does"
        )


def _copy(table: pa.Table) -> pa.Table:
    """Return a table in memory of its own; data frames share theirs with arrays that may change."""
    batches = [concat_batches([batch, batch.slice(0, 0)]) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, table.schema)


def _to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return a list of dicts as a dict of lists; a key that is missing in one is null."""
    names = dict.fromkeys(chain.from_iterable(rows))
    if rows and not names:
        raise UsageError(_NO_COLUMNS)
    return {name: [row.get(name) for row in rows] for name in names}


def _join_columns(columns: Mapping[str, Any], schema: pa.Schema | None) -> pa.Table:
    arrays, fields = dict[str, Any](), {field.name: field for field in schema or ()}
    for name, values in columns.items():
        if not isinstance(name, str):
            raise UsageError(f"column {name!r}: the name is of type {type(name).__name__}; give it as text")
        try:
            arrays[name] = _to_array(name, values, fields.get(name))
        except UsageError:
            raise
        except (*_PROBLEMS, OSError) as error:  # of polars 1.33 and older
            raise UsageError(
                f"column {name!r}: {_first_line(error)}; convert the values, or give an Arrow array"
            ) from error
    return pa.table(arrays)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _to_array(name: str, values: Any, field: pa.Field | None) -> pa.Array | pa.ChunkedArray:
    """Return a column as an array; `field` is that of the store, if it has one."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    values = _to_numpy(values)
    if isinstance(values, str | bytes | Mapping):
        raise UsageError(
            f"column {name!r} is one value of type {type(values).__name__}; give a list or an array of values"
        )
    if not hasattr(values, "__array__"):
        return _build(name, values if isinstance(values, list | tuple) else list(values), field)
    kind = getattr(values, "dtype", None)
    is_stream = hasattr(values, "__arrow_c_stream__")
    # Series of pandas 2 have no stream, and what `values` of a series gives neither.
    is_pandas = hasattr(kind, "construct_array_type") and (
        hasattr(getattr(values, "array", values), "__arrow_array__") or hasattr(kind, "categories")
    )
    if (is_stream or is_pandas) and not isinstance(kind, np.dtype):
        # A column of a data frame, which may have nulls that NumPy has no place for.
        _refuse_objects(name, kind)
        return _copy(pa.table({name: pa.chunked_array(values) if is_stream else pa.array(values)}))[name]
    return _copy_array(name, values, field)


def _copy_array(name: str, values: Any, field: pa.Field | None) -> pa.Array:
    """Return what NumPy takes as an array, copied; axes after the first become lists of a fixed size."""
    is_masked = isinstance(values, np.ma.MaskedArray)
    values = values.copy() if is_masked else np.array(values, order="C")
    flat = values.reshape(-1)
    if flat.dtype.kind in _UNTYPED_KINDS:
        for _ in values.shape[1:]:
            field = None if field is None or not is_contiguous_list(field.type) else field.type.value_field
        array = _build(name, flat.tolist(), field)
    else:
        array = pa.array(np.ma.getdata(flat), mask=np.ma.getmaskarray(flat) if is_masked else None)
    for size in reversed(values.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array


def _build(name: str, values: Sequence[Any], field: pa.Field | None) -> pa.Array:
    """Return values of Python as an array that gives back the same."""
    if field is not None and isinstance(field.type, pa.BaseExtensionType):
        return field.type.wrap_array(_build(name, values, field.with_type(field.type.storage_type)))
    kind = None if field is None else field.type
    try:
        array = pa.array(values, kind)
    except _PROBLEMS:  # arrays of several axes, and tensors
        stacked = _stack(values)
        if stacked is not None:
            array = _copy_array(name, stacked, field)
            return array if kind is None else array.cast(kind)
        values = _make_plain(values)
        array = pa.array(values, kind)
    _check_same(name, values, array, array.type)
    if field is not None:
        _check_nulls(name, array, field)
    return array


def _check_same(name: str, values: Sequence[Any], array: Any, kind: pa.DataType) -> None:
    if not _are_same(values, array.to_pylist(), kind):
        raise UsageError(
            f"column {name!r}: some values would change as {kind}; give values of one kind, an Arrow array, or a schema"
        )


def _are_same(given: Sequence[Any], stored: list[Any], kind: pa.DataType) -> bool:
    """Tell whether values are the same; long lists of numbers or text are compared at once."""
    if not pt.is_nested(kind) and stored == given:
        classes = set(map(type, given))
        if pt.is_boolean(kind) or bool not in classes:
            return not pt.is_boolean(kind) or classes <= {bool, np.bool_, type(None)}
    if pt.is_nested(kind) and is_contiguous_list(kind) and len(given) == len(stored):
        return all(map(_are_same_lists, given, stored, repeat(kind.value_type)))
    return len(given) == len(stored) and all(map(_is_same, given, stored))


def _are_same_lists(given: Any, stored: Any, kind: pa.DataType) -> bool:
    if isinstance(given, list | tuple) and isinstance(stored, list):
        return _are_same(list(given), stored, kind)
    return _is_same(given, stored)


def _is_same(given: Any, stored: Any) -> bool:
    """Tell whether a value is the same, also a truth, a missing field, and a float that was rounded to fewer bits."""
    if type(given).__name__ in _NULLS or stored is None:
        return stored is None and (type(given).__name__ in _NULLS or given != given)
    if isinstance(given, np.generic | np.ndarray):
        return _is_same(given.tolist(), stored)
    if isinstance(given, Mapping):
        return (
            isinstance(stored, dict)
            and given.keys() <= stored.keys()
            and all(_is_same(given.get(name), value) for name, value in stored.items())
        )
    if isinstance(given, list | tuple) and isinstance(stored, list):
        return len(given) == len(stored) and all(map(_is_same, given, stored))
    if isinstance(given, bool) or isinstance(stored, bool):
        return given is stored
    if isinstance(given, float) and isinstance(stored, float):
        return math.isnan(given) == math.isnan(stored) and math.isinf(given) == math.isinf(stored)
    return bool(given == stored)


def _check_nulls(name: str, array: pa.Array, field: pa.Field) -> None:
    """Refuse nulls in fields that take none, at any depth; Arrow puts them there."""
    if array.null_count and not field.nullable:
        raise UsageError(f"column {name!r} has a null where the store takes none; fill it in")
    if pt.is_struct(field.type):
        filled = array.filter(array.is_valid())
        for place, inner in enumerate(field.type):
            _check_nulls(f"{name}.{inner.name}", filled.field(place), inner)
    elif is_contiguous_list(field.type):
        _check_nulls(name, array.flatten(), field.type.value_field)


def _to_numpy(value: Any) -> Any:
    """Return a tensor as an array of NumPy, floats that NumPy lacks as float32, which holds them; all else as it is."""
    if hasattr(value, "detach") and hasattr(value, "cpu"):
        value = value.detach().cpu()
        try:
            return value.numpy()
        except TypeError:
            return value.float().numpy() if value.dtype.is_floating_point else value
    kind = getattr(value, "dtype", None)
    if isinstance(kind, np.dtype) and kind.kind == "V" and "float" in kind.name:  # of the package ml_dtypes
        return np.asarray(value).astype(np.float32)
    return value


def _stack(values: Sequence[Any]) -> NDArray[Any] | None:
    """Return arrays of several axes, of one type and shape, as one array; None if the values are others."""
    arrays = [_to_numpy(one) for one in values]
    forms = {(one.dtype, one.shape) if isinstance(one, np.ndarray) else None for one in arrays}
    is_one = len(forms) == 1 and None not in forms and arrays[0].ndim > 1 and arrays[0].size > 0
    return np.stack(arrays) if is_one else None


def _make_plain(value: Any) -> Any:
    """Return a value as Arrow takes it: arrays at any depth with one axis, in place of those with more lists of them."""
    value = _to_numpy(value)
    if isinstance(value, np.ndarray) and value.ndim != 1:
        return [_make_plain(row) for row in value] if value.ndim else value[()]
    if isinstance(value, Mapping):
        return {name: _make_plain(inner) for name, inner in value.items()}
    return [_make_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
