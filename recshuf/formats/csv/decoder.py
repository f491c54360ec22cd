"""CSV records as typed tables, parsed by pyarrow; finds those that cannot be parsed."""

from __future__ import annotations

import re
import threading
from functools import cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.types as pt

from recshuf.errors import BadRecordError, InputError, SchemaMismatch, UsageError
from recshuf.formats.csv.inference import NUMBERS, ColumnType, are_ordinary, find_altered
from recshuf.formats.csv.quotes import find_returns, strip_padding
from recshuf.formats.files import shorten
from recshuf.formats.lines.cutting import view_records
from recshuf.interfaces import BadRecords, Decoder, ValueReader
from recshuf.records.arrays import unknown_column, view_bytes
from recshuf.records.conforming import find_misfit, fit_digits, roomy_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from recshuf.formats.csv.quotes import Dialect
    from recshuf.formats.lines.cutting import Bytes, Positions
    from recshuf.interfaces import ReadOptions

    TextsOf = Callable[[str], pa.ChunkedArray]
    """Returns the values of a column as they are written."""


_BLANKS = " \t"
"""What pyarrow ignores around numbers."""
_PIECE_BYTES = 2 << 20
_OFFSET_BITS = 64
_MANY_TABLES = 32
"""Tables that are joined: an array takes some 500 bytes beside its values."""
_UNREADABLE = (
    (pt.is_float16, "float16", "float32"),
    (pt.is_decimal256, "decimal256", "decimal128"),
    (pt.is_nested, "a nested type", "string"),
)
"""Types of a schema that pyarrow does not read from CSV, and what can be given instead."""
_FLOAT_REMEDY = "correct it, or give the column the type string with --schema"


class Parsed(NamedTuple):
    """Records as a table, without those that are bad."""

    table: pa.Table
    bad: BadRecords | None


class Unparsed(Exception):  # noqa: N818 - never leaves this module
    """A record that does not parse, by its position in a batch."""

    def __init__(self, problem: str, row: int) -> None:
        super().__init__(problem, row)
        self.problem = problem
        self.row = row


