"""Arrow types that `pyarrow.json` cannot read: the type read instead, and the cast from it.

Values of type null are rebuilt as well: inside lists pyarrow gives them the wrong length.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.errors import ConversionError
from recshuf.formats.jsonl.encoding import decode_base64
from recshuf.formats.jsonl.line_checks import BadRecord, Path, name_path, shorten
from recshuf.formats.jsonl.rewriting import is_json, walk_types
from recshuf.records.arrays import FLAT, is_contiguous_list, view_bytes, view_offsets
from recshuf.records.conforming import fit_digits, roomy_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Cast = Callable[[pa.Array, pa.DataType], pa.Array]

LITERAL = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false"


def read_schema_for(schema: pa.Schema) -> pa.Schema:
    """Return the schema by which `pyarrow.json` reads records for `schema`."""
    return pa.schema(_read_fields(schema, ()))


def _read_fields(fields: Iterable[pa.Field], path: Path) -> list[pa.Field]:
    return [pa.field(field.name, _read_type(field.type, (*path, field.name))) for field in fields]


def _read_type(kind: pa.DataType, path: Path) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct(_read_fields(kind, path))
    if is_contiguous_list(kind):
        return pa.list_(_read_type(kind.value_type, (*path, None)))
    if pt.is_map(kind) and pt.is_string(kind.key_type):
        return pa.list_(
            pa.struct([("key", pa.string()), ("value", _read_type(kind.item_type, (*path, None)))])
        )
    if any(accepts(kind) for accepts in _READ_DIRECTLY):
        return kind
    if _is_decimal(kind):
        return roomy_type(kind)
    for accepts, read_as, _ in _CASTS:
        if accepts(kind):
            return read_as
    raise ConversionError(name_path(path), f"the type {kind} cannot be read from JSON")


def cast_column(read: pa.Array, kind: pa.DataType, rows: int, path: Path) -> pa.Array:
    """Return a column that was read by `read_schema_for`, in the type of the schema and as long as `rows`.

    Raises `BadRecord` if a value does not fit the type.
    """
    if kind.id in FLAT and read.type == kind:
        return read
    if pt.is_null(kind):
        return pa.nulls(rows)
    if pt.is_struct(kind):
        return _cast_struct(read, kind, path)
    if is_contiguous_list(kind):
        return _cast_list(read, kind, path)
    if pt.is_map(kind):
        return _cast_map(read, kind, path)
    if _is_decimal(kind):
        return _cast_scalars(read, kind, path, fit_digits)
    if read.type == kind:
        return read
    return _cast_scalars(read, kind, path, next(cast for accepts, _, cast in _CASTS if accepts(kind)))


def _cast_struct(read: pa.Array, kind: pa.DataType, path: Path) -> pa.Array:
    children = []
    for index, field in enumerate(kind):
        child_path = (*path, field.name)
        child = cast_column(read.field(index), field.type, len(read), child_path)
        check_nulls(child, field, read, child_path)
        children.append(child)
    return pa.Array.from_buffers(kind, len(read), read.buffers()[:1], children=children)


def _cast_list(read: pa.Array, kind: pa.DataType, path: Path) -> pa.Array:
    field, offsets = kind.value_field, read.offsets
    values = cast_column(read.values, field.type, offsets[-1].as_py(), (*path, None))
    check_nulls(values, field, None, (*path, None))
    if pt.is_large_list(kind):  # Arrow's cast gives nulls of type null the wrong length
        ends = pa.py_buffer(view_offsets(read).astype(np.int64))
        return pa.Array.from_buffers(kind, len(read), [read.buffers()[0], ends], children=[values])
    buffers = [read.buffers()[0], offsets.buffers()[1]]
    lists = pa.Array.from_buffers(pa.list_(field), len(read), buffers, children=[values])
    if pt.is_fixed_size_list(kind):
        _check_lengths(lists, kind.list_size, path)
    return lists if lists.type == kind else lists.cast(kind)


def _cast_map(read: pa.Array, kind: pa.DataType, path: Path) -> pa.Array:
    offsets = view_offsets(read)
    entries = read.values.slice(0, int(offsets[-1]))
    keys, values = (
        entries.field(0),
        cast_column(entries.field(1), kind.item_type, len(entries), (*path, None)),
    )
    check_nulls(keys, kind.key_field, None, (*path, None))
    check_nulls(values, kind.item_field, None, (*path, None))
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    rows = np.repeat(np.arange(len(read)), np.diff(offsets))
    codes = rows * (int(codes.max(initial=0)) + 1) + codes[int(offsets[0]) :]
    if len(np.unique(codes)) < len(codes):
        raise BadRecord("has a key twice in one object", path=path)
    fields = [kind.key_field, kind.item_field]
    entries = pa.StructArray.from_arrays([keys, values], fields=fields)
    return pa.Array.from_buffers(kind, len(read), read.buffers()[:2], children=[entries])


def _check_lengths(lists: pa.Array, size: int, path: Path) -> None:
    lengths = pc.list_value_length(lists)
    wrong = lengths.filter(pc.not_equal(lengths, size))
    if len(wrong):
        raise BadRecord(f"has {wrong[0]} elements where the schema says {size}", path=path)


def check_nulls(values: pa.Array, field: pa.Field, parent: pa.Array | None, path: Path) -> None:
    """Raise `BadRecord` if a required field is null in a parent that is not."""
    if field.nullable or not values.null_count:
        return
    missing = values.is_null() if parent is None else pc.and_(values.is_null(), parent.is_valid())
    if missing.true_count:
        raise BadRecord("is missing or null where the schema requires a value", path=path)


def _is_decimal(kind: pa.DataType) -> bool:
    return bool(pt.is_decimal128(kind) or pt.is_decimal256(kind))


def _cast_scalars(read: pa.Array, kind: pa.DataType, path: Path, cast: Cast) -> pa.Array:
    try:
        return cast(read, kind)
    except pa.ArrowInvalid as error:
        detail = shorten(str(error).partition(". If these")[0])
        raise BadRecord(f"cannot be read as {kind} ({detail})", path=path) from error


def _cast_half(read: pa.Array, kind: pa.DataType) -> pa.Array:
    with np.errstate(over="ignore"):  # `check_floats` finds infinite values
        halves = pc.fill_null(read, 0).to_numpy(zero_copy_only=False).astype(np.float16)
    return pa.Array.from_buffers(kind, len(read), [read.buffers()[0], pa.py_buffer(halves)])


def _cast_time(read: pa.Array, kind: pa.DataType) -> pa.Array:
    moments = pc.binary_join_element_wise("1970-01-01T", read, "")  # Arrow parses no bare times
    return moments.cast(pa.timestamp(kind.unit)).cast(kind)


def _cast_base64(read: pa.Array, kind: pa.DataType) -> pa.Array:
    texts = pc.fill_null(read, "").cast(pa.large_string())
    decoded = decode_base64(view_bytes(texts), np.diff(view_offsets(texts)))
    if decoded is None:
        raise pa.ArrowInvalid("not base64 with the standard alphabet and padding")
    values, lengths = decoded
    ends = np.concatenate(([0], np.cumsum(lengths)))
    buffers = [read.buffers()[0], pa.py_buffer(ends), pa.py_buffer(values)]
    return pa.Array.from_buffers(pa.large_binary(), len(read), buffers).cast(kind)


_READ_DIRECTLY: tuple[Callable[[pa.DataType], bool], ...] = (
    pt.is_null,
    pt.is_boolean,
    pt.is_integer,
    pt.is_float32,
    pt.is_float64,
    pt.is_string,
    pt.is_large_string,
)
_CASTS: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType, Cast], ...] = (
    (pt.is_float16, pa.float64(), _cast_half),
    (pt.is_timestamp, pa.string(), pa.Array.cast),
    (pt.is_date32, pa.string(), pa.Array.cast),
    (pt.is_date64, pa.string(), lambda read, kind: read.cast(pa.date32()).cast(kind)),
    (pt.is_time, pa.string(), _cast_time),
    (pt.is_duration, pa.int64(), pa.Array.cast),
    (pt.is_binary, pa.string(), _cast_base64),
    (pt.is_large_binary, pa.string(), _cast_base64),
    (is_json, pa.string(), lambda read, kind: pa.ExtensionArray.from_storage(kind, read)),
)


def text_only_names(schema: pa.Schema) -> list[str]:
    """Return the names of fields that are text wherever they occur, outside of maps."""
    names: dict[str, bool] = {}
    for (*_, name), kind in walk_types(schema, into_maps=False):
        if name is not None:
            names[name] = names.get(name, True) and (pt.is_string(kind) or pt.is_large_string(kind))
    return [name for name, is_text in names.items() if is_text]


def quote_literals(lines: pa.Array, names: list[str]) -> pa.Array:
    r"""Return lines with the numbers and booleans of the named fields quoted, digits unchanged.

    In valid JSON, a name in unescaped quotes followed by a colon is a key.

    >>> line = pa.array(['{"id": 1.50, "n": 2}'], pa.large_string())
    >>> quote_literals(line, ["id"]).to_pylist()
    ['{"id": "1.50", "n": 2}']
    """
    keys = "|".join(re.escape(json.dumps(name, ensure_ascii=False)[1:-1]) for name in names)
    pattern = rf'([^\\])"({keys})"(\s*:\s*)({LITERAL})'
    return pc.replace_substring_regex(lines, pattern, r'\1"\2"\3"\4"')
