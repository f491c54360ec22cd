"""Values as texts: what JSONL writes of them, in quotes or not, by what values of all formats are told apart, and which have none.

The text of a value does not depend on other values, nor on the format that holds it: 7 is ``7`` in Parquet, HDF5 and, as
number or string, in JSONL. docs/store.md has the whole table. `pyarrow.compute` is imported late: it takes long, and HDF5 imports
this without need.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.interfaces import ValueReader
from recshuf.records.arrays import check_path, find_value, is_bytes, split_path, storage_of
from recshuf.records.conforming import conform, plain_decimals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from recshuf.interfaces import Decoder, Source, Traits


TEXT = pa.large_string()
_BYTES = pa.large_binary()
_SIGNIFICANT_BITS = {16: 11, 32: 24, 64: 53}
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SECONDS_PER_DAY = 86_400
# 0000-01-01 and 9999-12-31: dates beyond need a convention that ISO 8601 leaves open.
_FIRST_DAY = -719_528
_LAST_DAY = 2_932_896
_FIRST_READ = -(2**63 // 10**9) * 10**9  # the first whole second of int64, in nanoseconds
_UNSAID = "a date or time lies outside of what ISO 8601 text can say (years 0000 to 9999, times of one day)"
_UNREAD = "a date or time lies before 1677-09-21T00:12:44, the first whole second of timestamp[ns]; its text cannot be read back"
# The well-formed byte sequences of the Unicode standard: no surrogates, nothing overlong, nothing beyond U+10FFFF.
_UTF8 = (
    r"\A(?s:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]"
    r"|\xe0[\xa0-\xbf][\x80-\xbf]|\xed[\x80-\x9f][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*\z"
)


def write_floats(array: pa.Array) -> pa.Array:
    """Return the shortest text that reads back as the same value of the same width, and never looks like an integer.

    NaN and infinities are ``nan``, ``inf`` and ``-inf``.
    """
    import pyarrow.compute as pc

    values = array.to_numpy(zero_copy_only=False)
    if array.type == pa.float16():
        texts = _half_texts().take(pa.array(np.ascontiguousarray(values).view(np.uint16)))
        return pc.if_else(array.is_valid(), texts, pa.scalar(None, TEXT))
    texts = array.cast(TEXT)
    finite = values[np.isfinite(values)]
    if np.any(finite == np.trunc(finite)):
        texts = pc.replace_substring_regex(texts, r"^(-?[0-9]+)$", r"\1.0")
    return texts


@cache
def _half_texts() -> pa.Array:
    """Return the texts of the 65536 half floats, indexed by their bits: Arrow would write them as doubles."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    return pa.array(halves.astype(str).tolist(), TEXT)


def _write_directly(array: pa.Array, _: str) -> pa.Array:
    return array.cast(TEXT)


def _write_timestamps(array: pa.Array, field: str) -> pa.Array:
    """Return ISO 8601 with all digits of the unit; zoned ones as UTC with ``Z``, others without a zone."""
    import pyarrow.compute as pc

    check_times(array, field)
    texts = pc.replace_substring(array.cast(pa.timestamp(array.type.unit)).cast(TEXT), " ", "T")
    if array.type.tz is None:
        return texts
    return pc.binary_join_element_wise(texts, pa.scalar("Z", TEXT), pa.scalar("", TEXT))


def _write_times(array: pa.Array, field: str) -> pa.Array:
    """Return ``YYYY-MM-DD`` of dates, ``HH:MM:SS`` of times with all digits of the unit."""
    check_times(array, field)
    return array.cast(TEXT)


BARE: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, str], pa.Array]], ...] = (
    # Arrow writes these two as JSON does, and exactly.
    (pt.is_boolean, _write_directly),
    (pt.is_integer, _write_directly),
    (pt.is_decimal, lambda array, field: plain_decimals(array, field).cast(TEXT)),
    (pt.is_duration, lambda array, _: array.cast(pa.int64()).cast(TEXT)),
)
"""How types are written that JSON has without quotes, called with the array and the name of its field; floats: `write_floats`."""
QUOTED = ((pt.is_timestamp, _write_timestamps), (pt.is_date, _write_times), (pt.is_time, _write_times))
"""The same for types of which JSON has the text in quotes."""


def find_texts(array: pa.Array, field: str) -> pa.LargeBinaryArray:
    """Return the text of each value, null where it is null or NaN."""
    import pyarrow.compute as pc

    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return find_texts(array.storage, field)
    if pt.is_dictionary(kind):
        return find_texts(conform(array, kind.value_type), field)
    if pt.is_run_end_encoded(kind):
        return find_texts(pc.run_end_decode(array), field)
    if is_bytes(kind) or pt.is_null(kind):
        return array.cast(_BYTES)
    if pt.is_floating(kind):
        texts = write_floats(array)
        values = array.to_numpy(zero_copy_only=False)
        if np.signbit(values[values == 0]).any():
            texts = pc.if_else(pc.equal(texts, "-0.0"), pa.scalar("0.0", TEXT), texts)
        nans = np.isnan(values)
        if nans.any():
            texts = pc.if_else(pa.array(nans), pa.scalar(None, TEXT), texts)
        return texts.cast(_BYTES)
    write = next(write for accepts, write in (*BARE, *QUOTED) if accepts(kind))
    return write(array, field).cast(_BYTES)


