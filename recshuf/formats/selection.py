"""Which columns of the records of a store are wanted, made of native records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.records.arrays import check_path, dotted, find_value, list_known, wrap_values
from recshuf.records.provenance import find_origins, unpack_provenance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.interfaces import Decoder


ID = "_id"
ID_TYPE = pa.struct(
    [pa.field("source", pa.int32(), nullable=False), pa.field("row", pa.int64(), nullable=False)]
)
"""Number of the source in the store's list of sources, and number of the row there, from 0."""


def make_ids(batch: pa.RecordBatch) -> pa.StructArray:
    sources, rows = unpack_provenance(find_origins(batch))
    columns = [wrap_values(sources.astype(np.int32), pa.int32()), wrap_values(rows, pa.int64())]
    return pa.StructArray.from_arrays(columns, fields=list(ID_TYPE))


class Selection:
    """Makes the wanted columns of native records. Used by many threads.

    Parameters
    ----------
    decoder
        Decodes native records without provenance to table form.
    columns
        Names of columns of the store, paths of fields in structs (see `find_value`), or `ID`. Default: all columns of the
        store.
    """

    def __init__(self, decoder: Decoder, columns: Sequence[str] | None) -> None:
        whole = decoder.finish()
        self.known: list[str] = whole.names
        self._decoder = decoder
        self._names = self.known if columns is None else list(columns)
        self._has_id = columns is not None and ID in self._names
        _check_names(self._names, whole.append(pa.field(ID, ID_TYPE)) if self._has_id else whole)
        no_paths = {*self.known, ID}
        self._paths = [name for name in self._names if name not in no_paths]

    @property
    def schema(self) -> pa.Schema:
        known = self._decoder.finish()
        others = {path: pa.field(path, check_path(path, known)) for path in self._paths}
        if self._has_id:
            others[ID] = pa.field(ID, ID_TYPE)
        return pa.schema([others.get(name) or known.field(name) for name in self._names])

    def make_empty(self) -> pa.RecordBatch:
        columns = [one.combine_chunks() for one in self.schema.empty_table().columns]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def make_table(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of native records with provenance, in the wanted order."""
        ids = make_ids(records) if self._has_id else None
        if self._names == [ID] and ids is not None:
            return pa.RecordBatch.from_arrays([ids], names=[ID])
        table = self._decoder.decode(records.select(range(records.num_columns - 1)))
        added = {path: find_value(table, path) for path in self._paths}
        if ids is not None:
            added[ID] = ids
        if added:  # at once: to append a column copies the list of all
            fields = [*table.schema, *(pa.field(name, values.type) for name, values in added.items())]
            table = pa.RecordBatch.from_arrays([*table.columns, *added.values()], schema=pa.schema(fields))
        return table.select(self._names)


def list_columns(columns: Iterable[str] | None) -> list[str] | None:
    """Return the names of columns; None if none are given."""
    if columns is None:
        return None
    names = None if isinstance(columns, str) or not isinstance(columns, Iterable) else list(columns)
    if names is None or not all(isinstance(name, str) for name in names):
        raise UsageError(f"columns={columns!r}: give a list of names")
    return names


def _check_names(wanted: Sequence[str], schema: pa.Schema) -> None:
    known = schema.names
    if not wanted and known:  # a store without records may have no columns
        raise UsageError("columns=[]: name at least one column")
    counts, asked = Counter(known), Counter(wanted)
    for name in wanted:
        column = name if name in counts else dotted(name).split(".")[0]
        if column not in counts:
            raise UsageError(
                f"columns: no column {name!r} in the store; it has {list_known(name, known, repr)}"
            )
        if counts[column] > 1:
            raise UsageError(
                f"columns: two columns are called {column!r}; give the inputs columns of different names"
            )
        if asked[name] > 1:
            raise UsageError(f"columns: {name!r} is named twice; name it once")
        if name in counts:
            continue
        try:
            check_path(name, schema)
        except UsageError as error:
            raise UsageError(f"columns: {error}; name a field of a struct, or {column!r}") from None