class CsvParser:
    """Parses native batches, whose records may be under several headers, to one table of the columns `names`.

    An empty field without quotes is null; with quotes, it is an empty string. Columns that a header lacks are null.
    """

    def __init__(self, dialect: Dialect, headers: Sequence[Sequence[str]], names: Sequence[str]) -> None:
        self.names = names
        self.dialect = dialect
        self._headers = headers

    def parse(self, batch: pa.RecordBatch, types: Mapping[str, pa.DataType]) -> Parsed:
        """Return the records as a table; columns without a type get that of their values.

        Raises `Unparsed` if a value does not have the type of its column.
        """
        if len(self._headers) == 1:
            return self._parse(batch.column(0), self._headers[0], types)
        numbers = view_bytes(batch.column(1)).view("<u2")
        reasons: dict[int, str] = {}
        tables, places = [], [np.empty(0, np.int64)]
        for number in np.unique(numbers).tolist():
            rows = np.flatnonzero(numbers == number)
            try:
                table, bad = self._parse(batch.column(0).take(rows), self._headers[number], types)
            except Unparsed as error:
                raise Unparsed(error.problem, int(rows[error.row])) from error
            if bad is not None:
                reasons |= dict(zip(rows[bad.index].tolist(), bad.reasons, strict=True))
                rows = np.delete(rows, bad.index)
            tables.append(table)
            places.append(rows)
            if len(tables) == _MANY_TABLES:
                tables = [_join(tables)]
        if not tables:
            return self._parse(batch.column(0), self._headers[0], types)
        table = _join(tables)
        return Parsed(table.take(np.argsort(np.concatenate(places))), _make_bad(reasons))

    def _parse(
        self, records: pa.LargeBinaryArray, header: Sequence[str], types: Mapping[str, pa.DataType]
    ) -> Parsed:
        reasons = self._find_unreadable(*view_records(records), header)
        rows = _leave_out(np.arange(len(records)), reasons)
        try:
            table = self._read_rows(records, rows, header, types)
        except Unparsed:
            ragged = self._find_ragged(view_records(records.take(rows) if reasons else records)[0], header)
            if not ragged:
                raise
            reasons |= {int(rows[row]): problem for row, problem in ragged.items()}
            rows = _leave_out(np.arange(len(records)), reasons)
            table = self._read_rows(records, rows, header, types)
        if table.num_rows + len(reasons) != len(records):
            raise RuntimeError(f"{len(records)} records were parsed as {table.num_rows}")
        return Parsed(table, _make_bad(reasons))

    def _read_rows(
        self,
        records: pa.LargeBinaryArray,
        rows: Positions,
        header: Sequence[str],
        types: Mapping[str, pa.DataType],
    ) -> pa.Table:
        kept = records if len(rows) == len(records) else records.take(rows)
        try:
            table = self._read(view_records(kept)[0], header, types)
        except pa.ArrowInvalid as error:
            match = re.match(r"In CSV column #(\d+): (?:Row #(\d+): )?(.*)", str(error), re.DOTALL)
            if not match:
                raise Unparsed(str(error), 0) from error
            problem = f"column {header[int(match[1])]!r}: {match[3]}"
            raise Unparsed(problem, int(rows[int(match[2] or 1) - 1])) from error
        for place, name in enumerate(self.names):
            if name in types and pt.is_decimal128(types[name]):
                column = _fit_decimals(table.column(place).combine_chunks(), types[name], name, rows)
                table = table.set_column(place, name, column)
        return table

    def _find_unreadable(self, data: Bytes, offsets: Positions, header: Sequence[str]) -> dict[int, str]:
        """Return what is wrong with records that pyarrow would not read as one row each."""
        returns = find_returns(data, self.dialect)
        rows = np.searchsorted(offsets, returns, "right") - 1
        reasons = dict.fromkeys(rows.tolist(), "holds a carriage return outside of quotes")
        if len(header) == 1:
            return reasons
        sizes = np.diff(offsets)
        blank = (sizes == 1) | ((sizes == 2) & (data[offsets[:-1]] == ord("\r")))
        return reasons | dict.fromkeys(np.flatnonzero(blank).tolist(), _tell_width(0, header))

    def _find_ragged(self, data: Bytes, header: Sequence[str]) -> dict[int, str]:
        """Return what is wrong with records of another number of fields, by row."""
        ragged: dict[int, str] = {}

        def skip(row: csv.InvalidRow) -> str:
            ragged[row.number - 1] = _tell_width(row.actual_columns, header)
            return "skip"

        # pyarrow decodes a ragged row for its handler; any other byte serves as well for counting fields.
        ascii_data = np.where(data < 0x80, data, np.uint8(ord("x")))
        self._read(ascii_data, header, dict.fromkeys(self.names, pa.binary()), skip)
        return ragged

    def _read(
        self,
        data: Bytes,
        header: Sequence[str],
        types: Mapping[str, pa.DataType],
        skip: Callable[[csv.InvalidRow], str] | None = None,
    ) -> pa.Table:
        if not data.size:
            return pa.schema([(name, types.get(name, pa.null())) for name in self.names]).empty_table()
        if self.dialect.is_padded:
            data = strip_padding(data, self.dialect)
        return csv.read_csv(
            pa.BufferReader(pa.py_buffer(data)),
            csv.ReadOptions(use_threads=False, block_size=data.size + 1, column_names=list(header)),
            csv.ParseOptions(
                delimiter=self.dialect.delimiter.decode(),
                quote_char=self.dialect.quote.decode() or False,
                newlines_in_values=True,
                ignore_empty_lines=False,
                invalid_row_handler=skip,
            ),
            csv.ConvertOptions(
                include_columns=list(self.names),
                include_missing_columns=True,
                column_types={name: _read_type(kind) for name, kind in types.items()},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
            ),
        )


