"""Pass 2 alone: the records of a pile store in place of inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.formats.stored import StoredSource
from recshuf.interfaces import InputFile, InputSummary
from recshuf.job.planner import take_census
from recshuf.piles.layout import PileLayout
from recshuf.piles.store.snapshots import SET_SUFFIX
from recshuf.records.input_counts import InputCount, InputCounts
from recshuf.records.provenance import PROVENANCE_BYTES
from recshuf.run.resolve import ResolvedInputs

if TYPE_CHECKING:
    from recshuf.piles.run_piles import RunPiles
    from recshuf.piles.store.stored import StoredPiles


def open_stored(piles: StoredPiles) -> tuple[ResolvedInputs, PileLayout]:
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
    identity = InputFile(f"{piles.path}, snapshot {piles.snapshot} of store {piles.store_id}", None)
    resolved = ResolvedInputs(
        source.format_name,
        [identity],
        source,
        take_census(source.inputs, PROVENANCE_BYTES),
        drop_page_cache=False,
        stored=piles,
    )
    return resolved, PileLayout(piles.info.pile_count, 1, tuple(sets))


def _list_sources(piles: StoredPiles, count: int) -> tuple[list[InputCount], list[int]]:
    """Return the counts of each source, and its set."""
    counts = InputCounts(count)
    sets = [0] * count
    for set_index, (base, description) in enumerate(piles.descriptions):
        for index, one in description.counts.items():
            counts.put(base + index, one)
            sets[base + index] = set_index
    return [counts[index] for index in range(count)], sets


def adopt_stored(store: RunPiles, piles: StoredPiles, count: int) -> InputCounts:
    """Adopt all sets of a store, and return the counts of its sources."""
    counts = InputCounts(count)
    for set_index, (base, description) in enumerate(piles.descriptions):
        store.adopt(set_index, piles.names[set_index] + SET_SUFFIX, base=base, reads_all=False)
        for index, one in description.counts.items():
            counts.put(base + index, one)
    return counts
