"""Pass 2 alone: the records of a pile store in place of inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from recshuf.formats.stored import StoredSource
from recshuf.interfaces import Decoder, FieldAdder, Fragment, InputFile, InputSummary, Source
from recshuf.job.planner import take_census
from recshuf.piles.layout import PileLayout
from recshuf.records.digests import InputCount, InputCounts
from recshuf.records.provenance import PROVENANCE_BYTES
from recshuf.run.inputs import Inputs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from recshuf.piles.kept.stored import StoredPiles


def open_stored(piles: StoredPiles) -> tuple[Inputs, PileLayout]:
    """Return the sources of a store as inputs, and how their records are divided."""
    origin = piles.info.origin or {}
    names = piles.sources
    sizes = [*origin.get("file_bytes", []), *[None] * len(names)]
    counts, sets = _list_sources(piles, len(names))
    inputs = [
        InputSummary(name, size, one.digest.records, True, one.byte_count)
        for name, size, one in zip(names, sizes, counts, strict=False)
    ]
    source = StoredSource(piles.schema, piles.info.origin, inputs)
    resolved = Inputs(
        source.format_name,
        [_identify(piles)],
        source,
        take_census(source.inputs, PROVENANCE_BYTES),
        drop_page_cache=False,
        stored=piles,
    )
    return resolved, PileLayout(piles.info.pile_count, 1, tuple(sets))


def open_records(piles: StoredPiles) -> Inputs:
    """Return the records of a store as one input, which gets keys like any other. Their order is that of sets and piles."""
    inputs = [InputSummary(name, None, None, False, None) for name in piles.sources]
    stored = StoredSource(piles.schema, piles.info.origin, inputs)
    source = PileSource(stored, piles)
    sizes = take_census(source.inputs)
    return Inputs(stored.format_name, [_identify(piles)], source, sizes, drop_page_cache=False)


def _identify(piles: StoredPiles) -> InputFile:
    return InputFile(f"{piles.path}, snapshot {piles.snapshot} of store {piles.store_id}", None)


def _list_sources(piles: StoredPiles, count: int) -> tuple[list[InputCount], list[int]]:
    """Return the counts of each source, and its set."""
    counts = InputCounts(count)
    sets = [0] * count
    for set_index, (base, description) in enumerate(piles.descriptions):
        for index, one in description.counts.items():
            # A large input is in several sets.
            counts.put(base + index, counts[base + index] + one)
            sets[base + index] = set_index
    return [*counts.take(slice(None))], sets


class PileSource(Source):
    """The records of a store, whose sources are `stored`, as a single input, read from its piles."""

    def __init__(self, stored: Source, piles: StoredPiles) -> None:
        self._stored = stored
        self._piles = piles
        self.schema, self.layout = stored.schema, stored.layout
        self.options, self.repeated, self.metadata = stored.options, stored.repeated, stored.metadata
        count, size = piles.record_count, int(piles.byte_counts.sum())
        self.inputs = (InputSummary(str(piles.path), None, count, True, size),)
        self.is_from_program = piles.info.origin is None

    def fragments(self, _input_index: int, block_bytes: int, _max_record_bytes: int) -> Iterator[Fragment]:
        """Yield the regions of the store."""
        for set_index, pile in np.argwhere(self._piles.counts).tolist():
            yield _Region(self._piles, (set_index, pile), block_bytes)

    def reading_bytes(self, _: int) -> int:
        """Return the memory of the largest region and of what it is read from."""
        return 2 * int(self._piles.byte_counts.max(initial=0))

    def decoder(self) -> Decoder:
        return self._stored.decoder()

    def field_adder(self, names: Sequence[str]) -> FieldAdder | None:
        return self._stored.field_adder(names)


class _Region(Fragment):
    """The records of a region, set and pile, without provenance."""

    def __init__(self, piles: StoredPiles, region: tuple[int, int], block_bytes: int) -> None:
        self.record_count = int(piles.counts[region])
        self._piles = piles
        self._region = region
        self._block_bytes = block_bytes

    def batches(self) -> Iterator[pa.RecordBatch]:
        records = self._piles.load([self._region])
        batch = records.batch.select(range(records.batch.num_columns - 1))
        rows = max(1, self._block_bytes * batch.num_rows // max(1, int(batch.nbytes)))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)
