"""Which record of the inputs each record of an output is, by equal hashes or by the columns of provenance.

Of many records a bottom-k sample is matched: those with the smallest of random priorities, drawn while they are read.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.audit.verify.record_sets import KEPT_SHARE
from recshuf.errors import InputError, UsageError
from recshuf.records.hashing import hash_rows
from recshuf.records.provenance import (
    FILE_COLUMN,
    MAX_ROWS,
    ROW_COLUMN,
    pack_provenance,
    unpack_provenance,
)
from recshuf.records.word_hashing import HashKey

if TYPE_CHECKING:
    from numpy.typing import NDArray


MOST_SAMPLED = 1_000_000
"""The k of a sample whose records are small."""
_MOST_BYTES = 1 << 30
_RECORD_BYTES = 128
"""Memory of matching and testing a record, without its value."""
_SHARE_OF_TWO = 0.2
"""Share of a memory limit for the values of each of two samples."""
_HIGHEST = 2**64 - 1
_REMEDY = "it takes an output written with --provenance; else give --against INPUT... or --column NAME"
_KEY = HashKey(0)
"""Of the priorities of records by their provenance."""


class SampledRecords(NamedTuple):
    """Some records: shape ``(n,)`` each."""

    values: pa.Array
    priorities: NDArray[np.uint64]
    provenance: NDArray[np.uint64]
    """File index and row number, as `pack_provenance` returns them."""

    @property
    def files(self) -> NDArray[np.int64]:
        return unpack_provenance(self.provenance)[0]

    def at_level(self, level: int) -> SampledRecords:
        """Return the records whose priority is at most 2^-`level` of the highest."""
        keep = np.flatnonzero(self.priorities <= np.uint64(_HIGHEST >> level))
        if len(keep) == len(self.priorities):
            return self
        return SampledRecords(self.values.take(pa.array(keep)), self.priorities[keep], self.provenance[keep])


class BottomKSample:
    """Keeps the values of the records with the smallest priorities; many threads may add.

    A record is kept if its priority is below a threshold, which halves whenever too many are kept. So what is kept
    depends on the priorities alone, and not on the order of calls.
    """

    def __init__(self, most_records: int = MOST_SAMPLED, most_bytes: int = _MOST_BYTES) -> None:
        self.records = 0
        """Number of records added, kept or not."""
        self.level = 0
        """How often the threshold was halved: each record was kept with probability ``2 ** -level``."""
        self.kept = 0
        self._kept_bytes = 0
        self._most_records = most_records
        self._most_bytes = most_bytes
        self._parts: list[SampledRecords] = []
        self._lock = threading.Lock()

    @classmethod
    def within(cls, memory_bytes: int, sample_count: int = 1) -> BottomKSample:
        """Return one of `sample_count` samples, 1 or 2, that fit a memory limit beside the reading of records."""
        share = KEPT_SHARE if sample_count == 1 else _SHARE_OF_TWO
        return cls(
            min(MOST_SAMPLED, memory_bytes // _RECORD_BYTES), min(_MOST_BYTES, int(share * memory_bytes))
        )

    def add(self, values: pa.Array, priorities: NDArray[np.uint64], file: int, first_row: int) -> None:
        provenance = pack_provenance(np.int64(file), np.arange(first_row, first_row + len(values)))
        part = SampledRecords(values, priorities, provenance).at_level(self.level)
        with self._lock:
            part = part.at_level(self.level)  # another thread may have raised it
            self.records += len(priorities)
            self._parts.append(part)
            self._count(part)
            while self.kept > self._most_records or self._kept_bytes > self._most_bytes:
                self._raise_level(self.level + 1)

    def take(self, level: int = 0) -> SampledRecords:
        """Return the records kept at the sample's level, or at a higher one, ordered by file and row."""
        self._raise_level(max(level, self.level))
        if not self.kept:
            raise UsageError("there are no records to check")
        parts = [part for part in self._parts if len(part.priorities)]
        self._parts = []
        parts.sort(key=lambda part: int(part.provenance[0]))  # each holds consecutive records
        values = pa.chunked_array([part.values for part in parts]).combine_chunks()
        if isinstance(values, pa.ChunkedArray):
            raise UsageError("the values are too large to be compared; choose a smaller column")
        priorities = np.concatenate([part.priorities for part in parts])
        provenance = np.concatenate([part.provenance for part in parts])
        self._parts = [SampledRecords(values, priorities, provenance)]
        return self._parts[0]

    def _raise_level(self, level: int) -> None:
        self.level = level
        self.kept = self._kept_bytes = 0
        for index, part in enumerate(self._parts):
            self._parts[index] = part.at_level(level)
            self._count(self._parts[index])

    def _count(self, part: SampledRecords) -> None:
        self.kept += len(part.priorities)
        self._kept_bytes += part.values.nbytes


