"""What a program gives to a writer, as a table.

Arrow's data, arrays and data frames have types, which must be those of the store. Values of Python have none: they are
converted to the types of the store, and refused if that would change them.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types as pt

from recshuf.errors import UsageError
from recshuf.piles.store.mixed_values import check_values, find_mixable, is_mixable
from recshuf.piles.store.snapshots import describe_type_drift
from recshuf.records.arrays.arrow_views import is_contiguous_list
from recshuf.records.batch import concat_batches

if TYPE_CHECKING:
    from collections.abc import Callable

_TAKEN = "give record batches, tables, data frames, a dict of arrays, or a list of dicts or batches"
_NO_COLUMNS = "the records have no columns; give at least one"
_PROBLEMS = (pa.ArrowException, TypeError, ValueError, OverflowError, RuntimeError)
"""What Arrow, NumPy and libraries with arrays of their own raise."""
_UNTYPED_KINDS = "OSUT"
"""Kinds of NumPy arrays that hold objects, bytes or text."""
_KINDS_OF_TEXT = {"S": pa.binary(), "U": pa.string(), "T": pa.string()}
_CLASSES: tuple[Callable[[pa.DataType], bool], ...] = (
    lambda kind: pt.is_integer(kind) or pt.is_floating(kind),
    lambda kind: pt.is_string(kind) or pt.is_large_string(kind),
    lambda kind: pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind),
    pt.is_decimal,
    pt.is_date,
    pt.is_time,
    pt.is_timestamp,
    pt.is_duration,
)
"""Types whose values are of one class of Python, or of two that are equal where none is changed."""


def to_table(data: Any, schema: pa.Schema | None) -> pa.Table:
    """Return records as a table, which may have other columns than the store.

    Parameters
    ----------
    data
        What `PileWriter.write` takes.
    schema
        Columns of the store; None if it has none yet.

    Raises
    ------
    UsageError
        When they are no table, have no columns, or two of one name, or values of Python do not fit the columns of the
        store.
    """
    table = _make_table(data, schema)
    if table.num_rows and not table.num_columns:
        raise UsageError(_NO_COLUMNS)
    check_names(table.column_names)
    return table


def check_names(names: Sequence[str]) -> None:
    """Raise `UsageError` if two columns have one name."""
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(
            f"column {twice!r}: comes {names.count(twice)} times; give each column a name of its own"
        )


def _make_table(data: Any, schema: pa.Schema | None) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, pa.RecordBatch):
        return pa.Table.from_batches([data])
    try:
        if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
            return _copy(_read_frame(data))
        if isinstance(data, Mapping):
            return _fit_columns(data, schema)
        if isinstance(data, Sequence) and all(isinstance(record, Mapping) for record in data):
            return _fit_columns(_to_columns(data), schema)
        if isinstance(data, Sequence) and all(isinstance(one, pa.RecordBatch | pa.Table) for one in data):
            return pa.concat_tables(to_table(one, schema) for one in data)
    except UsageError:
        raise
    except _PROBLEMS as error:
        raise UsageError(f"the records are no table: {error}; {_TAKEN}") from error
    raise UsageError(f"{type(data).__name__} is not taken; {_TAKEN}")


def _read_frame(frame: Any) -> pa.Table:
    """Return a data frame, or other object with Arrow's C interface, as a table that may share its memory."""
    polars, pandas = (sys.modules.get(library) for library in ("polars", "pandas"))
    if polars is not None and isinstance(frame, polars.DataFrame):
        for column in frame.get_columns():
            _check_series(column.name, column)
    table = pa.table(frame)
    if pandas is not None and isinstance(frame, pandas.DataFrame):
        for place, kind in enumerate(frame.dtypes):
            inferred = table.schema.types[place]
            if isinstance(kind, np.dtype) and kind.hasobject and is_mixable(inferred):
                check_values(table.column_names[place], inferred, frame.iloc[:, place].dropna().tolist())
    return table


def _check_series(name: str, values: Any) -> None:
    """Refuse objects of polars, which exports their addresses."""
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(values, polars.Series) and values.dtype == polars.Object:
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


