"""Fields of CSV as bytes, as they are written but for quotes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.formats.csv.decoder import UnitedParser, Unparsed, bad_record, cut_batch
from recshuf.interfaces import ValueReader
from recshuf.records.arrays import unknown_column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.csv.quotes import Dialect


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
        self._parser = UnitedParser(dialect, headers, names)
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
