"""Single records of a store, to look at: by their positions in the order of `gather`, or by their `_id`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.errors import MissingRecordError, UsageError
from recshuf.formats.stored import ID_TYPE, Selection, StoredSource
from recshuf.piles.epochs import EpochOrder
from recshuf.piles.groups import Groups
from recshuf.records.arrays import take_rows
from recshuf.records.batch import concat_batches
from recshuf.records.keys import draw_keys, find_piles
from recshuf.records.provenance import MAX_INPUTS, MAX_ROWS, find_origins, pack_provenance

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.piles.kept.stored import StoredPiles


_MOST = 2**63 - 1
_SHOWN_ROWS = 1 << 10
"""Records that are values of Python at once."""


class Looker:
    """Reads records of a store whose piles are open, in the order of `gather`: each pile that holds some of them as a whole.

    `columns` are those of a `Selection`.
    """

    def __init__(self, piles: StoredPiles, columns: Sequence[str] | None = None) -> None:
        self._piles = piles
        self._columns = columns
        self._groups = Groups(piles, EpochOrder(piles.seed, 0, "none", piles.seed))
        self._ends = np.cumsum(self._groups.sizes)

    def _select(self) -> Selection:
        piles = self._piles
        return Selection(StoredSource(piles.schema, piles.info.origin, ()).decoder(), self._columns)

    def take(self, positions: NDArray[np.int64]) -> pa.RecordBatch:
        """Return the records at some positions, from 0, in the order in which they are given."""
        selection = self._select()
        if not positions.size:
            return selection.make_empty()
        owners, parts = np.searchsorted(self._ends, positions, side="right"), []
        index = np.argsort(owners, kind="stable")
        piles, begins = np.unique(owners[index], return_index=True)
        for pile, own in zip(piles.tolist(), np.split(positions[index], begins[1:]), strict=True):
            rows = own - (self._ends[pile] - self._groups.sizes[pile])
            parts.append(take_rows(self._groups.load([pile]).batch, rows))
        place = np.empty(len(positions), np.intp)
        place[index] = np.arange(len(positions))
        return selection.make_table(take_rows(concat_batches(parts), place))

    def iterate(self) -> Iterator[dict[str, Any]]:
        """Yield all records."""
        filled = np.flatnonzero(self._groups.sizes).tolist()
        selection = self._select() if filled else None
        for pile in filled:
            assert selection is not None  # noqa: S101 - there are records
            table = selection.make_table(self._groups.load([pile]).batch)
            # Values of Python take many times the memory of a pile.
            for start in range(0, table.num_rows, _SHOWN_ROWS):
                yield from table.slice(start, _SHOWN_ROWS).to_pylist()

    def find(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of records, given source and row of each, shape ``(n, 2)``."""
        packed = pack_provenance(ids[:, 0].copy(), ids[:, 1].copy())
        wanted, places = np.unique(packed, return_inverse=True)
        found = np.full(len(wanted), -1, np.int64)
        left, likely = len(wanted), self._guess_piles(ids)
        others = np.flatnonzero(self._groups.sizes).tolist()
        # Keys are not those of the sources where sets were joined, or a split has moved records.
        for pile in dict.fromkeys([*likely, *others]):
            if not left:
                break
            if not self._groups.sizes[pile]:
                continue
            origins = find_origins(self._groups.load([pile]).batch)
            place = np.minimum(np.searchsorted(wanted, origins), len(wanted) - 1)
            rows = np.flatnonzero(wanted[place] == origins)
            found[place[rows]] = self._ends[pile] - len(origins) + rows
            left -= len(rows)
        positions = found[places]
        for source, row in ids[positions < 0].tolist():
            raise MissingRecordError(f"{self._piles.path}: no record has the _id ({source}, {row})")
        return positions

    def _guess_piles(self, ids: NDArray[np.int64]) -> list[int]:
        """Return the piles where records are if their keys are those of their sources and rows."""
        keys = []
        for base, about in self._piles.descriptions:
            own = ids[np.isin(ids[:, 0], [base + one.index for one in about.sources])]
            ranges = [(source - base, row, 1) for source, row in own.tolist()]
            if ranges:
                keys.append(draw_keys(about.seed, ranges, about.stream))
        drawn = np.concatenate([np.zeros(0, np.uint64), *keys])
        found: list[int] = np.unique(find_piles(drawn, len(self._ends))).tolist()
        return found


def read_positions(rows: Any, count: int, path: Any) -> NDArray[np.int64]:
    """Return positions of records from 0, of so many; negative ones count from the end."""
    given = _read_numbers("rows", rows, "a list of positions, integers")
    if given.ndim != 1:
        raise UsageError(f"rows={_show(rows)}: give a list of positions, integers")
    for position in given[(given < -count) | (given >= count)].tolist():
        raise MissingRecordError(f"{path}: no record has the position {position}; there are {count:,}")
    return np.where(given < 0, given + count, given)


def read_ids(ids: Any, path: Any) -> NDArray[np.int64]:
    """Return source and row of each record, shape ``(n, 2)``, given in any form in which `_id` comes."""
    if isinstance(ids, list | tuple) and ids and isinstance(ids[0], Mapping):
        ids = pa.array(ids, ID_TYPE)
    if isinstance(ids, pa.Array | pa.ChunkedArray) and pa.types.is_struct(ids.type):
        ids = np.stack([np.asarray(part) for part in ids.flatten()], axis=1)
    given = _read_numbers("ids", ids, "a list of pairs of source and row, as in `_id`")
    if not given.size:
        return given.reshape(0, 2)
    if given.ndim != 2 or given.shape[1] != len(ID_TYPE):
        raise UsageError(f"ids={_show(ids)}: give a list of pairs of source and row, as in `_id`")
    for source, row in given[((given < 0) | (given >= [MAX_INPUTS, MAX_ROWS])).any(axis=1)].tolist():
        raise MissingRecordError(f"{path}: no record has the _id ({source}, {row})")
    return given


def _show(given: Any) -> str:
    return " ".join(repr(given).split())[:80]


def _read_numbers(name: str, given: Any, wanted: str) -> NDArray[np.int64]:
    try:
        numbers = np.asarray(given)
    except ValueError:  # lists of different lengths
        numbers = np.zeros(1)
    kind = numbers.dtype.kind
    is_whole = kind in "iu" or (kind == "O" and all(isinstance(one, int) for one in numbers.flat))
    if numbers.size and not is_whole:
        raise UsageError(f"{name}={_show(given)}: give {wanted}")
    if kind in "uO":
        numbers = np.clip(numbers.astype(object), -_MOST, _MOST)  # no store has so many records
    whole: NDArray[np.int64] = numbers.astype(np.int64)
    return whole
