"""Which columns a loader yields, and how they are made of native records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.train.ids import ID, make_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.interfaces import Decoder


class Tables(Protocol):
    """A store whose records have a table form."""

    def table_decoder(self, columns: Sequence[str] | None) -> Decoder:
        """Return the decoder from native records, without provenance, to some columns of their table form."""
        ...


class Selection:
    """Makes the wanted columns of native records. Used by many threads.

    Parameters
    ----------
    columns
        Names of columns of the store, or `ID`. Default: all of the store.

    Raises
    ------
    UsageError
        When the store lacks one, or its name means two.
    """

    def __init__(self, tables: Tables, columns: Sequence[str] | None) -> None:
        decoder = tables.table_decoder(None)
        known = decoder.finish().names
        self._names = known if columns is None else list(columns)
        self._has_id = columns is not None and ID in self._names
        _check_names(self._names, [*known, ID] if self._has_id else known)
        stored = [name for name in self._names if not self._has_id or name != ID]
        self._decoder = decoder if columns is None else tables.table_decoder(stored)
        self._has_stored = bool(stored)

    def make_table(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of native records with provenance, in the wanted order."""
        if not self._has_id:
            return self._decode(records)
        columns = {ID: make_ids(records)}
        if self._has_stored:
            table = self._decode(records)
            columns |= dict(zip(table.schema.names, table.columns, strict=True))
        return pa.RecordBatch.from_arrays([columns[name] for name in self._names], names=self._names)

    def _decode(self, records: pa.RecordBatch) -> pa.RecordBatch:
        return self._decoder.decode(records.select(range(records.num_columns - 1)))


def _check_names(wanted: Sequence[str], known: Sequence[str]) -> None:
    if not wanted:
        raise UsageError("columns=[]: name at least one column")
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"columns: no column {name!r} in the store; it has {', '.join(map(repr, known))}"
            )
        if known.count(name) > 1:
            raise UsageError(
                f"columns: two columns are called {name!r}; give the inputs columns of different names"
            )
        if wanted.count(name) > 1:
            raise UsageError(f"columns: {name!r} is named twice; name it once")
