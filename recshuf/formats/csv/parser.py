"""Parses whole CSV records with pyarrow, and finds those that cannot be parsed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.types as pt

from recshuf.formats.csv.quotes import find_returns
from recshuf.formats.lines.cutting import view_records
from recshuf.interfaces import BadRecords
from recshuf.records.arrays.decimals import find_misfit, fit_digits, roomy_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from recshuf.formats.csv.quotes import Dialect
    from recshuf.formats.lines.cutting import Bytes, Positions

_BLANKS = " \t"
"""What pyarrow ignores around numbers."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """Records as a table, without those that are bad."""

    table: pa.Table
    bad: BadRecords | None


@dataclass(frozen=True, slots=True)
class CsvParser:
    """Parses native batches.

    An empty field without quotes is null; with quotes, it is an empty string.
    """

    dialect: Dialect
    names: Sequence[str]

    def parse(self, batch: pa.RecordBatch, types: Mapping[str, pa.DataType]) -> Parsed:
        """Return the records as a table; columns without a type get that of their values.

        Raises
        ------
        pa.ArrowInvalid
            When a value does not have the type of its column. Names column and row, from 1 on.
        """
        reasons = self._find_unreadable(*view_records(batch.column(0)))
        wanted = np.setdiff1d(np.arange(batch.num_rows), list(reasons), assume_unique=True)
        kept = batch.column(0).take(wanted) if reasons else batch.column(0)
        try:
            table = self._read(view_records(kept)[0], types)
        except pa.ArrowInvalid:
            ragged = self._find_ragged(view_records(kept)[0])
            if not ragged:
                raise
            reasons |= {int(wanted[row]): problem for row, problem in ragged.items()}
            kept = kept.take(np.setdiff1d(np.arange(len(kept)), list(ragged), assume_unique=True))
            table = self._read(view_records(kept)[0], types)
        if table.num_rows + len(reasons) != batch.num_rows:
            raise RuntimeError(f"{batch.num_rows} records were parsed as {table.num_rows}")
        if not reasons:
            return Parsed(table, None)
        index = np.array(sorted(reasons), np.int64)
        return Parsed(table, BadRecords(index, [reasons[row] for row in index.tolist()]))

    def _find_unreadable(self, data: Bytes, offsets: Positions) -> dict[int, str]:
        """Return what is wrong with records that pyarrow would not read as one row each."""
        returns = find_returns(data, self.dialect)
        rows = np.searchsorted(offsets, returns, "right") - 1
        found = dict.fromkeys(rows.tolist(), "holds a carriage return outside of quotes")
        if len(self.names) == 1:
            return found
        sizes = np.diff(offsets)
        blank = (sizes == 1) | ((sizes == 2) & (data[offsets[:-1]] == ord("\r")))
        return found | dict.fromkeys(np.flatnonzero(blank).tolist(), self._problem(0))

    def _problem(self, count: int) -> str:
        return f"has {count} field{'' if count == 1 else 's'}, and the first record has {len(self.names)}"

    def _find_ragged(self, data: Bytes) -> dict[int, str]:
        """Return what is wrong with records of another number of fields, by row."""
        ragged: dict[int, str] = {}

        def skip(row: csv.InvalidRow) -> str:
            ragged[row.number - 1] = self._problem(row.actual_columns)
            return "skip"

        # pyarrow decodes a ragged row for its handler; any other byte serves as well for counting fields.
        ascii_data = np.where(data < 0x80, data, np.uint8(ord("x")))
        self._read(ascii_data, dict.fromkeys(self.names, pa.binary()), skip)
        return ragged

    def _read(
        self,
        data: Bytes,
        types: Mapping[str, pa.DataType],
        skip: Callable[[csv.InvalidRow], str] | None = None,
    ) -> pa.Table:
        if not data.size:
            return pa.schema([(name, types.get(name, pa.null())) for name in self.names]).empty_table()
        table = csv.read_csv(
            pa.BufferReader(pa.py_buffer(data)),
            csv.ReadOptions(use_threads=False, block_size=data.size + 1, column_names=list(self.names)),
            csv.ParseOptions(
                delimiter=self.dialect.delimiter.decode(),
                quote_char=self.dialect.quote.decode() or False,
                newlines_in_values=True,
                ignore_empty_lines=False,
                invalid_row_handler=skip,
            ),
            csv.ConvertOptions(
                column_types={name: _read_type(kind) for name, kind in types.items()},
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                true_values=["true", "True", "TRUE"],
                false_values=["false", "False", "FALSE"],
            ),
        )
        for place, name in enumerate(self.names):
            if name in types and pt.is_decimal128(types[name]):
                column = _fit_decimals(table.column(place).combine_chunks(), types[name], place)
                table = table.set_column(place, name, column)
        return table


def _read_type(kind: pa.DataType) -> pa.DataType:
    """Return the type as which pyarrow reads a column; it reads no decimals of 256 bits."""
    if not pt.is_decimal128(kind):
        return kind
    return roomy_type(kind) if pt.is_decimal128(roomy_type(kind)) else pa.string()


def _fit_decimals(column: pa.Array, kind: pa.DataType, place: int) -> pa.Array:
    if pt.is_string(column.type):
        column = pc.utf8_trim(column, _BLANKS)
    try:
        return fit_digits(column, kind)
    except pa.ArrowInvalid as error:
        row = (find_misfit(column, kind) or 0) + 1
        raise pa.ArrowInvalid(f"In CSV column #{place}: Row #{row}: not a {kind} ({error})") from error
