"""Which records of the inputs a run with --dedup keeps: of each value the first, found out of core."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.audit.verify.record_sets import divide_memory
from recshuf.errors import UsageError
from recshuf.job.features import Dedup
from recshuf.piles.codec import choose_codec
from recshuf.piles.layout import StorePlan
from recshuf.piles.regions import FilledRegions
from recshuf.piles.slices import Origin
from recshuf.piles.store import Store
from recshuf.records.arrays import view_bytes, wrap_values
from recshuf.records.batch import Records
from recshuf.records.duplicates import Duplicates
from recshuf.records.key_makers import find_starts
from recshuf.records.keys import RowRange
from recshuf.records.provenance import pack_provenance

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from recshuf.audit.verify.record_sets import RecordSet
    from recshuf.job.job import Job
    from recshuf.output.manifest import Manifest
    from recshuf.piles.set_folder import SetFolder

    Words = NDArray[np.uint64]


_WORDS = ("second", "location", "hash", "other")
_ENTRY_BYTES = 8 * (1 + len(_WORDS))
_MOST_PILES = 4096


def find_dedup(job: Job, manifest: Manifest | None) -> Dedup | None:
    """Return by what a run told records apart, as the options of a job say, else its manifest; None if it kept all."""
    if isinstance(job.feature, Dedup) or job.feature is not None:
        return job.feature if isinstance(job.feature, Dedup) else None
    described = {} if manifest is None else manifest.features.get("dedup", {})
    if not described:
        return None
    fields = described["fields"]
    return Dedup(() if fields == "record" else tuple(map(str, fields)))


class FirstRecords:
    """Collects what tells the records of the inputs apart, and yields the first of each; many threads may add.

    Parameters
    ----------
    expected
        About how many records there are.
    """

    def __init__(
        self, inputs: RecordSet, dedup: Dedup, expected: int, folder: SetFolder, memory_bytes: int
    ) -> None:
        reader = inputs.source.value_reader(dedup.fields) if dedup.fields else None
        if dedup.fields and reader is None:
            raise UsageError(
                f"{dedup.flag} {','.join(dedup.fields)}: {inputs.format} has no fields; leave it out"
            )
        columns, seed = len(inputs.source.schema), secrets.randbits(64)
        self._duplicates = Duplicates(seed, reader, are_lines=inputs.traits.is_lines, column_count=columns)
        codec = choose_codec(pa.schema([pa.field(name, pa.binary(8), nullable=False) for name in _WORDS]))
        budget = divide_memory(memory_bytes)
        piles = min(_MOST_PILES, max(1, expected * _ENTRY_BYTES // budget.pile_bytes))
        self._store = Store(StorePlan(piles, (float(expected),), budget.search_bytes), codec, folder)

    def add(self, batch: pa.RecordBatch, hashes: Words, file: int, first_row: int) -> None:
        """Add consecutive native records with their hashes, shape ``(n, 2)``."""
        if not batch.num_rows:
            return
        keyed = self._duplicates.draw(batch, [RowRange(file, first_row, batch.num_rows)])
        rows = np.arange(batch.num_rows)
        if keyed.repeats is not None:
            rows = np.delete(rows, keyed.repeats)
        first, second = (word[rows] for word in keyed.words)
        location = pack_provenance(np.int64(file), rows + first_row)
        columns = [
            wrap_values(array, pa.binary(8))
            for array in (second, location, *np.ascontiguousarray(hashes[rows].T))
        ]
        entries = pa.RecordBatch.from_arrays(columns, schema=self._store.codec.schema)
        self._store.add(0, Origin(file, first_row), Records(first, entries))

    def find(self) -> Iterator[tuple[Words, Words]]:
        """Yield the hashes, shape ``(n, 2)``, and the provenance of the first record of each value, pile by pile."""
        regions = FilledRegions(self._store)
        for column in np.flatnonzero(regions.counts[0]).tolist():
            records = regions.load([(0, column)])
            if records is None:
                continue
            second, location, *hashes = (view_bytes(one).view(np.uint64) for one in records.batch.columns)
            order = np.lexsort((location, second, records.keys))
            chosen = order[find_starts([records.keys[order], second[order]])]
            yield np.stack(hashes, axis=1)[chosen], location[chosen]

    def close(self) -> None:
        """Free memory and disk. Idempotent."""
        self._store.close()
