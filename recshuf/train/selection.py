"""Stores as loaders open them and read their groups, and which columns they yield, made of native records."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from recshuf.errors import UsageError
from recshuf.formats.stored import StoredSource
from recshuf.interfaces import InputSummary
from recshuf.piles.groups import Groups
from recshuf.piles.kept.stored import StoredPiles
from recshuf.system.paths import local_path
from recshuf.train.columns import ID, ID_TYPE, make_ids

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.interfaces import Decoder
    from recshuf.piles.epochs import EpochOrder


def open_piles(store: Any) -> tuple[StoredPiles, bool]:
    """Return the piles of a store, and whether the caller must close them.

    Parameters
    ----------
    store
        Path of a store, a `PileStore`, or its piles.
    """
    if isinstance(store, str | os.PathLike):
        return StoredPiles(local_path(store)), True
    if hasattr(store, "piles"):
        return store.piles(), True
    if not hasattr(store, "store_id"):
        raise UsageError(f"store={store!r}: give the path of a store, or a PileStore")
    return store, False


def restore_decoder(piles: StoredPiles) -> Decoder:
    """Return the decoder from native records, without provenance, to table form."""
    inputs = [InputSummary(name, None, None, False, None) for name in piles.sources]
    return StoredSource(piles.schema, piles.info.origin, inputs).decoder()


@dataclass(frozen=True, slots=True)
class GroupSource:
    """The groups of a store, epoch by epoch."""

    piles: StoredPiles
    """They stay open."""
    order: EpochOrder
    """That of one epoch; others differ in their number."""
    prefetch: int
    """Number of groups that threads load ahead."""

    def open(self, epoch: int) -> Groups:
        """Return the groups of an epoch."""
        return Groups(self.piles, replace(self.order, epoch=epoch))


class Selection:
    """Makes the wanted columns of native records. Used by many threads.

    Parameters
    ----------
    decoder
        Decodes native records without provenance to table form.
    columns
        Names of columns of the store, or `ID`. Default: all of the store.
    """

    def __init__(self, decoder: Decoder, columns: Sequence[str] | None) -> None:
        self.known: list[str] = decoder.finish().names
        """Names of all columns of the store."""
        self._decoder = decoder
        self._names = self.known if columns is None else list(columns)
        self._has_id = columns is not None and ID in self._names
        _check_names(self._names, [*self.known, ID] if self._has_id else self.known)

    @property
    def schema(self) -> pa.Schema:
        """Columns of what `make_table` returns."""
        known = self._decoder.finish()
        return pa.schema(
            [
                pa.field(ID, ID_TYPE) if name == ID and self._has_id else known.field(name)
                for name in self._names
            ]
        )

    def make_table(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Return the columns of native records with provenance, in the wanted order."""
        ids = make_ids(records) if self._has_id else None
        if self._names == [ID] and ids is not None:
            return pa.RecordBatch.from_arrays([ids], names=[ID])
        table = self._decoder.decode(records.select(range(records.num_columns - 1)))
        if ids is not None:
            table = table.append_column(ID, ids)
        return table.select(self._names)


def list_columns(columns: Iterable[str] | None) -> list[str] | None:
    """Return the names of columns; None if none are given."""
    if columns is None:
        return None
    names = None if isinstance(columns, str) or not isinstance(columns, Iterable) else list(columns)
    if names is None or not all(isinstance(name, str) for name in names):
        raise UsageError(f"columns={columns!r}: give a list of names")
    return names


def _check_names(wanted: Sequence[str], known: Sequence[str]) -> None:
    if not wanted and known:  # a store without records may have no columns
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
