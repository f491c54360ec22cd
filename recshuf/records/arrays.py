"""Arrow arrays: their buffers as NumPy arrays, sizes of rows, paths of fields, schemas as text, and rows in another order. Only bits are copied."""

from __future__ import annotations

import base64
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    Rows = NDArray[np.int64] | int

_NARROW = (pa.binary(), pa.string(), pa.list_(pa.int8()), pa.map_(pa.int8(), pa.int8()))
_WIDE = (pa.large_binary(), pa.large_string(), pa.large_list(pa.int8()))
# By the id of a type: batches may be small, and each predicate of pyarrow takes a call.
_OFFSETS: dict[int, np.dtype[Any]] = {
    **{kind.id: np.dtype(np.int32) for kind in _NARROW},
    **{kind.id: np.dtype(np.int64) for kind in _WIDE},
}
_VARIABLE_LISTS = {pa.list_(pa.int8()).id, pa.large_list(pa.int8()).id}
_WITH_FIELDS = {pa.struct([]).id, pa.list_(pa.int8(), 1).id}
_CONTIGUOUS_LISTS = {*_VARIABLE_LISTS, pa.list_(pa.int8(), 1).id}
_BYTES = {kind.id for kind in (*_NARROW[:2], *_WIDE[:2], pa.binary(1), pa.string_view(), pa.binary_view())}
_INTEGERS = ("int8", "int16", "int32", "int64")
NUMBERS = (*_INTEGERS, *(f"u{name}" for name in _INTEGERS), "float16", "float32", "float64")
"""Names of the types of numbers."""
_VALUE_BITS: dict[int, int] = {
    kind.id: kind.bit_width for kind in map(pa.type_for_alias, ("bool", "date32", *NUMBERS))
}
FLAT = frozenset({*_VALUE_BITS, *(kind.id for kind in (*_NARROW[:2], *_WIDE[:2]))})
"""Ids of types of text, bytes, numbers and days: they have no parameters, and nothing inside."""
_MOST_KNOWN = 20
"""Names that a message lists."""
_VIEWS = {pa.string_view().id, pa.binary_view().id}
_LIST_VIEWS = {pa.list_view(pa.int8()).id, pa.large_list_view(pa.int8()).id}


def has_offsets(kind: pa.DataType) -> bool:
    """Tell whether arrays of a type have offsets: binary, text, lists and maps, but no views."""
    return kind.id in _OFFSETS


def is_variable_list(kind: pa.DataType) -> bool:
    """Tell whether a type is a list with offsets, of either width; maps are not."""
    return kind.id in _VARIABLE_LISTS


def is_contiguous_list(kind: pa.DataType) -> bool:
    """Tell whether a type is a list with offsets or of a fixed size."""
    return kind.id in _CONTIGUOUS_LISTS


def is_list_view(kind: pa.DataType) -> bool:
    return kind.id in _LIST_VIEWS


def is_any_list(kind: pa.DataType) -> bool:
    """Tell whether a type is a list with offsets, a list of a fixed size, or a list view; maps are not."""
    return is_contiguous_list(kind) or is_list_view(kind)


def dtype_of(kind: pa.DataType) -> np.dtype[Any]:
    """Return the type of NumPy of numbers or truth values. Arrow's `to_pandas_dtype` needs pandas in some versions."""
    dtype: np.dtype[Any] = pa.array([], kind).to_numpy(zero_copy_only=False).dtype
    return dtype