def _fit_columns(columns: Mapping[str, Any], schema: pa.Schema | None) -> pa.Table:
    arrays = {}
    for name, values in columns.items():
        if not isinstance(name, str):
            raise UsageError(f"column {name!r}: the name is of type {type(name).__name__}; give it as text")
        wanted = schema.field(name).type if schema is not None and name in schema.names else None
        try:
            array, has_type = _to_array(name, values, wanted)
        except UsageError:
            raise
        except _PROBLEMS as error:
            raise UsageError(
                f"column {name!r}: {error}; convert the values, or give an Arrow array"
            ) from error
        arrays[name] = array if has_type or wanted is None else _convert(array, wanted, (name,))
    return pa.table(arrays)


def _to_array(name: str, values: Any, wanted: pa.DataType | None) -> tuple[pa.Array | pa.ChunkedArray, bool]:
    """Return values as an array, and whether they have a type of Arrow or NumPy.

    Parameters
    ----------
    wanted
        Type of the column in the store, if known.
    """
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values, True
    if isinstance(values, str | bytes | Mapping):
        raise UsageError(
            f"column {name!r} is one value of type {type(values).__name__}; give a list or an array of values"
        )
    if not hasattr(values, "__array__"):
        return _infer(name, values if isinstance(values, Sequence) else list(values), wanted), False
    if hasattr(values, "__arrow_c_stream__") and not isinstance(getattr(values, "dtype", None), np.dtype):
        # A column of a data frame, which may have nulls that NumPy has no place for.
        _check_series(name, values)
        return _copy(pa.table({name: pa.chunked_array(values)}))[name], True
    return _copy_array(name, values, wanted)


def _copy_array(name: str, values: Any, wanted: pa.DataType | None) -> tuple[pa.Array, bool]:
    """Do as `_to_array` for what NumPy takes as an array, which Arrow would look at in the caller's memory."""
    is_masked = isinstance(values, np.ma.MaskedArray)
    values = values.copy() if is_masked else np.array(values, order="C")
    flat = values.reshape(-1)
    has_type = flat.dtype.kind not in _UNTYPED_KINDS
    if has_type:
        made = pa.array(np.ma.getdata(flat), mask=np.ma.getmaskarray(flat) if is_masked else None)
    else:
        # Value by value, as Arrow would end text and bytes of NumPy at the first NUL.
        item = wanted
        for _ in values.shape[1:]:
            item = item.value_type if item is not None and is_contiguous_list(item) else None
        made = _infer(name, flat.tolist(), item)
        if pt.is_null(made.type) and flat.dtype.kind in _KINDS_OF_TEXT:
            made = made.cast(_KINDS_OF_TEXT[flat.dtype.kind])
    for size in reversed(values.shape[1:]):
        made = pa.FixedSizeListArray.from_arrays(made, size)
    return made, has_type


def _infer(name: str, values: Sequence[Any], wanted: pa.DataType | None) -> pa.Array:
    """Return values of Python as an array of the type that Arrow infers, or one that holds more of them exactly."""
    kind = pa.infer_type(values)
    if pt.is_string(kind):
        made = pa.array(values)
        if pt.is_string(made.type):
            return made
        kind = made.type  # bytes that follow text, before which `infer_type` ends
    has_nanoseconds = False
    for path, inner, found in find_mixable(name, kind, values):
        check_values(path, inner, found)
        has_nanoseconds |= not pt.is_binary(inner) and any(
            getattr(one, "nanosecond", 0) or getattr(one, "nanoseconds", 0) for one in found
        )
    return pa.array(values, _refine(kind, wanted, has_nanoseconds=has_nanoseconds))


def _refine(kind: pa.DataType, wanted: pa.DataType | None, *, has_nanoseconds: bool) -> pa.DataType:
    """Return an inferred type with nanoseconds if there are some, which Arrow cuts off, and with unsigned integers where the store has them."""
    refine = partial(_refine, has_nanoseconds=has_nanoseconds)
    if pt.is_struct(kind):
        inner = {} if wanted is None or not pt.is_struct(wanted) else {one.name: one.type for one in wanted}
        return pa.struct([field.with_type(refine(field.type, inner.get(field.name))) for field in kind])
    if pt.is_list(kind):
        item = wanted.value_type if wanted is not None and is_contiguous_list(wanted) else None
        return pa.list_(kind.value_field.with_type(refine(kind.value_type, item)))
    if pt.is_int64(kind) and wanted == pa.uint64():
        return wanted
    if has_nanoseconds and pt.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    return pa.duration("ns") if has_nanoseconds and pt.is_duration(kind) else kind


