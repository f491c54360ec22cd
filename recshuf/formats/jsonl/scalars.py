"""JSON text of the scalar values of an Arrow array, all at once.

Every function takes an array of one type and returns a ``large_string`` array of the same length, null where
the value is null, or raises `ConversionError` for a value that JSON cannot represent.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.errors import ConversionError
from recshuf.formats.jsonl import base64_text
from recshuf.formats.values.times import check_times
from recshuf.records.arrays.arrow_views import view_bytes, view_offsets
from recshuf.records.arrays.decimals import plain_decimals

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = pa.large_string()
_SHORT_ESCAPES = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"}


def concat(*parts: str | pa.Array, null: str | None = None) -> pa.Array:
    """Return the parts joined row by row; at least one of them is an array.

    A row with a null part is null, or has `null` in its place if that is given.
    """
    texts = [pa.scalar(part, TEXT) if isinstance(part, str) else part for part in (*parts, "")]
    if null is None:
        return pc.binary_join_element_wise(*texts)
    return pc.binary_join_element_wise(*texts, null_handling="replace", null_replacement=null)


def encode_floats(array: pa.Array, field: str, nan_as_null: bool) -> pa.Array:
    """Encode floats as the shortest text that reads back as the same value of the same width.

    A text never looks like an integer (``1.0``, not ``1``), so that readers that infer types see a float.
    """
    values = array.to_numpy(zero_copy_only=False)
    finite = np.isfinite(values)
    broken = pa.array(~finite & array.is_valid().to_numpy(zero_copy_only=False))
    if broken.true_count and not nan_as_null:
        raise ConversionError(
            field, "NaN and infinities have no form in JSON", remedy="write them as null with --nan-as-null"
        )
    if array.type == pa.float16():
        texts = _half_texts().take(pa.array(np.ascontiguousarray(values).view(np.uint16)))
        texts = pc.if_else(array.is_valid(), texts, pa.scalar(None, TEXT))
    else:
        texts = _mark_as_floats(array.cast(TEXT), values[finite])
    return pc.if_else(broken, pa.scalar(None, TEXT), texts) if broken.true_count else texts


def _mark_as_floats(texts: pa.Array, finite: np.ndarray) -> pa.Array:
    if not np.any(finite == np.trunc(finite)):
        return texts
    return pc.replace_substring_regex(texts, r"^(-?[0-9]+)$", r"\1.0")


@cache
def _half_texts() -> pa.Array:
    """Return the texts of the 65536 half floats, indexed by their bits: Arrow would write them as doubles."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    return pa.array(halves.astype(str).tolist(), TEXT)


def _encode_strings(array: pa.Array, field: str) -> pa.Array:
    """Encode text, quoted; only quotes, backslashes and control characters are escaped."""
    texts = array.cast(TEXT, safe=False)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ConversionError(
            field, "a text is not valid UTF-8, which JSON requires", remedy="keep the column as binary"
        ) from error
    return concat('"', _escape(texts), '"')


def _escape(texts: pa.Array) -> pa.Array:
    data = view_bytes(texts)
    if not len(data):
        return texts
    if (data == ord("\\")).any():
        texts = pc.replace_substring(texts, "\\", "\\\\")
    if (data == ord('"')).any():
        texts = pc.replace_substring(texts, '"', '\\"')
    if data.min() < ord(" "):
        for code in np.unique(data[data < ord(" ")]).tolist():
            escape = _SHORT_ESCAPES.get(code, f"\\u{code:04x}")
            texts = pc.replace_substring(texts, chr(code), escape)
    return texts


def _encode_binary(array: pa.Array, _: str) -> pa.Array:
    """Encode byte strings as base64 text."""
    array = array.cast(pa.large_binary())
    text, lengths = base64_text.encode(view_bytes(array), np.diff(view_offsets(array)))
    ends = np.concatenate(([0], np.cumsum(lengths)))
    texts = pa.LargeStringArray.from_buffers(len(array), pa.py_buffer(ends), pa.py_buffer(text))
    if array.null_count:
        texts = pc.if_else(array.is_valid(), texts, pa.scalar(None, TEXT))
    return concat('"', texts, '"')


def _encode_timestamps(array: pa.Array, field: str) -> pa.Array:
    """Encode as ISO 8601 with all digits of the unit; zoned ones as UTC with ``Z``, others without a zone."""
    check_times(array, field)
    end = '"' if array.type.tz is None else 'Z"'
    texts = array.cast(pa.timestamp(array.type.unit)).cast(TEXT)
    return concat('"', pc.replace_substring(texts, " ", "T"), end)


def _encode_times(array: pa.Array, field: str) -> pa.Array:
    """Encode dates as ``YYYY-MM-DD``, times as ``HH:MM:SS`` with all digits of the unit."""
    check_times(array, field)
    return concat('"', array.cast(TEXT), '"')


def _encode_decimals(array: pa.Array, field: str) -> pa.Array:
    """Encode decimals with all digits, those of a negative scale as integers."""
    return plain_decimals(array, field).cast(TEXT)


ENCODERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, str], pa.Array]], ...] = (
    (pt.is_null, lambda array, _: pa.nulls(len(array), TEXT)),
    # Arrow writes these two as JSON does, and exactly.
    (pt.is_boolean, lambda array, _: array.cast(TEXT)),
    (pt.is_integer, lambda array, _: array.cast(TEXT)),
    (pt.is_decimal, _encode_decimals),
    (pt.is_string, _encode_strings),
    (pt.is_large_string, _encode_strings),
    (pt.is_string_view, _encode_strings),
    (pt.is_binary, _encode_binary),
    (pt.is_large_binary, _encode_binary),
    (pt.is_binary_view, _encode_binary),
    (pt.is_fixed_size_binary, _encode_binary),
    (pt.is_timestamp, _encode_timestamps),
    (pt.is_date, _encode_times),
    (pt.is_time, _encode_times),
    (pt.is_duration, lambda array, _: array.cast(pa.int64()).cast(TEXT)),
)
"""The encoder of each type, called with the array and the name of its field; floats need an option more, see `encode_floats`."""
