"""CSV that is written: tables by pyarrow, and records of CSV with fewer columns, or another delimiter.

Fields of records keep their bytes, but that one without quotes that holds the new delimiter gets quotes.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.types as pt

from recshuf.dataclass import dataclass
from recshuf.errors import ConversionError
from recshuf.formats.csv.quotes import Dialect, QuoteScanner
from recshuf.formats.lines.cutting import view_records
from recshuf.formats.texts import PER_SECOND, check_times, find_invalid, has_factor
from recshuf.records.arrays import is_bytes, storage_of, wrap_bytes
from recshuf.records.conforming import plain_decimals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.lines.cutting import Bytes, Positions


_SHOWN_BYTES = 40
_RETURN = ord("\r")
_REMEDY = "cast the column to UTC, or write JSONL or Parquet"


def check_schema(schema: pa.Schema) -> None:
    """Raise `ConversionError` unless CSV can hold the columns, so that they can be read again."""
    if not len(schema):
        raise ConversionError("", "records without a single field have no place in CSV", remedy="write JSONL")
    for name, count in Counter(schema.names).items():
        if count > 1:
            problem = f"CSV cannot hold {count} columns of one name"
            raise ConversionError(name, problem, remedy="rename all but one")
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
    output = pa.BufferOutputStream()
    csv.write_csv(schema.empty_table(), output, csv.WriteOptions(delimiter=delimiter.decode()))
    return bytes(output.getvalue().to_pybytes())


def encode_records(batch: pa.RecordBatch, delimiter: bytes) -> pa.LargeBinaryArray:
    output = pa.BufferOutputStream()
    options = csv.WriteOptions(include_header=False, delimiter=delimiter.decode())
    names = batch.schema.names
    try:
        columns = [_prepare(column, name) for name, column in zip(names, batch.columns, strict=True)]
        csv.write_csv(pa.RecordBatch.from_arrays(columns, names), output, options)
    except pa.ArrowInvalid as error:
        raise _explain(batch, error) from error
    data = np.frombuffer(output.getvalue(), np.uint8)
    offsets = np.append(0, QuoteScanner(Dialect(delimiter, b'"')).find_all(data))
    if offsets.size != batch.num_rows + 1:
        raise RuntimeError(f"{batch.num_rows} rows were written as {offsets.size - 1} records")
    return wrap_bytes(data, offsets)


def _prepare(column: pa.Array, name: str) -> pa.Array:
    """Return values, not of a dictionary, that pyarrow writes so that they can be read again."""
    if pt.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pt.is_decimal(kind) and kind.scale < 0:
        return plain_decimals(column, name)
    if not pt.is_temporal(kind) or pt.is_duration(kind):
        return column
    check_times(column, name)
    if pt.is_timestamp(kind) and kind.tz is not None:
        local = pc.local_timestamp(column)
        check_times(local, name)
        try:
            distances = pc.subtract_checked(local.cast(pa.int64()), column.cast(pa.int64()))
        except pa.ArrowInvalid:  # the local time has begun anew
            problem = f"a time in {kind.tz} is beyond the last one of timestamp[{kind.unit}] without its zone"
            raise ConversionError(name, problem, remedy=_REMEDY) from None
        if not has_factor(distances, 60 * PER_SECOND[kind.unit]):
            problem = f"a time in {kind.tz} has a distance from UTC in seconds, and CSV has hours and minutes"
            raise ConversionError(name, problem, remedy=_REMEDY)
    return column


def _explain(batch: pa.RecordBatch, error: pa.ArrowInvalid) -> ConversionError:
    """Return the error for rows that pyarrow does not write; shows the first value that is not UTF-8."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        values = column.dictionary_decode() if pt.is_dictionary(column.type) else column
        if not (is_bytes(values.type) or pt.is_fixed_size_binary(values.type)):
            continue
        invalid = find_invalid(values.cast(pa.large_binary()).fill_null(b""))
        if invalid.size:
            value = values[int(invalid[0])].as_buffer().to_pybytes()
            shown = f"{value[:_SHOWN_BYTES]!r}{'...' if len(value) > _SHOWN_BYTES else ''}"
            remedy = "write Parquet, or JSONL, which has bytes as base64"
            return ConversionError(name, f"CSV cannot hold {shown}, which is not UTF-8", remedy=remedy)
    return ConversionError("", f"CSV cannot hold a record ({error})", remedy="write Parquet")