def _convert(found: Any, kind: pa.DataType, path: tuple[str, ...]) -> Any:
    """Return an array that Arrow made of values of Python with another type, and the same values.

    Parameters
    ----------
    found
        An array or a chunked array, not sliced.
    path
        Names of the column and of the fields down to the values.
    """
    if isinstance(found, pa.ChunkedArray):
        return pa.chunked_array([_convert(chunk, kind, path) for chunk in found.chunks], kind)
    if found.type == kind:
        return found
    if pt.is_null(found.type):
        return pa.nulls(len(found), kind)
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(_convert(found, kind.storage_type, path))
    if pt.is_struct(found.type) and pt.is_struct(kind):
        return _convert_struct(found, kind, path)
    if is_contiguous_list(found.type) and is_contiguous_list(kind):
        return _convert_list(found, kind, path)
    return _convert_values(found, kind, path)


def _convert_struct(found: pa.StructArray, kind: pa.StructType, path: tuple[str, ...]) -> pa.StructArray:
    """Convert each field; one that is missing is null."""
    given, wanted = ([field.name for field in one] for one in (found.type, kind))
    for name in given:
        if name not in wanted:
            raise UsageError(
                f"column {path[0]!r}: field {'.'.join((*path, name))!r} is not in the store; leave it out, or begin "
                "a new store"
            )
    children = []
    for field in kind:
        inner = (*path, field.name)
        child = found.field(given.index(field.name)) if field.name in given else pa.nulls(len(found))
        child = _convert(child, field.type, inner)
        _check_nulls(pc.and_(child.is_null(), found.is_valid()), field, inner)
        children.append(child)
    mask = found.is_null() if found.null_count else None
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


def _convert_list(found: Any, kind: Any, path: tuple[str, ...]) -> pa.Array:
    """Convert the items, and then the lists."""
    items = _convert(found.values, kind.value_type, path)
    mask = found.is_null() if found.null_count else None
    if pt.is_fixed_size_list(found.type):
        made = pa.FixedSizeListArray.from_arrays(items, found.type.list_size, mask=mask)
    else:
        made = type(found).from_arrays(found.offsets, items, mask=mask)
        _check_nulls(items.is_null(), kind.value_field, path)
    return _cast(made, kind, path)


def _check_nulls(nulls: pa.BooleanArray, field: pa.Field, path: tuple[str, ...]) -> None:
    if not field.nullable and pc.any(nulls).as_py():
        raise UsageError(f"column {'.'.join(path)!r} has a null where the store takes none; fill it in")


def _convert_values(found: pa.Array, kind: pa.DataType, path: tuple[str, ...]) -> pa.Array:
    has_zones = [pt.is_timestamp(one) and one.tz is not None for one in (found.type, kind)]
    if has_zones[0] != has_zones[1] or not any(holds(found.type) and holds(kind) for holds in _CLASSES):
        raise UsageError(describe_type_drift(".".join(path), kind, found.type))
    made = _cast(found, kind, path)
    if pt.is_floating(kind) and not _is_kept(found, made):
        raise _would_change(path, kind, "a number is too large, or needs more digits")
    return made


def _cast(found: pa.Array, kind: pa.DataType, path: tuple[str, ...]) -> pa.Array:
    try:
        return found.cast(kind)
    except pa.ArrowException as error:
        raise _would_change(path, kind, str(error)) from error


def _is_kept(given: pa.Array, made: pa.Array) -> bool:
    """Tell whether numbers became floats that mean the same: Arrow overflows to infinity, and rounds integers to 16 bits."""
    if pt.is_integer(given.type):
        changed = pc.not_equal(given.cast(pa.float64()), made.cast(pa.float64()))
    else:
        changed = pc.and_not(pc.is_inf(made.cast(pa.float64())), pc.is_inf(given.cast(pa.float64())))
    return not pc.any(changed).as_py()


def _would_change(path: tuple[str, ...], kind: pa.DataType, problem: str) -> UsageError:
    return UsageError(
        f"column {'.'.join(path)!r} is {kind} in the store, and its values would change: {problem}; convert them, or "
        "begin a new store"
    )