def _join(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive").combine_chunks()


def _tell_width(count: int, header: Sequence[str]) -> str:
    return f"has {count} field{'' if count == 1 else 's'}, and the first record has {len(header)}"


def _leave_out(rows: Positions, reasons: Mapping[int, str]) -> Positions:
    return np.delete(rows, list(reasons)) if reasons else rows


def _read_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as which pyarrow reads a column; it reads no decimals of 256 bits."""
    if not pt.is_decimal128(kind):
        return kind
    return roomy_type(kind) if pt.is_decimal128(roomy_type(kind)) else pa.string()


def _fit_decimals(column: pa.Array, kind: pa.DataType, name: str, rows: Positions) -> pa.Array:
    if pt.is_string(column.type):
        column = pc.utf8_trim(column, _BLANKS)
    try:
        return fit_digits(column, kind)
    except pa.ArrowInvalid as error:
        row = int(rows[find_misfit(column, kind) or 0])
        raise Unparsed(f"column {name!r}: not a {kind} ({error})", row) from error


def _join_columns(
    columns: Mapping[str, pa.ChunkedArray], names: Sequence[str], kind: pa.DataType
) -> pa.Array:
    """Return the values of columns of a type, one column after the other."""
    chunks = [chunk for name in names for chunk in columns[name].chunks]
    return pa.concat_arrays(chunks) if chunks else pa.array([], kind)


def _read_numbers(texts: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid:
        return pc.utf8_trim(texts, _BLANKS).cast(kind)


def _make_bad(reasons: Mapping[int, str]) -> BadRecords | None:
    if not reasons:
        return None
    index = np.array(sorted(reasons), np.int64)
    return BadRecords(index, [reasons[row] for row in index.tolist()])


class CsvDecoder(Decoder):
    """Parses records with pyarrow; types are those of all records together.

    The only header names no columns if all inputs are empty, and a schema then names them.
    """

    def __init__(
        self, inputs: Sequence[str], dialect: Dialect, headers: Sequence[Sequence[str]], options: ReadOptions
    ) -> None:
        schema, sets_bad_aside = options.schema, options.sets_bad_aside
        names = list(options.columns or dict.fromkeys(name for own in headers for name in own))
        if schema is not None and not names:
            names = schema.names
            headers = [names]
        if schema is not None and schema.names != list(names):
            if options.store_schema is not None:
                raise UsageError(
                    f"{inputs[0]}{' and others' * (len(inputs) > 1)}: columns {', '.join(map(repr, names))}, and those of the store are "
                    f"{', '.join(map(repr, schema.names))}; give them these, in this order, or begin a new store"
                )
            raise UsageError(
                f"--schema: its columns are {', '.join(map(repr, schema.names))}; "
                f"those of the input are {', '.join(map(repr, names))}: name all of these, in this order"
            )
        for field in schema or ():
            _check_type(field)
        if schema is not None and sets_bad_aside:
            raise UsageError("--on-bad-record and --schema cannot be combined for csv; leave one of them out")
        self._inputs = inputs
        self._parser = CsvParser(dialect, headers, names)
        self._schema = schema
        self._types = {} if schema is None else dict(zip(schema.names, schema.types, strict=True))
        self._columns = {name: ColumnType() for name in names}
        self._sets_bad_aside = sets_bad_aside
        self._nulls: set[str] = set()
        self._prefix_end: tuple[int, int] | None = None
        """Input and row of the last batch to observe; those behind it are checked when they are decoded. None: all are observed."""
        self._lock = threading.Lock()

    def infer_from_prefix(self, input_index: int) -> None:
        self._prefix_end = input_index, 0

    @property
    def schema(self) -> pa.Schema | None:
        return self._schema

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        """Learn the types of records; those with another number of fields are bad."""
        if self._prefix_end is not None and (input_index, first_row) > self._prefix_end:
            return None
        pieces = [
            (begin, bad)
            for begin, piece in cut_batch(batch)
            if (bad := self._observe_piece(piece, input_index, first_row + begin)) is not None
        ]
        if not pieces:
            return None
        index = np.concatenate([begin + bad.index for begin, bad in pieces])
        return BadRecords(index, [reason for _, bad in pieces for reason in bad.reasons])

    def _observe_piece(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        infers = self._schema is None
        try:
            parsed = self._learn(batch) if infers else self._parser.parse(batch, self._types)
        except Unparsed as error:
            raise self._bad(input_index, first_row + error.row + 1, error.problem) from error
        except pa.ArrowNotImplementedError as error:
            raise self._bad(input_index, first_row + 1, str(error)) from error
        if parsed.bad is not None and not self._sets_bad_aside:
            record = first_row + int(parsed.bad.index[0]) + 1
            raise self._bad(input_index, record, parsed.bad.reasons[0])
        self._nulls |= {name for name in parsed.table.column_names if parsed.table[name].null_count}
        if infers:
            return parsed.bad
        texts = self._texts_of(batch)
        for name, kind in self._types.items():
            if pt.is_floating(kind) and (altered := find_altered(parsed.table[name], partial(texts, name))):
                row, problem = altered
                raise self._bad(
                    input_index, first_row + row + 1, f"column {name!r}: {problem}", _FLOAT_REMEDY
                )
        return parsed.bad

    def _texts_of(self, batch: pa.RecordBatch) -> TextsOf:
        parse = cache(lambda: self._parser.parse(batch, dict.fromkeys(self._parser.names, pa.binary())).table)
        return lambda name: parse()[name]

    def _learn(self, batch: pa.RecordBatch) -> Parsed:
        """Return records of any types, which it takes into account."""
        parsed, texts = self._parse_as_known(batch) or (self._parser.parse(batch, {}), self._texts_of(batch))
        self._observe_types(parsed.table, texts)
        return parsed

    def _parse_as_known(self, batch: pa.RecordBatch) -> tuple[Parsed, TextsOf] | None:
        """Return records of the types so far, and the texts of their numbers; None if they have others."""
        with self._lock:
            kinds = {name: column.known for name, column in self._columns.items()}
        numbers = {kind: [name for name, own in kinds.items() if own == kind] for kind in NUMBERS}
        as_texts = dict.fromkeys([name for names in numbers.values() for name in names], pa.string())
        try:
            written, bad = self._parser.parse(batch, kinds | as_texts)
            columns = dict(zip(written.column_names, written.columns, strict=True))
            for kind, names in numbers.items():
                values = _read_numbers(_join_columns(columns, names, pa.string()), kind)
                for place, name in enumerate(names):
                    columns[name] = values.slice(place * len(written), len(written))
        except (Unparsed, pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        return Parsed(pa.table(columns), bad), lambda name: written[name]

    def _observe_types(self, table: pa.Table, texts: TextsOf) -> None:
        columns = dict(zip(table.column_names, table.columns, strict=True))
        ordinary = set[str]()
        for kind in NUMBERS:
            # One by one, thousands of columns would take longer to look at than to parse.
            names = [name for name, column in columns.items() if column.type == kind]
            written = {name: texts(name) for name in names}
            if names and are_ordinary(
                _join_columns(columns, names, kind), _join_columns(written, names, written[names[0]].type)
            ):
                ordinary.update(names)
        with self._lock:
            for name, column in self._columns.items():
                column.observe(columns[name], partial(texts, name), is_ordinary=name in ordinary)

    def _bad(self, input_index: int, record: int, problem: str, remedy: str | None = None) -> BadRecordError:
        return bad_record(
            self._inputs[input_index], record, problem, remedy, can_leave_out=self._schema is None
        )

    @property
    def null_columns(self) -> frozenset[str]:
        return frozenset(self._nulls)

    def state(self) -> Any:
        with self._lock:
            return [column.pack() for column in self._columns.values()]

    def merge(self, state: Any) -> None:
        with self._lock:
            for column, packed in zip(self._columns.values(), state, strict=True):
                column.merge(packed)

    def table_bytes(self, record_count: int, native_bytes: int) -> int:
        # A value takes its type's width and a bit, or an offset and its text, which counts always.
        kinds = self._schema.types if self._schema is not None else [pa.int64()] * len(self._parser.names)
        return native_bytes + record_count * sum(map(_count_value_bits, kinds)) // 8

    def finish(self) -> pa.Schema:
        if self._schema is None:
            self._types = {name: column.kind for name, column in self._columns.items()}
            self._schema = pa.schema(list(self._types.items()))
            if odd := [repr(field.name) for field in self._schema if pt.is_binary(field.type)]:
                self.notes = (
                    f"not all is UTF-8 in {shorten(odd)}, so that it becomes bytes; save the input as UTF-8 if it is text",
                )
        return self._schema

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        schema = self.finish()  # sets the types to parse with
        parse = self._parse if self._prefix_end is None else self._parse_by_prefix
        tables = [parse(piece).cast(schema) for _, piece in cut_batch(batch)]
        parts = pa.concat_tables([schema.empty_table(), *tables]).combine_chunks().to_batches()
        return parts[0] if parts else pa.RecordBatch.from_pylist([], schema=schema)

    def _parse(self, batch: pa.RecordBatch) -> pa.Table:
        try:
            table, bad = self._parser.parse(batch, self._types)
        except Unparsed as error:
            raise InputError("a record", error.problem) from error
        if bad is not None:  # of records that were not observed
            raise InputError("a record", bad.reasons[0])
        return table

    def _parse_by_prefix(self, batch: pa.RecordBatch) -> pa.Table:
        """Return records as a table, of which a column is null if the first records have no value in it.

        Raises `SchemaMismatch` if the types of the first records are not those of these, too.
        """
        known = self._parse_as_known(batch)
        if known is None or known[0].bad is not None:
            raise SchemaMismatch
        (table, _), texts = known
        self._observe_types(table, texts)
        with self._lock:
            if any(self._columns[name].kind != kind for name, kind in self._types.items()):
                raise SchemaMismatch
        return table


def bad_record(
    name: str, record: int, problem: str, remedy: str | None = None, *, can_leave_out: bool = True
) -> BadRecordError:
    aside = "set bad records aside with --on-bad-record quarantine:FILE"
    remedy = remedy or f"correct it, or {aside}{'' if can_leave_out else ', without --schema'}"
    return BadRecordError(name, problem, place=f"record {record}", remedy=remedy)


def _check_type(field: pa.Field) -> None:
    for accepts, name, instead in _UNREADABLE:
        if accepts(field.type):
            raise UsageError(
                f"--schema: column {field.name!r}: {name} cannot be read from CSV; use {instead}"
            )


def _count_value_bits(kind: pa.DataType) -> int:
    """Return the memory of a value beside its text, validity included."""
    has_width = pa.types.is_primitive(kind) or pa.types.is_decimal(kind)
    return 1 + (kind.bit_width if has_width else _OFFSET_BITS)


def cut_batch(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield pieces of native records, each with the index of its first record: a table may take many times as much."""
    offsets = view_records(batch.column(0))[1]
    begins = np.unique(np.searchsorted(offsets, np.arange(offsets[0], offsets[-1], _PIECE_BYTES)))
    for begin, end in pairwise([*begins.tolist(), batch.num_rows]):
        yield begin, batch.slice(begin, end - begin)


class CsvValueReader(ValueReader):
    """Reads columns of records, of those that are `kept`. A field that is empty and not quoted has no value."""

    parses_records = True

    def __init__(
        self,
        inputs: Sequence[str],
        dialect: Dialect,
        headers: Sequence[Sequence[str]],
        paths: Sequence[str],
        kept: Sequence[str] | None,
    ) -> None:
        known = dict.fromkeys(kept or (name for names in headers for name in names))
        for path in paths:
            if path not in known:
                raise unknown_column(path, known)
        names = list(dict.fromkeys(paths))
        self._inputs, self._paths = inputs, paths
        self._parser = CsvParser(dialect, headers, names)
        self._types = dict.fromkeys(names, pa.large_binary())

    def read(
        self, batch: pa.RecordBatch, input_index: int, first_row: int
    ) -> tuple[pa.LargeBinaryArray, ...]:
        parts = [pa.table([pa.array([], kind) for kind in self._types.values()], names=list(self._types))]
        for begin, piece in cut_batch(batch) if batch.num_rows else ():
            try:
                parsed = self._parser.parse(piece, self._types)
            except Unparsed as error:
                name = self._inputs[input_index]
                raise bad_record(name, first_row + begin + error.row + 1, error.problem) from error
            if parsed.bad is not None:
                row, problem = int(parsed.bad.index[0]), parsed.bad.reasons[0]
                raise bad_record(self._inputs[input_index], first_row + begin + row + 1, problem)
            parts.append(parsed.table.cast(parts[0].schema))
        table = pa.concat_tables(parts).combine_chunks()
        return tuple(table[path].combine_chunks() for path in self._paths)
