"""Values as texts: what JSONL writes of them, in quotes or not, and by what values of all formats are told apart.

The text of a value does not depend on other values, nor on the format that holds it: 7 is ``7`` in Parquet, HDF5 and, as
number or string, in JSONL. docs/store.md has the whole table.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.formats.values import check_times
from recshuf.interfaces import ValueReader
from recshuf.records.arrays import check_path, find_value, is_bytes, split_path, storage_of
from recshuf.records.conforming import conform, plain_decimals

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recshuf.interfaces import Decoder, Source, Traits


TEXT = pa.large_string()
_BYTES = pa.large_binary()


def write_floats(array: pa.Array) -> pa.Array:
    """Return the shortest text that reads back as the same value of the same width, and never looks like an integer.

    NaN and infinities are ``nan``, ``inf`` and ``-inf``.
    """
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
