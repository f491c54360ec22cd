"""CSV records as typed tables."""

from __future__ import annotations

import re
import threading
from functools import cache, partial
from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.errors import InputError, UsageError
from recshuf.formats.csv.inference import ColumnType
from recshuf.formats.csv.parser import CsvParser
from recshuf.formats.lines.cutting import view_records
from recshuf.interfaces import BadRecords, Decoder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recshuf.formats.csv.quotes import Dialect


class CsvDecoder(Decoder):
    """Parses records with pyarrow; types are those of all records together.

    Parameters
    ----------
    inputs
        Names of the inputs.
    names
        Names of the columns.
    schema
        Types of all columns. Default: inferred.
    sets_bad_aside
        Whether `observe` returns bad records instead of raising.

    Raises
    ------
    UsageError
        When the schema has other columns, or is given where bad records are to be set aside.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        dialect: Dialect,
        names: Sequence[str],
        schema: pa.Schema | None,
        *,
        sets_bad_aside: bool,
    ) -> None:
        if schema is not None and schema.names != list(names):
            raise UsageError(
                f"--schema: its columns are {', '.join(map(repr, schema.names))}; "
                f"those of the input are {', '.join(map(repr, names))}"
            )
        if schema is not None and sets_bad_aside:
            raise UsageError("--on-bad-record and --schema cannot be combined for csv; leave one of them out")
        self._inputs = inputs
        self._parser = CsvParser(dialect, names)
        self._schema = schema
        self._types = {} if schema is None else dict(zip(schema.names, schema.types, strict=True))
        self._columns = [ColumnType() for _ in names]
        self._sets_bad_aside = sets_bad_aside
        self._lock = threading.Lock()

    @property
    def schema(self) -> pa.Schema | None:
        """See `Decoder`."""
        return self._schema

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        """See `Decoder`; records with another number of fields are bad."""
        try:
            parsed = self._parser.parse(batch, self._types)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise self._error(input_index, first_row, str(error)) from error
        if parsed.bad is not None and not self._sets_bad_aside:
            record = first_row + int(parsed.bad.index[0]) + 1
            raise self._bad(input_index, record, parsed.bad.reasons[0])
        if self._schema is None:
            self._observe_types(batch, parsed.table)
        return parsed.bad

    def _observe_types(self, batch: pa.RecordBatch, table: pa.Table) -> None:
        texts = cache(lambda: self._parser.parse(batch, dict.fromkeys(self._parser.names, pa.binary())).table)
        data = view_records(batch.column(0))[0].tobytes()
        with self._lock:
            for name, column in zip(self._parser.names, self._columns, strict=True):
                column.observe(table[name], partial(_find_column, texts, name), data)

    def _error(self, input_index: int, first_row: int, message: str) -> InputError:
        """Return the error for a message of pyarrow, which counts rows from 1 in each batch."""
        found = re.match(r"In CSV column #(\d+): (?:Row #(\d+): )?(.*)", message, re.DOTALL)
        if not found:
            return self._bad(input_index, first_row + 1, message)
        name = self._parser.names[int(found[1])]
        return self._bad(input_index, first_row + int(found[2] or 1), f"column {name!r}: {found[3]}")

    def _bad(self, input_index: int, record: int, problem: str) -> InputError:
        return InputError(
            self._inputs[input_index],
            problem,
            place=f"record {record}",
            remedy="correct it, or set bad records aside with --on-bad-record quarantine:FILE",
        )

    def finish(self) -> pa.Schema:
        """See `Decoder`."""
        if self._schema is None:
            kinds = [column.kind for column in self._columns]
            self._schema = pa.schema(list(zip(self._parser.names, kinds, strict=True)))
            self._types = dict(zip(self._parser.names, kinds, strict=True))
        return self._schema

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """See `Decoder`."""
        schema = self.finish()  # sets the types to parse with
        table = self._parser.parse(batch, self._types).table.cast(schema)
        parts = table.combine_chunks().to_batches()
        return parts[0] if parts else pa.RecordBatch.from_pylist([], schema=schema)


def _find_column(table: Callable[[], pa.Table], name: str) -> pa.ChunkedArray:
    return table()[name]
