"""The records of a store for which an Arrow expression is true, as regions of their own.

All regions are read once, when the filter is made, to count what it keeps. So the groups of every epoch have known sizes, and
batches, ranks, lanes and resumes are those of a store that holds these records alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from recshuf.errors import UsageError
from recshuf.formats.stored import ID, Selection
from recshuf.piles.groups import Regions
from recshuf.piles.slices import JoinedRecords, RecordCodec
from recshuf.records.digests import Digests, sum_table
from recshuf.system.buffers import allocate
from recshuf.train.loading import restore_decoder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.piles.groups import Cells
    from recshuf.piles.kept.stored import StoredPiles
    from recshuf.records.batch import Records
    from recshuf.records.digests import Digest
    from recshuf.system.buffers import Allocate


_EXAMPLE = 'pyarrow.compute.field("lang") == "en"'


def check_filter(expression: Any) -> None:
    """Refuse what is no Arrow expression."""
    import pyarrow.compute as pc

    if not isinstance(expression, pc.Expression):
        shown = " ".join(repr(expression).split())[:80]
        raise UsageError(f"filter={shown}: give an expression of Arrow on columns, such as {_EXAMPLE}")


class FilteredPiles(Regions):
    """The regions of a store with those of its records for which an expression is true. All else is that of the store."""

    def __init__(self, piles: StoredPiles, expression: Any) -> None:
        self.inner, self.names = piles, piles.names
        self.ahead_bytes = piles.ahead_bytes
        self.expression = expression
        self._selection: Selection | None = None
        self._evaluate(self._select().make_empty())
        self._count()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_selection": None}

    def _select(self) -> Selection:
        if self._selection is None:
            decoder = restore_decoder(self.inner)
            names = decoder.finish().names
            self._selection = Selection(decoder, [*names, *({ID} - set(names))])
        return self._selection

    def _count(self) -> None:
        """Find out what is kept of each region."""
        piles, shape = self.inner, self.inner.counts.shape
        codec, rows_kept = RecordCodec(piles.pile_schema), xxhash.xxh3_64()
        self._digests = np.zeros((3, *shape), np.int64)
        self._variable_columns = codec.variable_columns
        self._lengths = np.zeros((len(codec.variable_columns), *shape), np.int64)
        filled = np.flatnonzero(piles.counts.sum(axis=0)).tolist()

        def find(pile: int) -> list[tuple[int, int]]:
            return [(index, pile) for index in np.flatnonzero(piles.counts[:, pile]).tolist()]

        for pile in piles.announce(filled, find):
            sets = np.flatnonzero(piles.counts[:, pile])
            records, rows = self._load(find(pile))
            rows_kept.update(rows.data)
            found = records.take(rows)
            edges = np.searchsorted(rows, np.cumsum([0, *piles.counts[sets, pile]]))
            self._digests[:, sets, pile] = Digests.find(found, edges).table
            self._lengths[:, sets, pile] = codec.sum_lengths(found.batch, edges)
        self.counts: NDArray[np.int64] = self._digests[0]
        self.byte_counts: NDArray[np.int64] = np.where(
            self.counts, piles.byte_counts, 0
        )  # they are loaded whole
        count, total = int(self.counts.sum()), int(piles.counts.sum())
        if total and not count:
            raise UsageError(
                f"filter: {self.expression} is true for none of the {total:,} records of {piles.path}; leave it out, or "
                "give another one"
            )
        self.kept = f"{count:,} of {total:,} records, {rows_kept.hexdigest()}"
        """How many records are kept, and a digest of which."""

    def _load(self, cells: Cells, memory: Allocate = allocate) -> tuple[Records, NDArray[np.intp]]:
        """Return all records of some cells, compared with those that were written, and the rows of those that are kept."""
        records = self.inner.load(cells, memory)
        return records, np.flatnonzero(self._evaluate(self._select().make_table(records.batch)))

    def _evaluate(self, records: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return for which records the expression is true, not false or null."""
        from pyarrow import acero

        try:
            # In this thread, which may be that of a forked process.
            source = acero.TableSourceNodeOptions(pa.Table.from_batches([records]))
            steps = [
                ("table_source", source),
                ("project", acero.ProjectNodeOptions([self.expression], ["kept"])),
            ]
            plan = acero.Declaration.from_sequence([acero.Declaration(*step) for step in steps])
            kept = plan.to_table(use_threads=False).column(0)
        except pa.ArrowException as error:
            raise UsageError(f"filter: {self.expression}: {_explain(error, records.schema)}") from error
        if kept.type != pa.bool_():
            raise UsageError(
                f"filter: {self.expression} is of the type {kept.type}; give an expression that is true or false, such as "
                f"{_EXAMPLE}"
            )
        mask: NDArray[np.bool_] = kept.fill_null(False).to_numpy()
        return mask

    def pack(self, cells: Cells, memory: Allocate = allocate) -> JoinedRecords | None:
        if not cells:
            return None
        records, rows = self._load(cells, memory)
        return JoinedRecords([records.take(rows)])

    def digest(self, cells: Cells) -> Digest:
        sets, piles = zip(*cells, strict=True) if cells else ((), ())
        return sum_table(self._digests[:, sets, piles])

    def blame(self, _: Cells) -> UsageError:
        return UsageError(
            f"filter: {self.expression} keeps other records than before; give one whose value depends on the record alone"
        )

    def forget(self) -> None:
        self.inner.forget()

    def expect(self, cells: Cells) -> None:
        self.inner.expect(cells)

    def hasten(self) -> None:
        self.inner.hasten()

    def lengths(self, column: int) -> NDArray[np.int64]:
        """Return the sum of the lengths of what is kept; see `StoredPiles.lengths`."""
        sums: NDArray[np.int64] = self._lengths[self._variable_columns.index(column)]
        return sums

    def close(self) -> None:
        self.inner.close()


def _explain(error: pa.ArrowException, schema: pa.Schema) -> str:
    """Return what Arrow says in a line, without the schema, in place of which names are enough."""
    problem = str(error).splitlines()[0]
    if problem.startswith("No match for "):
        names = ", ".join(map(repr, schema.names))
        return f'{problem.split(" in ")[0]}; the store has {names}; field("meta", "w") is a field of a struct'
    fits = "no kernel matching" not in problem
    return problem if fits else f"{problem}; compare columns with values of their types, or cast them"
