"""Which records differ: signed counts of equal hashes, out of core.

Each side's hashes are thrown on piles by their first half. In a pile, inputs count up and the output counts
down: what is left above zero is missing, what is left below is extra.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.audit.verify.record_sets import INPUTS, OUTPUT
from recshuf.piles.codec import choose_codec
from recshuf.piles.layout import StorePlan
from recshuf.piles.reader import PileReader
from recshuf.piles.slices import Origin
from recshuf.piles.store import PileStore
from recshuf.records.batch import Records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from recshuf.piles.scratch import Scratch

BUCKETS = 4096
"""Hashes are summed by their first 12 bits, so that a difference is looked for only where there is one."""
MOST_PLACES = 10
_SUMMED_AT_ONCE = 1 << 20
_FILE_SHIFT, _SIDE_SHIFT = np.uint64(42), np.uint64(63)
_ROW_MASK = np.uint64(2**42 - 1)
_WORDS = ("second", "place", "count")
_ENTRY_BYTES = 8 * (1 + len(_WORDS))
_MOST_PILES = 4096


class Tally:
    """Numbers and sums (mod 2^64) of hashes, by their first bits: equal for equal multisets of records.

    Parameters
    ----------
    file_count
        Of how many files records are counted.
    """

    def __init__(self, file_count: int) -> None:
        self.records = [0] * file_count
        self.counts: NDArray[np.int64] = np.zeros(BUCKETS, np.int64)
        self.sums: NDArray[np.uint64] = np.zeros((2, BUCKETS), np.uint64)

    def add(self, hashes: NDArray[np.uint64], file: int) -> None:
        """Add hashes of records of one file, shape ``(n, 2)``."""
        self.records[file] += len(hashes)
        for start in range(0, len(hashes), _SUMMED_AT_ONCE):
            some = hashes[start : start + _SUMMED_AT_ONCE]
            buckets = find_buckets(some)
            self.counts += np.bincount(buckets, minlength=BUCKETS)
            for lane in range(2):
                self.sums[lane] += _sum_by_bucket(some[:, lane], buckets)

    def merge(self, other: Tally) -> None:
        """Add another tally of the same files."""
        self.records = [mine + theirs for mine, theirs in zip(self.records, other.records, strict=True)]
        self.counts += other.counts
        self.sums += other.sums

    def find_differing(self, other: Tally) -> NDArray[np.bool_]:
        """Tell of each bucket whether it holds other records than that of the other side."""
        differing: NDArray[np.bool_] = self.counts != other.counts
        for mine, theirs in zip(self.sums, other.sums, strict=True):
            differing |= mine != theirs
        return differing


def _sum_by_bucket(values: NDArray[np.uint64], buckets: NDArray[np.intp]) -> NDArray[np.uint64]:
    # Sums of 2^20 halves are exact in the floats that bincount adds up.
    low = np.bincount(buckets, values & np.uint64(2**32 - 1), BUCKETS).astype(np.uint64)
    high = np.bincount(buckets, values >> np.uint64(32), BUCKETS).astype(np.uint64)
    return low + (high << np.uint64(32))


def find_buckets(hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Return the bucket of each hash."""
    return (hashes[:, 0] >> np.uint64(52)).astype(np.intp)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record stands."""

    side: int
    file: int
    row: int
    copies: int
    """How many of its kind are missing or extra."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one side has and the other has not."""

    missing: int = 0
    extra: int = 0
    missing_places: tuple[Place, ...] = ()
    """The first few, by file and row; of equal records the first."""
    extra_places: tuple[Place, ...] = ()

    def without_missing(self, count: int) -> Found:
        """Return what is found amiss when so many records should be missing, whichever they are."""
        surplus = max(0, count - self.missing)
        return Found(max(0, self.missing - count), self.extra + surplus, (), self.extra_places)


@dataclass(frozen=True, slots=True)
class _Entries:
    """Counted hashes: arrays of shape ``(n,)``."""

    first: NDArray[np.uint64]
    second: NDArray[np.uint64]
    place: NDArray[np.uint64]
    """Side (1 bit), file (21), row (42)."""
    count: NDArray[np.int64]
    """Copies, negative for the output's."""

    def take(self, index: NDArray[np.intp]) -> _Entries:
        return _Entries(self.first[index], self.second[index], self.place[index], self.count[index])

    def sort(self) -> tuple[_Entries, NDArray[np.intp]]:
        """Return the entries sorted by hash, those of the inputs first, and where each hash begins."""
        ordered = self.take(np.lexsort((self.place, self.second, self.first)))
        new = np.ones(len(ordered.first), np.bool_)
        new[1:] = (np.diff(ordered.first) != 0) | (np.diff(ordered.second) != 0)
        return ordered, np.flatnonzero(new)


