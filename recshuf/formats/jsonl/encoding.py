"""Table form to JSON lines, column by column.

Types with a form in JSON that is not obvious:

=====================  ==========================================================================
float                  shortest text that reads back equal in its own width, never like an integer
decimal                a number with exactly its digits
binary                 base64 text
timestamp              ISO 8601; with a time zone as UTC and ``Z``, without one as it stands
date, time             ``YYYY-MM-DD``, ``HH:MM:SS`` with the fraction digits of the unit
duration               integer count of its unit
map                    array of ``{"key": ..., "value": ...}``: no key is lost, in any type or order
dictionary, run ends   the values themselves
extension              its storage
=====================  ==========================================================================
"""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.errors import ConversionError
from recshuf.formats.jsonl.scalars import ENCODERS, TEXT, concat, encode_floats
from recshuf.records.arrays.arrow_views import is_any_list


def check_schema(schema: pa.Schema) -> None:
    """Make sure that every field has a form in JSON.

    Raises
    ------
    ConversionError
        Naming the field whose type has none, or whose name occurs twice on its level.
    """
    _check_fields(list(schema), "")


def encode_lines(batch: pa.RecordBatch, nan_as_null: bool) -> pa.Array:
    r"""Return one compact JSON object with a trailing newline for each row, as a large_binary array.

    Keys come in the order of the schema, and a null is written as ``null``.

    >>> encode_lines(pa.record_batch({"a": [1, None], "b": ["x", "y"]}), nan_as_null=False).to_pylist()
    [b'{"a":1,"b":"x"}\n', b'{"a":null,"b":"y"}\n']

    Parameters
    ----------
    batch
        Rows of a schema that `check_schema` accepts.

    Raises
    ------
    ConversionError
        Naming the field that holds a value without a form in JSON.
    """
    lines = _encode_fields(list(batch.schema), batch.columns, batch.num_rows, "", "}\n", nan_as_null)
    return pa.Array.from_buffers(pa.large_binary(), len(lines), lines.buffers(), offset=lines.offset)


def _check_fields(fields: list[pa.Field], parent: str) -> None:
    for name, count in Counter(field.name for field in fields).items():
        if count > 1:
            raise ConversionError(_join(parent, name), f"JSON cannot hold {count} fields of one name")
    for field in fields:
        _check_type(field.type, _join(parent, field.name))


def _check_type(kind: pa.DataType, path: str) -> None:
    if isinstance(kind, pa.BaseExtensionType):
        _check_type(kind.storage_type, path)
    elif pt.is_struct(kind):
        _check_fields(list(kind), path)
    elif pt.is_map(kind):
        _check_type(kind.key_type, f"{path}.key")
        _check_type(kind.item_type, f"{path}.value")
    elif is_any_list(kind) or pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        _check_type(kind.value_type, f"{path}[]" if is_any_list(kind) else path)
    elif not pt.is_floating(kind) and not any(accepts(kind) for accepts, _ in ENCODERS):
        raise ConversionError(path, f"the type {kind} has no form in JSON", remedy="leave the column out")


def encode_values(array: pa.Array, path: str, nan_as_null: bool) -> pa.Array:
    """Return the JSON text of each value as a large_string array, null where the value is null."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return encode_values(array.storage, path, nan_as_null)
    if pt.is_dictionary(kind) and pt.is_string(kind.value_type):
        return encode_values(array.dictionary, path, nan_as_null).take(array.indices)
    if pt.is_dictionary(kind):
        return encode_values(array.dictionary_decode(), path, nan_as_null)
    if pt.is_run_end_encoded(kind):
        return encode_values(pc.run_end_decode(array), path, nan_as_null)
    if pt.is_struct(kind):
        texts = _encode_fields(list(kind), array.flatten(), len(array), path, "}", nan_as_null)
        return _mask(texts, array)
    if pt.is_map(kind):
        entry = pa.struct([pa.field("key", kind.key_type), pa.field("value", kind.item_type)])
        return _encode_list(array.cast(pa.list_(entry)), path, nan_as_null)
    if is_any_list(kind):
        return _encode_list(array, f"{path}[]", nan_as_null)
    if pt.is_floating(kind):
        return encode_floats(array, path, nan_as_null)
    return next(encode for accepts, encode in ENCODERS if accepts(kind))(array, path)


def _encode_fields(
    fields: list[pa.Field], columns: list[pa.Array], rows: int, path: str, end: str, nan_as_null: bool
) -> pa.Array:
    parts: list[str | pa.Array] = []
    for field, column in zip(fields, columns, strict=True):
        parts.append(f"{',' if parts else '{'}{json.dumps(field.name, ensure_ascii=False)}:")
        parts.append(encode_values(column, _join(path, field.name), nan_as_null))
    if not parts:
        return pa.repeat(pa.scalar("{" + end, TEXT), rows)
    return concat(*parts, end, null="null")


def _encode_list(array: pa.Array, path: str, nan_as_null: bool) -> pa.Array:
    """Encode lists of any kind: the elements as one flat array, then joined list by list."""
    elements = pc.fill_null(encode_values(array.flatten(), path, nan_as_null), "null")
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ConversionError(path, f"{offsets[-1]} list elements are too many to convert at once")
    lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements)
    return _mask(concat("[", pc.binary_join(lists, pa.scalar(",", TEXT)), "]"), array)


def _mask(texts: pa.Array, array: pa.Array) -> pa.Array:
    return pc.if_else(array.is_valid(), texts, pa.scalar(None, TEXT)) if array.null_count else texts


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name