def storage_of(kind: pa.DataType) -> pa.DataType:
    """Return the type of the values that an extension, dictionary or run-end-encoded type encodes."""
    if isinstance(kind, pa.BaseExtensionType):
        return storage_of(kind.storage_type)
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return storage_of(kind.value_type)
    return kind


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether values of a type are byte strings or text."""
    return kind.id in _BYTES


def view_offsets(array: pa.Array) -> NDArray[Any]:
    """Return where each value begins and the last one ends, shape ``(n + 1,)``, for a type that `has_offsets`."""
    kind, buffer = _OFFSETS[array.type.id], array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array) + 1, kind)
    return np.frombuffer(buffer, kind, len(array) + 1, array.offset * kind.itemsize)


def view_data(array: pa.Array) -> NDArray[np.uint8]:
    """Return the data buffer of a binary or text array, into which its offsets point; the array may use a part."""
    return np.frombuffer(array.buffers()[2] or b"", np.uint8)


def view_bytes(array: pa.Array) -> NDArray[np.uint8]:
    """Return the bytes of all values of a binary, text or fixed-width array, back to back; null slots included."""
    if has_offsets(array.type):
        offsets = view_offsets(array)
        return view_data(array)[offsets[0] : offsets[-1]]
    width = array.type.bit_width // 8
    return np.frombuffer(array.buffers()[1] or b"", np.uint8, len(array) * width, array.offset * width)


def unpack_bits(bits: pa.Buffer | None, array: pa.Array) -> NDArray[np.uint8]:
    """Return one byte, 0 or 1, for each value of an array, from its buffer of validity or of booleans."""
    if bits is None:
        return np.zeros(len(array), np.uint8)
    first, skipped = divmod(array.offset, 8)
    content = np.frombuffer(bits, np.uint8)[first:]
    return np.unpackbits(content, count=skipped + len(array), bitorder="little")[skipped:]


def wrap_values(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return values as an Arrow array of a type of their width, without nulls."""
    # Without pa.array(), which imports pandas where there is one, and the whole of numpy.ma.
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def wrap_bytes(data: NDArray[Any], offsets: NDArray[np.integer]) -> pa.LargeBinaryArray:
    """Return bytes as values, given where each begins and the last one ends, without a copy."""
    ends = np.ascontiguousarray(offsets, np.int64)
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends) - 1, buffers, null_count=0)


