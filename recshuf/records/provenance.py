"""Provenance: the input and row number of each record, passed through the piles and written as two columns."""

from __future__ import annotations

import os
from collections import Counter
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.interfaces import Decoder, FieldAdder
from recshuf.records.arrays import view_bytes, wrap_values
from recshuf.records.batch import Records
from recshuf.records.keys import RowRange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from recshuf.interfaces import BadRecords


FILE_COLUMN, ROW_COLUMN = "source_file", "source_row"
"""The columns of ``--provenance``: the name of a record's input, and its row number there, from 0."""
PROVENANCE_BYTES = 8
FILE_SHIFT = np.uint64(42)
"""A record's provenance is one 64-bit number: the input's index in the high 22 bits, the row number in the others."""
MAX_INPUTS, MAX_ROWS = 1 << (64 - int(FILE_SHIFT)), 1 << int(FILE_SHIFT)
_PROVENANCE = pa.field("provenance", pa.binary(PROVENANCE_BYTES))
"""The column of native batches that holds it."""
_NUMBER_BYTES, _INDEX_BYTES = 8, 4
_DICTIONARY = pa.dictionary(pa.int32(), pa.string())


def extend_schema(schema: pa.Schema) -> pa.Schema:
    return schema.append(_PROVENANCE)


def pack_provenance(inputs: NDArray[Any] | np.int64, rows: NDArray[Any]) -> NDArray[np.uint64]:
    """Return the provenance of records, given 64-bit integers: the index of the input, and row numbers."""
    return inputs.view(np.uint64) << FILE_SHIFT | rows.view(np.uint64)


def unpack_provenance(numbers: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the index of each record's input, and its row number.

    >>> unpack_provenance(pack_provenance(np.int64(3), np.array([7, 8])))
    (array([3, 3]), array([7, 8]))
    """
    return (numbers >> FILE_SHIFT).view(np.int64), (numbers & np.uint64(MAX_ROWS - 1)).view(np.int64)


def add_provenance(batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> pa.RecordBatch:
    """Return a native batch with the provenance of its records as its last column."""
    numbers = [
        pack_provenance(np.int64(index), np.arange(first_row, first_row + rows, dtype=np.int64))
        for index, first_row, rows in ranges
    ]
    column = wrap_values(np.concatenate(numbers), _PROVENANCE.type)
    return pa.RecordBatch.from_arrays([*batch.columns, column], schema=extend_schema(batch.schema))


def find_origins(batch: pa.RecordBatch) -> NDArray[np.uint64]:
    """Return the provenance of native records, which is their last column, as one number each."""
    return view_bytes(batch.column(batch.num_columns - 1)).view(np.uint64)


def find_ranges(batch: pa.RecordBatch) -> list[RowRange]:
    origins = find_origins(batch)
    starts = np.flatnonzero(np.diff(origins, prepend=origins[:1] - np.uint64(2)) != 1)
    ends = np.append(starts[1:], len(origins))
    columns = (*unpack_provenance(origins[starts]), ends - starts)
    return list(map(RowRange, *(column.tolist() for column in columns)))


def shift_origins(origins: NDArray[np.uint64], added: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return provenance with numbers added to the index of the input."""
    return origins + (added.astype(np.uint64) << FILE_SHIFT)


def shift_sources(records: Records, added: NDArray[np.int64]) -> Records:
    """Return records with a number added to the input of each in its provenance, the last column of the batch."""
    batch = records.batch
    shifted = shift_origins(find_origins(batch), added)
    column = wrap_values(shifted, _PROVENANCE.type)
    return Records(records.keys, batch.set_column(batch.num_columns - 1, _PROVENANCE, column))


def check_names(names: Sequence[str], stored_counts: Sequence[int | None] | None = None) -> None:
    """Check that no two inputs have the same name, of the sources of a store no two of which it holds so many records."""
    check_count(len(names))
    held = names if stored_counts is None else compress(names, stored_counts)
    for name, count in Counter(held).most_common(1):
        if count > 1 and stored_counts is None:
            raise UsageError(f"--provenance: {name} is an input {count} times; name it once")
        if count > 1:
            raise UsageError(
                f"--provenance: the store holds records of {count} inputs named {name}; leave it out, and give what is "
                "appended later a path of its own"
            )


def check_count(input_count: int, option: str = "--provenance") -> None:
    if input_count > MAX_INPUTS:
        raise UsageError(f"{option}: {input_count:,} inputs are more than {MAX_INPUTS:,}; join some")


class ProvenanceDecoder(Decoder):
    """Decodes native batches with another decoder, and appends the two provenance columns.

    `observe` gets batches without provenance. Names are text, or with `as_dictionary` one dictionary for all batches.
    """

    def __init__(self, inner: Decoder, names: Sequence[str], *, as_dictionary: bool) -> None:
        self._inner = inner
        self._names = pa.array([_as_text(name) for name in names], pa.string())
        self._name_bytes = max((len(os.fsencode(name)) for name in names), default=0)
        self._fields = pa.schema(
            [(FILE_COLUMN, _DICTIONARY if as_dictionary else pa.large_string()), (ROW_COLUMN, pa.int64())]
        )

    @property
    def column_bytes(self) -> int:
        is_dictionary = pa.types.is_dictionary(self._fields.types[0])
        if is_dictionary and not isinstance(self._inner, FieldAdder):
            return _NUMBER_BYTES + _INDEX_BYTES
        return 2 * _NUMBER_BYTES + self._name_bytes

    @property
    def schema(self) -> pa.Schema | None:
        known = self._inner.schema
        return None if known is None else self._extend(known)

    def observe(self, batch: pa.RecordBatch, input_index: int, first_row: int) -> BadRecords | None:
        return self._inner.observe(batch, input_index, first_row)

    def state(self) -> Any:
        return self._inner.state()

    def merge(self, state: Any) -> None:
        self._inner.merge(state)

    def finish(self) -> pa.Schema:
        return self._extend(self._inner.finish())

    def _extend(self, schema: pa.Schema) -> pa.Schema:
        if isinstance(self._inner, FieldAdder):
            return schema
        for name in self._fields.names:
            if name in schema.names:
                raise UsageError(
                    f"--provenance: the inputs have a column {name!r} already; rename it, or leave out --provenance"
                )
        return pa.schema([*schema, *self._fields], schema.metadata)

    def decode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        last = batch.num_columns - 1
        columns = self._decode_provenance(batch.column(last))
        table = self._inner.decode(batch.select(range(last)))
        if isinstance(self._inner, FieldAdder):
            return self._inner.add_fields(table, columns)
        return pa.RecordBatch.from_arrays(
            [*table.columns, *columns.columns], schema=self._extend(table.schema)
        )

    def _decode_provenance(self, column: pa.Array) -> pa.RecordBatch:
        inputs, rows = unpack_provenance(view_bytes(column).view(np.uint64))
        names = pa.DictionaryArray.from_arrays(wrap_values(inputs.astype(np.int32), pa.int32()), self._names)
        return pa.RecordBatch.from_arrays(
            [names.cast(self._fields.types[0]), wrap_values(rows, pa.int64())], schema=self._fields
        )


def _as_text(name: str) -> str:
    r"""Return a name with bytes that are not UTF-8 escaped.

    >>> _as_text("a\udcff")
    'a\\xff'
    """
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
