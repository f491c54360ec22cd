"""Digests that do not depend on order, by which each pass checks that it lost and changed no record.

A record's fingerprint is its key, xored with its length times an odd constant; a digest is the number of records,
the sum of their lengths, and the sum of their fingerprints modulo 2^64. Keys are random, so a record that is lost,
doubled, exchanged or cut changes the sum except with a chance of 2^-64. It is a sum because two copies of one
record would cancel in an xor. A change of bytes without a change of length is not detected here: spilled data has
checksums for that, and `recshuf verify` compares contents.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from recshuf.records.arrays import has_offsets, unpack_bits, view_offsets

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.records.batch import Records


_ODD = np.uint64(0x9E3779B97F4A7C15)
_MODULUS = 1 << 64
_CHUNK_RECORDS = 1 << 15
"""Records digested at once; their arrays fit the processor's cache."""


class Digest(NamedTuple):
    """Digest of some records."""

    records: int = 0
    byte_count: int = 0
    """Sum of the lengths of `record_lengths`."""
    fingerprint: int = 0

    def __add__(self, other: Digest) -> Digest:  # type: ignore[override] # it is no tuple to its users
        return Digest(
            self.records + other.records,
            self.byte_count + other.byte_count,
            (self.fingerprint + other.fingerprint) % _MODULUS,
        )

    def compare(self, expected: Digest) -> str:
        """Describe the difference from the digest of the records that were given.

        >>> Digest(2, 10, 7).compare(Digest(3, 10, 9))
        '2 records, 3 given'
        """
        for mine, theirs, noun in (
            (self.records, expected.records, "records"),
            (self.byte_count, expected.byte_count, "bytes"),
        ):
            if mine != theirs:
                return f"{mine:,} {noun}, {theirs:,} given"
        return f"{self.records:,} records as given, but not the same ones"


def sum_digests(digests: Iterable[Digest]) -> Digest:
    return sum(digests, Digest())