def find_value_reader(source: Source, traits: Traits, paths: Sequence[str]) -> ValueReader | None:
    """Return what `Source.value_reader` does; by default one of the table form, if that is known at once and of no lines."""
    reader = source.value_reader(paths)
    if reader is None and not traits.is_lines and (decoder := source.decoder()).schema is not None:
        return TableValueReader(decoder, [one.name for one in source.inputs], paths)
    return reader


class TableValueReader(ValueReader):
    """Reads fields of batches that a decoder makes tables of, without having observed them.

    Parameters
    ----------
    names
        Names of the inputs.
    columns
        The places of the native columns that the decoder takes; None for all.
    """

    def __init__(
        self,
        decoder: Decoder,
        names: Sequence[str],
        paths: Sequence[str],
        columns: Sequence[int] | None = None,
    ) -> None:
        self._decoder, self._names, self._paths, self._columns = decoder, names, paths, columns
        schema = decoder.finish()
        for path in paths:
            _check_field(path, schema)

    def read(
        self, batch: pa.RecordBatch, input_index: int, first_row: int
    ) -> tuple[pa.LargeBinaryArray, ...]:
        native = batch if self._columns is None else batch.select(self._columns)
        try:
            table = self._decoder.decode(native)
        except Exception:
            self._decoder.observe(native, input_index, first_row)  # raises an error that names the record
            raise
        name = self._names[input_index]
        return tuple(locate_texts(find_value(table, path), path, name, first_row) for path in self._paths)


def locate_texts(array: pa.Array, path: str, name: str, first_row: int) -> pa.LargeBinaryArray:
    """Return what `find_texts` does; an `InputError` names the input, the row and the field of a value that has none."""
    try:
        return find_texts(array, path)
    except ConversionError as error:
        if len(array) > 1:
            half = len(array) // 2
            locate_texts(array[:half], path, name, first_row)
            locate_texts(array[half:], path, name, first_row + half)
        place = f"row {first_row}, field {path!r}"
        raise InputError(name, error.problem, place=place, remedy=error.remedy) from error


def _check_field(path: str, schema: pa.Schema) -> None:
    kind = check_path(path, schema)
    column, _ = split_path(path, schema.names)
    if (count := schema.names.count(column)) > 1:
        raise UsageError(f"column {column!r}: there are {count} of this name; rename them")
    check_type(kind, path)


def check_type(kind: pa.DataType, path: str) -> None:
    kind = storage_of(kind)
    if pt.is_struct(kind):
        raise UsageError(f"column {path!r}: holds {kind}; name a field inside it")
    if not _has_text(kind):
        raise UsageError(f"column {path!r}: values of type {kind} have no text; name another field")


def _has_text(kind: pa.DataType) -> bool:
    is_plain = is_bytes(kind) or pt.is_null(kind) or pt.is_floating(kind)
    return is_plain or any(accepts(kind) for accepts, _ in (*BARE, *QUOTED))


def exact_limit(kind: pa.DataType) -> int:
    """Return the number up to which floats of this type hold every whole number.

    >>> import pyarrow as pa
    >>> exact_limit(pa.float16()), exact_limit(pa.float32())
    (2048, 16777216)
    """
    return 1 << _SIGNIFICANT_BITS[kind.bit_width]


def check_times(array: pa.Array, field: str) -> None:
    """Raise `ConversionError` unless text can say all values of dates, times of day, or time stamps, these in UTC.

    Arrow would write an error in place of such a value. It reads no text within the first second of timestamp[ns], which is not a whole one.
    """
    kind = array.type
    ticks = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pt.is_date32(kind):
        _check_range(ticks, _FIRST_DAY, _LAST_DAY, field)
        return
    per_day = _SECONDS_PER_DAY * PER_SECOND["ms" if pt.is_date64(kind) else kind.unit]
    if pt.is_time(kind):
        _check_range(ticks, 0, per_day - 1, field)
        return
    if pt.is_date64(kind) and not has_factor(ticks, per_day):
        raise ConversionError(field, "a date64 holds a time of day", remedy="make it a timestamp")
    if pt.is_timestamp(kind) and kind.unit == "ns":
        _check_range(ticks, _FIRST_READ, 2**63 - 1, field, _UNREAD)
        return
    _check_range(ticks, _FIRST_DAY * per_day, (_LAST_DAY + 1) * per_day - 1, field)


def has_factor(values: pa.Array, factor: int) -> bool:
    import pyarrow.compute as pc

    multiples = pc.multiply(pc.divide(values, factor), factor)
    return bool(pc.all(pc.equal(multiples, values), min_count=0).as_py())


def _check_range(values: pa.Array, low: int, high: int, field: str, problem: str = _UNSAID) -> None:
    import pyarrow.compute as pc

    bounds = pc.min_max(values).as_py()
    if bounds["min"] is not None and not low <= bounds["min"] <= bounds["max"] <= high:
        raise ConversionError(field, problem, remedy="convert the column to integers first")


def find_invalid(values: pa.Array) -> NDArray[np.int64]:
    r"""Return the ascending positions of the values of a large_binary array that are not UTF-8.

    >>> import pyarrow as pa
    >>> find_invalid(pa.array([b"a", b"\xff", b"", b"\xed\xa0\x80"], pa.large_binary()))
    array([1, 3])
    """
    import pyarrow.compute as pc

    return np.flatnonzero(~pc.match_substring_regex(values, _UTF8).to_numpy(zero_copy_only=False))
