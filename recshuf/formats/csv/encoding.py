"""Tables as CSV, written by pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.types as pt

from recshuf.errors import ConversionError
from recshuf.formats.csv.quotes import Dialect, QuoteScanner, State
from recshuf.formats.values import PER_SECOND, check_times, find_invalid, has_factor
from recshuf.records.arrays import storage_of
from recshuf.records.conforming import plain_decimals

if TYPE_CHECKING:
    from recshuf.formats.lines.cutting import Bytes, Positions


_SHOWN_BYTES = 40


def check_schema(schema: pa.Schema) -> None:
    """Raise `ConversionError` unless CSV can hold the columns, so that they can be read again."""
    if not len(schema):
        raise ConversionError("", "records without a single field have no place in CSV", remedy="write JSONL")
    for field in schema:
        kind = field.type.value_type if pt.is_dictionary(field.type) else field.type
        if isinstance(kind, pa.BaseExtensionType) or pt.is_nested(kind) or not _is_plain(kind):
            raise ConversionError(
                field.name, f"CSV cannot hold {field.type}", remedy="leave it out, or write JSONL or Parquet"
            )


def _is_plain(kind: pa.DataType) -> bool:
    return (
        (pt.is_primitive(kind) and kind != pa.float16() and not pt.is_interval(kind))
        or kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.null())
        or pt.is_fixed_size_binary(kind)
        or pt.is_decimal128(kind)
    )


def encode_header(schema: pa.Schema, delimiter: bytes) -> bytes:
    """Return the header of a table."""
    output = pa.BufferOutputStream()
    csv.write_csv(schema.empty_table(), output, csv.WriteOptions(delimiter=delimiter.decode()))
    return bytes(output.getvalue().to_pybytes())


def encode_records(batch: pa.RecordBatch, delimiter: bytes) -> pa.LargeBinaryArray:
    """Return the rows of a table as records."""
    output = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, delimiter=delimiter.decode())
    try:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            _check_column(column, name)
        csv.write_csv(_with_plain_decimals(batch), output, options)
    except pa.ArrowInvalid as error:
        raise _explain(batch, error) from error
    written = output.getvalue()
    offsets = _find_offsets(np.frombuffer(written, np.uint8), delimiter)
    if offsets.size != batch.num_rows + 1:
        raise RuntimeError(f"{batch.num_rows} rows were written as {offsets.size - 1} records")
    buffers = [None, pa.py_buffer(offsets), written]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), batch.num_rows, buffers, null_count=0)


def _with_plain_decimals(batch: pa.RecordBatch) -> pa.RecordBatch:
    for place, (name, kind) in enumerate(zip(batch.schema.names, batch.schema.types, strict=True)):
        column = batch.column(place)
        if pt.is_dictionary(kind) and pt.is_decimal(kind.value_type):
            column = column.dictionary_decode()
        if pt.is_decimal(column.type) and column.type.scale < 0:
            batch = batch.set_column(place, name, plain_decimals(column, name))
    return batch


def _check_column(column: pa.Array, name: str) -> None:
    kind = column.type.value_type if pt.is_dictionary(column.type) else column.type
    if not pt.is_temporal(kind) or pt.is_duration(kind):
        return
    values = column.dictionary_decode() if pt.is_dictionary(column.type) else column
    check_times(values, name)
    if not pt.is_timestamp(kind) or kind.tz is None:
        return
    local = pc.local_timestamp(values)
    check_times(local, name)
    distances = pc.subtract_checked(local.cast(pa.int64()), values.cast(pa.int64()))
    if not has_factor(distances, 60 * PER_SECOND[kind.unit]):
        problem = f"a time in {kind.tz} has a distance from UTC in seconds, and CSV has hours and minutes"
        raise ConversionError(name, problem, remedy="cast the column to UTC, or write JSONL or Parquet")


def _find_offsets(data: Bytes, delimiter: bytes) -> Positions:
    pieces = QuoteScanner(Dialect(delimiter, b'"')).find_ends(data, 0, State())
    return np.concatenate([np.zeros(1, np.int64), *(ends for ends, _ in pieces)])


def _explain(batch: pa.RecordBatch, error: pa.ArrowInvalid) -> ConversionError:
    """Return the error for rows that pyarrow does not write; shows the first value that is not UTF-8."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = column.dictionary_decode() if pt.is_dictionary(column.type) else column
        if not (
            pt.is_binary(values.type)
            or pt.is_large_binary(values.type)
            or pt.is_fixed_size_binary(values.type)
        ):
            continue
        invalid = find_invalid(values.cast(pa.large_binary()).fill_null(b""))
        if invalid.size:
            value = values[int(invalid[0])].as_py()
            shown = f"{value[:_SHOWN_BYTES]!r}{'...' if len(value) > _SHOWN_BYTES else ''}"
            remedy = "write Parquet, or JSONL, which has bytes as base64"
            return ConversionError(name, f"CSV cannot hold {shown}, which is not UTF-8", remedy=remedy)
    return ConversionError("", f"CSV cannot hold a record ({error})", remedy="write Parquet")


def reading_schema(table: pa.Schema) -> pa.Schema:
    """Return the types to read records with that were written from a table of this schema."""
    return pa.schema([(field.name, storage_of(field.type)) for field in table])