def reading_schema(table: pa.Schema) -> pa.Schema:
    return pa.schema([(field.name, storage_of(field.type)) for field in table])


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Turns native batches into records of another form."""

    dialect: Dialect
    delimiter: bytes
    places: Sequence[int] | None
    """Positions of the columns to keep, in their order; None for all."""
    width: int
    """Number of columns of the inputs, if some are to be kept."""

    def __call__(self, batch: pa.RecordBatch) -> pa.LargeBinaryArray:
        return self.rewrite(batch.column(0))

    def rewrite(self, records: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        if self.places is not None and len(records):
            records = self._choose_fields(records, self.places)
        if self.delimiter != self.dialect.delimiter and len(records):
            records = self._change_delimiter(records)
        return records

    def rewrite_header(self, top: bytes, above: int) -> bytes:
        """Return the lines of a header in the new form; `above` bytes stand above it."""
        lines = re.sub(
            rb"(?i)(sep=)" + re.escape(self.dialect.delimiter), rb"\1" + self.delimiter, top[:above]
        )
        data = np.frombuffer(top[above:], np.uint8)
        records = wrap_bytes(data, np.append(0, QuoteScanner(self.dialect).find_all(data)))
        return lines + view_records(self.rewrite(records))[0].tobytes()

    def _choose_fields(self, records: pa.LargeBinaryArray, places: Sequence[int]) -> pa.LargeBinaryArray:
        """Return records with some of their fields.

        Bounds cut the records into fields and what stands behind each, a delimiter or a line end, in turn.
        """
        data, offsets = view_records(records)
        delimiters = self._find(data, self.dialect.delimiter)
        firsts = np.searchsorted(delimiters, offsets) + np.arange(offsets.size)
        counts = np.diff(firsts)
        self._check_widths(data, offsets, counts)
        bounds = np.sort(
            np.concatenate([[0], delimiters, delimiters + 1, _find_ends(data, offsets), offsets[1:]])
        )
        source = np.append(data, np.frombuffer(self.dialect.delimiter, np.uint8))
        parts = wrap_bytes(source, np.append(bounds, source.size))
        delimiter = bounds.size - 1
        wanted = np.full((len(records), 2 * len(places)), delimiter, np.int64)
        wanted[:, ::2] = 2 * (firsts[:-1, None] + np.array(places))
        wanted[:, -1] = 2 * (firsts[1:] - 1) + 1
        taken = parts.take(pa.array(wanted.reshape(-1)))
        chosen, ends = view_records(taken)
        return wrap_bytes(chosen, ends[:: 2 * len(places)])

    def _check_widths(self, data: Bytes, offsets: Positions, counts: Positions) -> None:
        odd = np.flatnonzero(counts != self.width)
        if odd.size:
            record = data[offsets[odd[0]] : offsets[odd[0] + 1]].tobytes()
            shown = record[:_SHOWN_BYTES].decode(errors="replace").rstrip()
            fields = "1 field" if counts[odd[0]] == 1 else f"{counts[odd[0]]} fields"
            problem = f"the record {shown!r} has {fields}, and the first one {self.width}"
            raise ConversionError("", problem, remedy="correct it, or leave out --columns")

    def _change_delimiter(self, records: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        data, offsets = view_records(records)
        delimiters, inner = self._find(data, self.dialect.delimiter), self._find(data, self.delimiter)
        changed = data.copy()
        changed[delimiters] = self.delimiter[0]
        if not inner.size:
            return wrap_bytes(changed, offsets)
        begins = np.sort(np.concatenate([offsets[:-1], delimiters + 1]))
        ends = np.sort(np.concatenate([_find_ends(data, offsets), delimiters]))
        fields = np.unique(np.searchsorted(begins, inner, "right") - 1)
        self._check_plain(data, begins[fields], ends[fields])
        added = np.stack([begins[fields], ends[fields]], axis=1).reshape(-1)
        quoted = np.insert(changed, added, self.dialect.quote[0])
        return wrap_bytes(quoted, offsets + np.searchsorted(added, offsets))

    def _check_plain(self, data: Bytes, begins: Positions, ends: Positions) -> None:
        counts = np.append(0, np.cumsum(np.isin(data, list(self.dialect.quote))))
        odd = np.flatnonzero(counts[ends] != counts[begins])
        if odd.size or not self.dialect.quote:
            place = odd[0] if odd.size else 0
            shown = data[begins[place] : ends[place]][:_SHOWN_BYTES].tobytes().decode(errors="replace")
            problem = f"the field {shown!r} holds {self.delimiter.decode()!r}, the delimiter of the output, and cannot be quoted"
            raise ConversionError("", problem, remedy="write a file named .csv, or JSONL")

    def _find(self, data: Bytes, byte: bytes) -> Positions:
        return QuoteScanner(self.dialect, byte[0]).find_all(data) - 1


def _find_ends(data: Bytes, offsets: Positions) -> Positions:
    ends = offsets[1:] - 1
    has_return = (ends > offsets[:-1]) & (data[ends - 1] == _RETURN)
    begins: Positions = ends - has_return
    return begins