@dataclass(frozen=True, slots=True)
class Matching:
    """The order of an output's records in terms of its inputs."""

    order: NDArray[np.int64]
    """Permutation of ``0 .. n - 1``: the rank, in the order of the inputs, of each sampled record that has a match."""
    file_sizes: list[int]
    """How many of these records each input file holds."""
    records: int
    """Number of records in the output, sampled or not."""
    share: float
    """Share of the records that was sampled, 0 to 1."""
    missing: int = 0
    """Sampled records of the inputs without a match in the output."""
    extra: int = 0
    """Sampled records of the output without a match in the inputs."""
    duplicates: int = 0
    """Sampled records of the output that have a match and equal another one; they were matched at random."""


def match_records(
    inputs: BottomKSample, output: BottomKSample, file_count: int, rng: np.random.Generator
) -> Matching:
    """Match hashes of the records of an output with those of its inputs, equal ones at random.

    Matched in their old order, equal records would look like neighbours that stayed together. Priorities must be
    functions of the records, so that of equal records all are sampled or none.
    """
    level = max(inputs.level, output.level)
    before, after = inputs.take(level), output.take(level)
    wanted, present = before.values.to_numpy(), after.values.to_numpy()
    present_order, wanted_order = sort_randomly(present, rng), sort_randomly(wanted, rng)
    present, wanted = present[present_order], wanted[wanted_order]
    # The k-th of equal records in the output matches the k-th of them in the inputs.
    rank_among_equals = np.arange(len(present)) - np.searchsorted(present, present, "left")
    match = np.searchsorted(wanted, present, "left") + rank_among_equals
    is_matched = match < np.searchsorted(wanted, present, "right")
    input_of = np.full(len(present), -1, np.int64)
    input_of[present_order[is_matched]] = wanted_order[match[is_matched]]
    matched = input_of[input_of >= 0]
    _, numbers, counts = np.unique(present, return_inverse=True, return_counts=True)
    return Matching(
        order=invert(np.argsort(matched)),
        file_sizes=np.bincount(before.files[matched], minlength=file_count).tolist(),
        records=output.records,
        share=0.5**level,
        missing=len(wanted) - len(matched),
        extra=len(present) - len(matched),
        duplicates=int(np.count_nonzero(is_matched & (counts[numbers] > 1))),
    )


def sort_randomly(values: NDArray[np.int64 | np.uint64], rng: np.random.Generator) -> NDArray[np.int64]:
    return np.lexsort((rng.random(len(values)), values))


def invert(permutation: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the inverse of a permutation.

    >>> invert(np.array([2, 0, 1]))
    array([1, 2, 0])
    """
    inverse = np.empty(len(permutation), np.int64)
    inverse[permutation] = np.arange(len(permutation))
    return inverse


def read_provenance(table: pa.RecordBatch) -> tuple[pa.StructArray, NDArray[np.uint64]]:
    """Return file and row of each record, and a priority that is a hash of both, the same in every output."""
    origins = pa.StructArray.from_arrays(_find_columns(table), ["file", "row"])
    hashes = hash_rows(pa.RecordBatch.from_struct_array(origins), _KEY, is_converted=True)
    return origins, np.ascontiguousarray(hashes[:, 0])


def match_provenance(sample: BottomKSample, output: str) -> Matching:
    """Return the order of records by a sample of what `read_provenance` returned, input files ordered by name.

    Errors name the `output`.
    """
    origins = sample.take().values
    names, rows = origins.field("file").dictionary_encode(), origins.field("row").to_numpy()
    by_name = pc.array_sort_indices(names.dictionary).to_numpy()
    files = invert(by_name)[names.indices.to_numpy()]
    ordered = np.lexsort((rows, files))
    repeated = np.flatnonzero((np.diff(files[ordered]) == 0) & (np.diff(rows[ordered]) == 0))
    if len(repeated):
        origin = origins[int(ordered[repeated[0]])].as_py()
        raise InputError(
            output,
            f"row {origin['row']} of {origin['file']} is there more than once",
            remedy="name each shuffle by itself, or give --against INPUT..., which compares contents",
        )
    return Matching(invert(ordered), np.bincount(files).tolist(), sample.records, 0.5**sample.level)


def _find_columns(table: pa.RecordBatch) -> list[pa.Array]:
    """Return file names as text, and row numbers."""
    known = table.schema.names
    for name in (FILE_COLUMN, ROW_COLUMN):
        if name not in known:
            raise UsageError(f"there is no column {name!r}; {_REMEDY}")
    names, rows = (table.column(known.index(name)) for name in (FILE_COLUMN, ROW_COLUMN))
    if pt.is_dictionary(names.type):
        names = names.dictionary_decode()
    is_text = pt.is_string(names.type) or pt.is_large_string(names.type)
    if not is_text or not pt.is_integer(rows.type) or names.null_count or rows.null_count:
        raise UsageError(
            f"columns {FILE_COLUMN!r} and {ROW_COLUMN!r} must hold file names and row numbers; {_REMEDY}"
        )
    bounds = pc.min_max(rows)
    if len(rows) and not 0 <= bounds["min"].as_py() <= bounds["max"].as_py() < MAX_ROWS:
        raise UsageError(f"column {ROW_COLUMN!r} holds a value that is not a row number; {_REMEDY}")
    return [names, rows.cast(pa.int64())]
