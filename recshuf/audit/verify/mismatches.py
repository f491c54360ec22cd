"""Which records differ: signed counts of equal hashes, out of core.

The hashes of inputs and output are scattered to piles by their first half. In a pile, each record of the inputs counts
+1 and each of the output -1. A hash with a positive sum is missing from the output, one with a negative sum is extra.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.audit.verify.record_sets import KEPT_SHARE
from recshuf.piles.layout import StorePlan
from recshuf.piles.regions import FilledRegions
from recshuf.piles.slices import Origin, RecordCodec
from recshuf.piles.store import Store
from recshuf.records.arrays import view_bytes, wrap_values
from recshuf.records.batch import Records
from recshuf.records.hashing import hash_rows
from recshuf.records.provenance import pack_provenance, unpack_provenance
from recshuf.records.word_hashing import HashKey

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.piles.set_folder import SetFolder
    from recshuf.records.key_makers import Quota
    from recshuf.records.keys import RowRange


INPUTS, OUTPUT = 0, 1
"""Indices of the two record sets."""
BUCKETS = 4096
"""Hashes are summed by their first 12 bits: only buckets whose sums differ are searched."""
_MOST_NAMED = 10
"""Missing and extra records that are reported one by one, each."""
_HASHED_ROWS = 1 << 15
_SET_SHIFT = np.uint64(63)
_BELOW_SET = np.uint64(2**63 - 1)
_WORDS = ("second", "location", "count")
_MOST_PILES = 4096
_PILES_AT_ONCE = 32
"""A pile takes such a part of the memory, several times over while it is compared."""
_MORE_SHIFT = 40
"""A count has in its higher bits how often a hash may occur beyond that."""
_HALF = 1 << (_MORE_SHIFT - 1)


class Tally:
    """Counts and sums (mod 2^64) of hashes in each bucket: equal for equal multisets of records."""

    def __init__(self, file_count: int) -> None:
        self.records = [0] * file_count
        self.counts: NDArray[np.int64] = np.zeros(BUCKETS, np.int64)
        self.sums: NDArray[np.uint64] = np.zeros((2, BUCKETS), np.uint64)
        self._lock = threading.Lock()

    def add(self, hashes: NDArray[np.uint64], file: int) -> None:
        """Add the hashes of records of one file, shape ``(n, 2)``; many threads may add."""
        self.add_to_files(hashes, [(file, len(hashes))])

    def add_to_files(self, hashes: NDArray[np.uint64], counts: Iterable[tuple[int, int]]) -> None:
        """Add the hashes of records, shape ``(n, 2)``, so many of each file; many threads may add."""
        buckets, sums = _find_buckets(hashes), np.zeros_like(self.sums)
        for lane in range(2):
            np.add.at(sums[lane], buckets, hashes[:, lane])
        with self._lock:
            for file, count in counts:
                self.records[file] += count
            self.counts += np.bincount(buckets, minlength=BUCKETS)
            self.sums += sums

    def find_differing(self, other: Tally) -> NDArray[np.bool_]:
        """Return whether each bucket differs from that of another record set, shape ``(BUCKETS,)``."""
        differing: NDArray[np.bool_] = (self.counts != other.counts) | (self.sums != other.sums).any(axis=0)
        return differing


def _find_buckets(hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
    return (hashes[:, 0] >> np.uint64(52)).astype(np.intp)


class RecordHashing:
    """Hashes native records for a comparison while another pass reads them; many threads may add."""

    def __init__(self, file_count: int) -> None:
        self.key = HashKey()
        self.tally = Tally(file_count)

    def add(self, batch: pa.RecordBatch, ranges: Sequence[RowRange]) -> None:
        """Add the records of a batch, which are those of the ranges."""
        counts = [(one.input_index, one.rows) for one in ranges]
        for start in range(0, batch.num_rows, _HASHED_ROWS):  # hashes of short records take more than these
            hashes = hash_rows(batch.slice(start, _HASHED_ROWS), self.key)
            self.tally.add_to_files(hashes, [] if start else counts)


class Mismatch(NamedTuple):
    """The first of equal records that are missing or extra."""

    file: int
    """Index of its file in its record set."""
    row: int
    """Its row number in the file, from 0."""
    copies: int
    """How many equal records are missing or extra."""


@dataclass(frozen=True, slots=True)
class Mismatches:
    """The records that differ."""

    missing: int = 0
    """Number of records of the inputs that the output lacks."""
    extra: int = 0
    """Number of records of the output that the inputs lack."""
    first_missing: tuple[Mismatch, ...] = ()
    """The first few by file and row."""
    first_extra: tuple[Mismatch, ...] = ()

    def without_missing(self, count: int) -> Mismatches:
        """Return what differs if `count` records, whichever they are, are meant to be missing."""
        surplus = max(0, count - self.missing)
        return Mismatches(max(0, self.missing - count), self.extra + surplus, (), self.first_extra)


class _Entries(NamedTuple):
    """Hashes with counts: arrays of shape ``(n,)``."""

    first: NDArray[np.uint64]
    second: NDArray[np.uint64]
    location: NDArray[np.uint64]
    """Of the first record with the hash: its provenance, with the set in the highest bit."""
    counts: NDArray[np.int64]
    """Number of records with the hash; negative for the output."""

    def take(self, index: NDArray[np.intp]) -> _Entries:
        return _Entries(self.first[index], self.second[index], self.location[index], self.counts[index])

    def sort(self) -> tuple[_Entries, NDArray[np.intp]]:
        """Return the entries sorted by hash and location, and the index at which each hash begins."""
        ordered = self.take(np.lexsort((self.location, self.second, self.first)))
        new = np.ones(len(ordered.first), np.bool_)
        new[1:] = (np.diff(ordered.first) != 0) | (np.diff(ordered.second) != 0)
        return ordered, np.flatnonzero(new)


class WordStore:
    """Rows of words of 64 bits in piles by their keys, as many as fit in memory, the rest on disk; many threads may add."""

    def __init__(self, names: Sequence[str], expected: int, folder: SetFolder, memory_bytes: int) -> None:
        codec = RecordCodec(pa.schema([pa.field(name, pa.binary(8), nullable=False) for name in names]))
        pile_bytes, kept_bytes = memory_bytes // _PILES_AT_ONCE, int(KEPT_SHARE * memory_bytes)
        piles = min(_MOST_PILES, max(1, expected * 8 * (1 + len(names)) // pile_bytes))
        self._store = Store(StorePlan(piles, (float(expected),), kept_bytes), codec, folder)

    def add(self, origin: Origin, keys: NDArray[np.uint64], words: Sequence[NDArray[Any]]) -> None:
        columns = [wrap_values(array, pa.binary(8)) for array in words]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._store.codec.schema)
        self._store.add(0, origin, Records(keys, batch))

    def read_piles(self) -> Iterator[tuple[NDArray[np.uint64], list[NDArray[np.uint64]]]]:
        """Yield keys and words of each pile; equal keys are in one."""
        regions = FilledRegions(self._store)
        for column in np.flatnonzero(regions.counts[0]).tolist():
            records = regions.load([(0, column)])
            yield records.keys, [view_bytes(one).view(np.uint64) for one in records.batch.columns]

    def close(self) -> None:
        """Free memory and disk. Idempotent."""
        self._store.close()


class Search:
    """Collects the hashes of both record sets and finds those that differ; many threads may add.

    About `expected` hashes are in the buckets that are `wanted`, shape ``(BUCKETS,)``. The output holds each record of the
    inputs as often as the `quotas` of their files say, without any once.
    """

    def __init__(
        self,
        wanted: NDArray[np.bool_],
        expected: int,
        folder: SetFolder,
        memory_bytes: int,
        quotas: Sequence[Quota] = (),
    ) -> None:
        self._wanted = wanted
        self._quotas = [quota for quota in quotas for _ in quota.inputs]
        self._store = WordStore(_WORDS, expected, folder, memory_bytes)

    def add(self, set_index: int, hashes: NDArray[np.uint64], file: int, first_row: int) -> None:
        """Add the hashes, shape ``(n, 2)``, of consecutive records of `INPUTS` or `OUTPUT`."""
        rows = np.flatnonzero(self._wanted[_find_buckets(hashes)])
        if not rows.size:
            return
        location = pack_provenance(np.int64(file), rows + first_row) | np.uint64(set_index) << _SET_SHIFT
        least = most = -1 if set_index == OUTPUT else 1
        if self._quotas and set_index == INPUTS:
            least, most = self._quotas[file].least_copies, self._quotas[file].most_copies
        counts = np.full(len(rows), least + ((most - least) << _MORE_SHIFT))
        self._put(Origin(file, set_index), hashes[rows], location, counts)

    def add_located(self, hashes: NDArray[np.uint64], locations: NDArray[np.uint64]) -> None:
        """Add the hashes of records of `INPUTS`, shape ``(n, 2)``, which are anywhere, given their provenance."""
        rows = np.flatnonzero(self._wanted[_find_buckets(hashes)])
        if rows.size:
            self._put(Origin(0, INPUTS), hashes[rows], locations[rows], np.ones(len(rows), np.int64))

    def _put(
        self,
        origin: Origin,
        hashes: NDArray[np.uint64],
        location: NDArray[np.uint64],
        counts: NDArray[np.int64],
    ) -> None:
        entries, starts = _Entries(hashes[:, 0], hashes[:, 1], location, counts).sort()
        # Equal records of a batch are kept as one with its count: a million of them take no more than one.
        firsts, counts = entries.take(starts), np.add.reduceat(entries.counts, starts)
        self._store.add(origin, firsts.first, (firsts.second, firsts.location, counts))

    def run(self) -> Mismatches:
        totals = [0, 0]
        named: list[list[Mismatch]] = [[], []]
        for first, (second, location, count) in self._store.read_piles():
            entries, starts = _Entries(first, second, location, count.view(np.int64)).sort()
            net = np.add.reduceat(entries.counts, starts)
            more = (net + _HALF) >> _MORE_SHIFT
            net -= more << _MORE_SHIFT
            for set_index, surplus in ((INPUTS, net), (OUTPUT, -net - more)):
                groups = np.flatnonzero(surplus > 0)
                totals[set_index] += int(surplus[groups].sum())
                locations = _find_first(entries, starts, set_index)[groups]
                named[set_index] = _keep_first(named[set_index], locations, surplus[groups])
        return Mismatches(totals[INPUTS], totals[OUTPUT], tuple(named[INPUTS]), tuple(named[OUTPUT]))

    def close(self) -> None:
        """Free memory and disk. Idempotent."""
        self._store.close()


def _find_first(entries: _Entries, starts: NDArray[np.intp], set_index: int) -> NDArray[np.uint64]:
    """Return each hash's first location in a record set; undefined where the set does not hold the hash."""
    is_in_set = (entries.location >> _SET_SHIFT) == set_index
    masked = np.where(is_in_set, entries.location, np.uint64(2**64 - 1))
    first: NDArray[np.uint64] = np.minimum.reduceat(masked, starts)
    return first


def _keep_first(
    known: Sequence[Mismatch], locations: NDArray[np.uint64], copies: NDArray[np.int64]
) -> list[Mismatch]:
    first = np.argsort(locations)[:_MOST_NAMED]
    columns = (*unpack_provenance(locations[first] & _BELOW_SET), copies[first])
    mismatches = [*known, *map(Mismatch, *(column.tolist() for column in columns))]
    return sorted(mismatches)[:_MOST_NAMED]