def record_lengths(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Return the length of each record, shape ``(n,)``: a function of the record, however the batch was cut.

    Counts the bytes of strings, the elements of lists, and nulls, all at the top level; fields of fixed size are left
    out.
    """
    lengths: NDArray[np.int64] | None = None
    for column in batch.columns:
        own = _column_lengths(column)
        if own is not None:
            lengths = own if lengths is None else np.add(lengths, own, out=lengths)
    return np.zeros(batch.num_rows, np.int64) if lengths is None else lengths


def _column_lengths(column: pa.Array) -> NDArray[np.int64] | None:
    """Return a new array of what a column adds to the length of each record; None if it adds nothing."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    own = None
    if has_offsets(column.type):
        own = np.diff(view_offsets(column)).astype(np.int64, copy=False)
    if column.null_count and (validity := column.buffers()[0]) is not None:
        nulls = unpack_bits(validity, column) == 0
        return nulls.astype(np.int64) if own is None else np.where(nulls, 1, own)
    return own


def find_fingerprints(keys: NDArray[np.uint64], lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the fingerprint of each record, shape ``(n,)``."""
    fingerprints = lengths.view(np.uint64) * _ODD
    fingerprints ^= keys
    return fingerprints


class Digests:
    """Digests of several parts, such as the piles of a set.

    The `table` has their records, bytes and fingerprints as rows, shape ``(3, n)``; these as signed numbers of the same bits.
    """

    def __init__(self, part_count: int) -> None:
        self.table: NDArray[np.int64] = np.zeros((3, part_count), np.int64)

    @property
    def counts(self) -> NDArray[np.int64]:
        counts: NDArray[np.int64] = self.table[0]
        return counts

    @classmethod
    def find(cls, records: Records, edges: NDArray[np.int64]) -> Digests:
        digests = cls(len(edges) - 1)
        counts, byte_counts, fingerprints = digests.table
        counts[:] = np.diff(edges)
        starts, ends = edges[:-1], edges[1:]
        for first in range(int(edges[0]), int(edges[-1]), _CHUNK_RECORDS):
            chunk = records.slice(first, min(first + _CHUNK_RECORDS, int(edges[-1])))
            lengths = record_lengths(chunk.batch)
            present = np.flatnonzero((starts < first + len(chunk)) & (ends > first) & (ends > starts))
            begins = np.maximum(starts[present] - first, 0)
            byte_counts[present] += np.add.reduceat(lengths, begins)
            own = np.add.reduceat(find_fingerprints(chunk.keys, lengths), begins)
            fingerprints[present] += own.view(np.int64)
        return digests

    def add(self, other: Digests) -> None:
        self.table += other.table

    def subtract(self, other: Digests) -> None:
        self.table -= other.table

    def add_to(self, parts: Sequence[int], other: Digests) -> None:
        """Add digest k of `other` to part ``parts[k]``; a part may occur more than once."""
        np.add.at(self.table.T, parts, other.table.T)

    def put(self, part: int, digest: Digest) -> None:
        self.table[:, part] = np.array(digest, np.uint64).view(np.int64)

    def sum(self, parts: slice | Sequence[int] = slice(None)) -> Digest:
        return sum_table(self.table[:, parts])

    def take(self, parts: slice | Sequence[int]) -> Iterator[Digest]:
        counts, byte_counts, fingerprints = self.table[:, parts]
        return map(Digest, counts.tolist(), byte_counts.tolist(), fingerprints.view(np.uint64).tolist())

    def __iter__(self) -> Iterator[Digest]:
        return self.take(slice(None))


def sum_table(table: NDArray[np.int64]) -> Digest:
    """Return the sum of digests, given as in `Digests`."""
    records, byte_count, fingerprint = table.sum(axis=1).tolist()
    return Digest(records, byte_count, fingerprint % _MODULUS)


def digest_records(records: Records) -> Digest:
    return Digests.find(records, np.array([0, len(records)])).sum()


class InputCount(NamedTuple):
    """Bytes and digests of the records of one input, as read."""

    byte_count: int = 0
    """Bytes of the records, for lines and fixed rows without keys and offsets."""
    digest: Digest = Digest()
    dropped: Digest = Digest()
    """That of the records that are not, because they repeat others."""

    def __add__(self, other: InputCount) -> InputCount:  # type: ignore[override] # it is no tuple to its users
        return InputCount(
            self.byte_count + other.byte_count,
            self.digest + other.digest,
            self.dropped + other.dropped,
        )

    def pack(self) -> tuple[int, ...]:
        """Return it as numbers, four of them if nothing was dropped."""
        dropped = self.dropped if self.dropped.records else ()
        return (self.byte_count, *self.digest, *dropped)

    @classmethod
    def unpack(cls, numbers: Sequence[int]) -> InputCount:
        """Return what `pack` was called of.

        >>> InputCount.unpack(InputCount(7, Digest(1, 2, 3), Digest(4, 5, 6)).pack()).dropped
        Digest(records=4, byte_count=5, fingerprint=6)
        """
        return cls(numbers[0], Digest(*numbers[1:4]), Digest(*numbers[4:]))


class InputCounts:
    """Counts of all inputs, as columns, because there may be thousands."""

    def __init__(self, input_count: int) -> None:
        self._byte_counts: NDArray[np.int64] = np.zeros(input_count, np.int64)
        self._digests = Digests(input_count)
        self._dropped = Digests(input_count)

    def __getitem__(self, index: int) -> InputCount:
        return next(self.take([index]))

    def take(self, inputs: slice | Sequence[int]) -> Iterator[InputCount]:
        digests, dropped = self._digests.take(inputs), self._dropped.take(inputs)
        return map(InputCount, self._byte_counts[inputs].tolist(), digests, dropped)

    def add(self, inputs: Sequence[int], byte_counts: NDArray[np.int64], digests: Digests) -> None:
        """Add to the counts of some inputs; an input may occur more than once."""
        np.add.at(self._byte_counts, inputs, byte_counts)
        self._digests.add_to(inputs, digests)

    def add_dropped(self, inputs: Sequence[int], digests: Digests) -> None:
        self._dropped.add_to(inputs, digests)

    def put(self, index: int, count: InputCount) -> None:
        self._byte_counts[index] = count.byte_count
        self._digests.put(index, count.digest)
        self._dropped.put(index, count.dropped)

    def digest(self, inputs: Sequence[int]) -> Digest:
        return self._digests.sum(inputs)

    @property
    def records(self) -> NDArray[np.int64]:
        """Number of records of each input in piles, shape ``(n,)``."""
        return self._digests.counts

    @property
    def dropped(self) -> NDArray[np.int64]:
        """Number of records of each input that are not added to piles, shape ``(n,)``."""
        return self._dropped.counts

    @property
    def record_count(self) -> int:
        return int(self.records.sum())

    @property
    def read_count(self) -> int:
        """Number of records of all inputs, without those that are set aside."""
        return self.record_count + int(self.dropped.sum())

    @property
    def byte_count(self) -> int:
        return int(self._byte_counts.sum())