def cut_ranges(edges: NDArray[Any], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of items of at most so much together, but at least one, given where each begins and the last one ends.

    >>> list(cut_ranges(np.array([0, 7, 8, 10]), 3))
    [(0, 1), (1, 3)]
    """
    start = 0
    while start < len(edges) - 1:
        stop = max(start + 1, int(np.searchsorted(edges, edges[start] + most, "right")) - 1)
        yield start, stop
        start = stop


def count_bytes(batch: pa.RecordBatch) -> int:
    """Return the bytes of the rows of a batch: values, offsets and validity.

    Arrow's `nbytes` does the same, but visits every list of a column of lists.
    """
    rows = int(batch.num_rows)
    return (sum(int(_bits_before(column, rows)) for column in batch.columns) + 7) >> 3


def count_bytes_before(batch: pa.RecordBatch, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of the rows before each row number, in the shape of `rows`.

    >>> batch = pa.record_batch({"a": pa.array(["x", "yyy"])})
    >>> count_bytes_before(batch, np.array([0, 1, 2])).tolist()
    [0, 5, 12]
    """
    bits = np.zeros(len(rows), np.int64)
    for column in batch.columns:
        bits += _bits_before(column, rows)
    return (bits + 7) >> 3


def count_lasting_bytes_before(batch: pa.RecordBatch, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes of the rows before each row number, the same however rows are divided into batches.

    That excludes validity, which a batch has if there is a null among its rows; and a boolean is a byte.

    >>> batch = pa.record_batch({"a": pa.array([True, None, False])})
    >>> count_lasting_bytes_before(batch, np.array([0, 1, 3])).tolist()
    [0, 1, 3]
    """
    bits = np.zeros(len(rows), np.int64)
    for column in batch.columns:
        bits += _bits_before(column, rows, is_lasting=True)
    return bits >> 3


def _bits_before(column: pa.Array, rows: Rows, *, is_lasting: bool = False) -> Rows:
    """Return the bits before one row number or many; a plain int, because NumPy is slow with single numbers.

    For `is_lasting` see `count_lasting_bytes_before`.
    """
    kind, types = column.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _bits_before(column.storage, rows, is_lasting=is_lasting)
    validity = 0 if is_lasting or column.buffers()[0] is None else rows
    if (bits := _VALUE_BITS.get(kind.id)) is not None:
        return rows * (max(bits, 8) if is_lasting else bits) + validity
    if types.is_struct(kind):
        fields = (column.field(index) for index in range(kind.num_fields))
        inner_bits = (_bits_before(field, rows, is_lasting=is_lasting) for field in fields)
        return sum(inner_bits, 0 * rows + validity)
    if types.is_fixed_size_list(kind):
        values = column.values.slice(column.offset * kind.list_size)
        return _bits_before(values, rows * kind.list_size, is_lasting=is_lasting) + validity
    if not has_offsets(kind):
        if (shared := _list_shared_bits(column, is_lasting=is_lasting)) is None:
            return rows * _value_bits(column) + validity
        before = np.zeros(len(column) + 1, np.int64)
        np.cumsum(shared, out=before[1:])
        return before[rows] + validity
    offsets = view_offsets(column)
    inner = _from_first(offsets, rows)
    if is_variable_list(kind) or types.is_map(kind):
        content = _bits_before(column.values.slice(int(offsets[0])), inner, is_lasting=is_lasting)
    else:
        content = inner * 8
    return content + rows * (8 * offsets.itemsize) + validity


def _from_first(offsets: NDArray[Any], rows: Rows) -> Rows:
    if isinstance(rows, int):
        return int(offsets[rows]) - int(offsets[0])
    distances: NDArray[np.int64] = np.subtract(offsets[rows], offsets[0], dtype=np.int64)
    return distances


def _list_shared_bits(column: pa.Array, *, is_lasting: bool) -> NDArray[np.int64] | None:
    """Return the bits of each value that rows may share, in a dictionary or as a view, without these; None of other types."""
    if pt.is_dictionary(column.type):
        values, indices = column.dictionary, column.indices
        bits = np.append(np.diff(_bits_before(values, np.arange(len(values) + 1), is_lasting=is_lasting)), 0)
        places = indices.fill_null(0) if indices.null_count else indices
        found: NDArray[np.int64] = bits.take(places.to_numpy(zero_copy_only=False), mode="clip")
        if indices.null_count:
            found[indices.is_null().to_numpy(zero_copy_only=False)] = 0
        return found
    if column.type.id not in _VIEWS:
        return None
    # Views of 16 bytes each, which begin with the length.
    views = np.frombuffer(column.buffers()[1] or b"", np.int32)[4 * column.offset :: 4][: len(column)]
    return (np.maximum(views, 0) + np.int64(_OFFSETS[pa.large_string().id].itemsize)) * 8


def _value_bits(column: pa.Array) -> int:
    try:
        return int(column.type.bit_width)
    except ValueError:
        return 8 * int(column.nbytes) // max(1, len(column))


def split_path(path: str, columns: Sequence[str]) -> tuple[str, list[str]]:
    """Split a path, such as ``meta.time`` or ``meta/time``, into its column and the names of the fields below it.

    >>> split_path("meta.time", ["label", "meta"])
    ('meta', ['time'])
    >>> split_path("meta.time", ["meta", "meta.time"])
    ('meta.time', [])
    """
    column, *fields = [path] if path in columns else dotted(path).split(".")
    if column not in columns:
        raise unknown_column(column, columns)
    return column, fields


def check_path(path: str, schema: pa.Schema) -> pa.DataType:
    column, fields = split_path(path, schema.names)
    kind = schema.field(schema.names.index(column)).type
    for name in fields:
        index = kind.get_field_index(name) if pt.is_struct(kind) else -1
        if index < 0:
            raise UsageError(f"column {path!r}: there is no field {name!r} in {kind}")
        kind = kind.field(index).type
    return kind


def find_value(batch: pa.RecordBatch, path: str) -> pa.Array:
    """Return the values of a column or of a field in it: ``meta.label``, ``meta/label``."""
    check_path(path, batch.schema)
    column, fields = split_path(path, batch.schema.names)
    values = batch.column(batch.schema.names.index(column))
    if not fields:
        return values
    import pyarrow.compute as pc

    return pc.struct_field(values, fields)


def dotted(path: str) -> str:
    """Return a path with dots as separators.

    >>> dotted("/meta/time")
    'meta.time'
    """
    return path.strip("/").replace("/", ".")


def list_known(
    name: str, known: Iterable[str], show: Callable[[str], str] = str, *, most: int = _MOST_KNOWN
) -> str:
    """Return the known names for a message about an unknown one; of more than `most` those like it, or the first.

    >>> list_known("lable", ["label", "id"]), list_known("lable", ["id", *map(str, range(30)), "label"], repr)
    ('label, id', "'label', ...")
    """
    names = list(known)
    shown = names if len(names) <= most else get_close_matches(name, names) or names[:_MOST_KNOWN]
    return (", ".join(map(show, shown)) or "none") + (", ..." if len(names) > len(shown) else "")


def unknown_column(name: str, columns: Iterable[str]) -> UsageError:
    return UsageError(f"there is no column {name!r}; there are: {list_known(name, columns)}")


def find_nulls(batch: pa.RecordBatch) -> set[str]:
    """Return the names of the columns that have nulls, also within lists of a fixed size, and the paths of such fields in structs."""
    found: set[str] = set()
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if column.null_count or column.type.id in _WITH_FIELDS:  # a table may have thousands of others
            found.update(_list_nulls(name, column))
    return found


def _list_nulls(path: str, column: pa.Array, is_null: bool = False) -> Iterator[str]:
    if is_null := is_null or _has_null(column):
        yield path
    if pt.is_struct(column.type):
        for index, field in enumerate(column.type):
            yield from _list_nulls(f"{path}.{field.name}", column.field(index), is_null)


def _has_null(column: pa.Array) -> bool:
    while not column.null_count and pt.is_fixed_size_list(column.type):
        column = column.flatten()
    return bool(column.null_count)


def pack_schema(schema: pa.Schema) -> str:
    """Return a schema as text: the message of Arrow's IPC format in base64."""
    return base64.b64encode(schema.serialize()).decode()


def unpack_schema(text: str) -> pa.Schema:
    """Return the schema that `pack_schema` was given, with its metadata."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def take_rows(batch: pa.RecordBatch, index: NDArray[np.intp]) -> pa.RecordBatch:
    """Return the rows of a batch at `index`, copied."""
    if batch.num_columns == 0:
        return batch.slice(0, len(index))  # take would lose the number of rows
    if any(map(_is_cut, batch.columns)):
        batch = pa.RecordBatch.from_arrays([*map(uncut, batch.columns)], schema=batch.schema)
    rows = wrap_values(index, pa.int64())
    if not any(map(_is_list_of_numbers, batch.columns)):
        return _take(batch, rows)
    columns = [
        unwrap_numbers(_take(_wrap_numbers(column), rows), column.type)
        if _is_list_of_numbers(column)
        else _take(column, rows)
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _take(values: Any, rows: pa.Array) -> Any:
    """Return `pyarrow.compute.take(values, rows)`, whose module is a tenth of a small run: it makes 300 functions.

    May go when importing that costs little.
    """
    from pyarrow._compute import call_function  # late: commands that take nothing start faster

    return call_function("take", [values, rows])


def uncut(array: pa.Array) -> pa.Array:
    """Return an array that Arrow takes the right values from: of fixed-size lists in fixed-size lists a copy, if it is a slice."""
    return concat_one(array) if _is_cut(array) else array


def _is_cut(array: pa.Array) -> bool:
    """Tell whether an array of fixed-size lists, or one in it, begins within its memory."""
    if not _holds_fixed_lists(array.type):
        return False
    if isinstance(array, pa.ExtensionArray):
        return _is_cut(array.storage)
    if pt.is_struct(array.type):
        parts = [array.field(index) for index in range(array.type.num_fields)]
    else:
        parts = [array.keys, array.items] if pt.is_map(array.type) else [array.values]
    return bool(array.offset) or any(map(_is_cut, parts))


def concat_one(column: pa.Array) -> pa.Array:
    """Return a copy that begins where its memory does, at any depth."""
    return pa.concat_arrays([column, column.slice(0, 0)])


def _is_list_of_numbers(column: pa.Array) -> bool:
    """Tell whether the values of a column are lists of whole bytes without nulls.

    Arrow takes such lists number by number, binary values as a whole: for lists of 10 to 1,000 numbers, that is 1.6 to 5
    times faster, and needs no index of all the numbers.
    """
    kind = column.type
    if not is_variable_list(kind) or not pa.types.is_primitive(kind.value_type):
        return False
    return not pa.types.is_boolean(kind.value_type) and not column.values.null_count


def _wrap_numbers(column: pa.Array) -> pa.Array:
    """Return lists of numbers as binary values, without a copy of the numbers."""
    if column.offset and column.null_count:
        column = concat_one(column)
    values = column.values
    offsets = (view_offsets(column).astype(np.int64) + values.offset) * (values.type.bit_width // 8)
    validity = column.buffers()[0] if column.null_count else None
    buffers = [validity, pa.py_buffer(offsets), values.buffers()[1] or pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.large_binary(), len(column), buffers)


def unwrap_numbers(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return binary values as lists of numbers, at a multiple of whose width each begins in memory."""
    validity, _, content = column.buffers()
    offsets = view_offsets(column) // (kind.value_type.bit_width // 8)
    numbers = pa.Array.from_buffers(kind.value_type, int(offsets[-1]), [None, content])
    stored = pa.py_buffer(offsets if pa.types.is_large_list(kind) else offsets.astype(np.int32))
    return pa.Array.from_buffers(kind, len(column), [validity, stored], children=[numbers])


def _holds_fixed_lists(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_fixed_lists(kind.storage_type)
    return pa.types.is_fixed_size_list(kind) or any(
        _holds_fixed_lists(kind.field(child).type) for child in range(kind.num_fields)
    )
