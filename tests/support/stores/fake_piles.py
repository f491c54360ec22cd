"""A pile store in memory: what the loader needs of a store, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from recshuf.errors import PileError
from recshuf.piles.groups import Regions
from recshuf.piles.slices import JoinedRecords
from recshuf.records.arrays import take_rows
from recshuf.records.batch import Records
from recshuf.records.digests import Digest, digest_records
from recshuf.records.keys import RowRange, draw_keys, find_piles
from recshuf.records.provenance import FILE_SHIFT, add_provenance, extend_schema
from recshuf.system.buffers import allocate
from tests.support.stores.epoch_oracle import Record

if TYPE_CHECKING:
    from recshuf.system.buffers import Allocate


def number_rows(source: int, count: int) -> pa.RecordBatch:
    """Return records that say what they are."""
    return pa.record_batch({"id": np.arange(count, dtype=np.int64) + source * 1_000_000})


@dataclass(eq=False)
class FakePiles(Regions):
    """Sets of sources, as a dict from the name of a set to the number of records of each of its sources."""

    sets: dict[str, list[int]]
    pile_count: int
    make: Callable[[int, int], pa.RecordBatch] = number_rows
    """Gives the records of a source, from its number and its count."""
    seed: int = 7
    key_bits: int = 64
    """Keys have no more random bits than these: with few, many are equal."""
    store_id: str = "0123456789abcdef0123456789abcdef"
    snapshot: int = 1
    content: str = "0123456789abcdef"
    loads: list[list[tuple[int, int]]] = field(default_factory=list)
    """The regions of every load."""
    expected: list[list[tuple[int, int]]] = field(default_factory=list)
    """Those that were expected next."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self.sets))

    @cached_property
    def _whole(self) -> list[tuple[Records, NDArray[np.uint16]]]:
        """All records of each set by source and row, and the pile of each."""
        held, first = [], 0
        for name in self.names:
            sizes = self.sets[name]
            ranges = [RowRange(first + index, 0, count) for index, count in enumerate(sizes)]
            keys = (
                draw_keys(self.seed, ranges) >> np.uint64(64 - self.key_bits) << np.uint64(64 - self.key_bits)
            )
            batch = pa.concat_batches([self.make(one.input_index, one.rows) for one in ranges])
            held.append((Records(keys, add_provenance(batch, ranges)), find_piles(keys, self.pile_count)))
            first += len(sizes)
        return held

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(f"source-{index}" for index in range(sum(map(len, self.sets.values()))))

    nulls: tuple[str, ...] | None = None
    info = SimpleNamespace(origin=None)
    """Records are tables."""

    @cached_property
    def schema(self) -> pa.Schema:
        return self.make(0, 0).schema

    @cached_property
    def pile_schema(self) -> pa.Schema:
        return extend_schema(self.schema)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        return np.array([np.bincount(piles, minlength=self.pile_count) for _, piles in self._whole])

    @property
    def byte_counts(self) -> NDArray[np.int64]:
        return self.counts * 8

    def lengths(self, column: int) -> NDArray[np.int64]:
        sums = np.zeros_like(self.counts)
        for own, (records, piles) in zip(sums, self._whole, strict=True):
            for value, pile in zip(records.batch.column(column).to_pylist(), piles.tolist(), strict=True):
                own[pile] += len(value or ())
        return sums

    def pack(self, cells: Sequence[tuple[int, int]], memory: Allocate = allocate) -> JoinedRecords:
        self.loads.append(list(cells))
        return JoinedRecords([self._join(cells)])

    @cached_property
    def _joined(self) -> dict[tuple[tuple[int, int], ...], Records]:
        """Records of cells that were asked for."""
        return {}

    def _join(self, cells: Sequence[tuple[int, int]]) -> Records:
        found = self._joined.get(tuple(cells))
        if found is None:
            found = self._joined[tuple(cells)] = self._join_anew(cells)
        return found

    def _join_anew(self, cells: Sequence[tuple[int, int]]) -> Records:
        keys, batches = [], []
        for index, pile in cells:
            records, piles = self._whole[index]
            rows = np.flatnonzero(piles == pile)
            keys.append(records.keys[rows])
            batches.append(take_rows(records.batch, rows))
        return Records(np.concatenate(keys), pa.concat_batches(batches))

    def digest(self, cells: Sequence[tuple[int, int]]) -> Digest:
        return digest_records(self._join(cells))

    def blame(self, cells: Sequence[tuple[int, int]]) -> PileError:
        return PileError(f"{cells} hold other records")

    def expect(self, regions: Sequence[tuple[int, int]]) -> None:
        self.expected.append(list(regions))

    def close(self) -> None: ...

    def records(self) -> list[Record]:
        """Return all records, for the oracle."""
        found = []
        for name, (records, piles) in zip(self.names, self._whole, strict=True):
            origins = np.array(
                [int.from_bytes(one, "little") for one in records.batch.columns[-1].to_pylist()]
            )
            sources, rows = np.divmod(origins, 1 << int(FILE_SHIFT))
            columns = (records.keys, sources, rows, [name] * len(records), piles)
            found += map(Record, *(np.asarray(column).tolist() for column in columns))
        return found