class Search:
    """Collects the hashes of both sides and finds what differs. Filled by many threads.

    Parameters
    ----------
    wanted
        Which buckets are looked at, shape ``(BUCKETS,)``.
    expected
        About how many hashes will be added.
    """

    def __init__(self, wanted: NDArray[np.bool_], expected: int, scratch: Scratch, memory_bytes: int) -> None:
        self._wanted = wanted
        codec = choose_codec(pa.schema([pa.field(name, pa.binary(8), nullable=False) for name in _WORDS]))
        piles = min(_MOST_PILES, max(1, expected * _ENTRY_BYTES // (memory_bytes // 32)))
        self._store = PileStore(StorePlan(piles, (float(expected),), memory_bytes // 4), codec, scratch)

    def add(self, side: int, hashes: NDArray[np.uint64], file: int, first_row: int) -> None:
        """Add the hashes, shape ``(n, 2)``, of consecutive records."""
        rows = np.flatnonzero(self._wanted[find_buckets(hashes)])
        if not rows.size:
            return
        place = (rows + first_row).view(np.uint64) | (np.uint64(file) << _FILE_SHIFT)
        if side == OUTPUT:
            place |= np.uint64(1) << _SIDE_SHIFT
        sign = 1 if side == INPUTS else -1
        found, starts = _Entries(hashes[rows, 0], hashes[rows, 1], place, np.full(len(rows), sign)).sort()
        # Equal records of a batch are kept as one with its count: a million of them take no more than one.
        counts = np.add.reduceat(found.count, starts)
        self._keep(
            _Entries(found.first[starts], found.second[starts], found.place[starts], counts), side, file
        )

    def _keep(self, entries: _Entries, side: int, file: int) -> None:
        columns = [_as_bytes(array) for array in (entries.second, entries.place, entries.count)]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._store.codec.schema)
        self._store.add(0, Origin(file, side), Records(entries.first, batch))

    def run(self) -> Found:
        """Return what differs."""
        totals = {INPUTS: 0, OUTPUT: 0}
        places: dict[int, list[Place]] = {INPUTS: [], OUTPUT: []}
        reader = PileReader(self._store)
        for piles in reader.runs():
            records = reader.load(piles)
            if records is None:
                continue
            entries, starts = _unpack(records).sort()
            net = np.add.reduceat(entries.count, starts)
            for side, surplus in ((INPUTS, net), (OUTPUT, -net)):
                groups = np.flatnonzero(surplus > 0)
                totals[side] += int(surplus[groups].sum())
                first = _first_places(entries, starts, side)[groups]
                places[side] = _keep_first(places[side], first, surplus[groups])
        return Found(totals[INPUTS], totals[OUTPUT], tuple(places[INPUTS]), tuple(places[OUTPUT]))

    def close(self) -> None:
        """Give up what is held. Idempotent."""
        self._store.close()


def _as_bytes(array: NDArray[np.uint64] | NDArray[np.int64]) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(8), len(array), [None, pa.py_buffer(np.ascontiguousarray(array))])


def _unpack(records: Records) -> _Entries:
    second, place, count = (
        np.frombuffer(column.buffers()[1], np.uint64, len(column), 8 * column.offset)
        for column in records.batch.columns
    )
    return _Entries(records.keys, second, place, count.view(np.int64))


def _first_places(entries: _Entries, starts: NDArray[np.intp], side: int) -> NDArray[np.uint64]:
    """Return the first place of each hash on a side; of no meaning where that side does not have it."""
    ours = (entries.place >> _SIDE_SHIFT) == side
    masked = np.where(ours, entries.place, np.uint64(2**64 - 1))
    first: NDArray[np.uint64] = np.minimum.reduceat(masked, starts)
    return first


def _keep_first(known: Sequence[Place], places: NDArray[np.uint64], copies: NDArray[np.int64]) -> list[Place]:
    """Return the first few of the places known and found."""
    first = np.argsort(places)[:MOST_PLACES]
    found = [
        Place(place >> 63, place >> 42 & (2**21 - 1), place & int(_ROW_MASK), count)
        for place, count in zip(places[first].tolist(), copies[first].tolist(), strict=True)
    ]
    return sorted([*known, *found], key=lambda one: (one.file, one.row))[:MOST_PLACES]
