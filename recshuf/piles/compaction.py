"""Compaction: many small sets of a store become one."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import OutputError
from recshuf.piles.codec import choose_codec
from recshuf.piles.footer import SetDescription, SetSource
from recshuf.piles.layout import StorePlan
from recshuf.piles.run_piles import RunPiles
from recshuf.piles.scratch import Scratch
from recshuf.piles.set_names import SetNames
from recshuf.piles.slices import Origin
from recshuf.piles.snapshots import SET_SUFFIX, SetEntry, Snapshot, StoreFolder
from recshuf.piles.spilled import name_set
from recshuf.piles.stored import StoredPiles
from recshuf.records.digests import Digest, digest_records
from recshuf.records.input_counts import InputCount
from recshuf.records.provenance import find_origins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from recshuf.records.batch import Records

_BATCH_BYTES = 32 << 20
"""Records moved at once."""


def compact_store(path: Path, advance: Callable[[int, int], None]) -> Snapshot:
    """Write all records of a store's newest snapshot to one set, and return the new snapshot.

    Keys stay, so the order of epoch 0 stays. Later epochs change, since they depend on the sets.

    Parameters
    ----------
    advance
        Called with the records and bytes of each part.

    Raises
    ------
    UsageError
        When there is no store.
    PileError
        When it is damaged.
    OutputError
        When the set cannot be written, or another process removes records meanwhile.
    """
    folder = StoreFolder(path)
    with closing(StoredPiles(path)) as piles:
        old = piles.info
        if len(old.sets) < 2:
            return old
        name = f"compact-{old.number + 1:06d}"
        with SetNames(folder, name):
            entry = _write_set(piles, folder, name, advance)
            made = folder.commit(lambda newest: _replace(newest, old, entry, path))
    folder.collect()  # not before the old sets are given back
    return made


def _replace(newest: Snapshot, old: Snapshot, entry: SetEntry, path: Path) -> Snapshot:
    names = {one.name for one in old.sets}
    if not names <= {one.name for one in newest.sets} or old.schema is None:
        raise OutputError(f"{path}: another process has removed records meanwhile; run again")
    return newest.drop(names).add((entry,), old.schema)


def _write_set(
    piles: StoredPiles, folder: StoreFolder, name: str, advance: Callable[[int, int], None]
) -> SetEntry:
    """Write the records of all sets to one."""
    plan = StorePlan(
        piles.info.pile_count,
        (float(piles.record_count),),
        resident_bytes=0,
        keeps_sets=True,
        set_prefix=name,
        syncs_sets=True,
    )
    with closing(Scratch(folder.sets, folder.path, folder.sets)) as scratch:
        made = RunPiles(plan, choose_codec(piles.pile_schema), scratch)
        digest, first_row = Digest(), 0
        for records in _read_piles(piles):
            made.add(0, Origin(0, first_row), records)
            digest += digest_records(records)
            first_row += len(records)
            advance(len(records), records.byte_count)
        sources = tuple(_list_sources(piles))
        # Sources keep their numbers, which are those of the first stream.
        made.complete(0, digest, SetDescription(piles.seed, sources))
        made.seal_next()
    byte_count = sum(one.count.byte_count for one in sources)
    times = [one.time for one in piles.info.sets if one.time is not None]
    set_name = name_set(name, 0).removesuffix(SET_SUFFIX)
    return folder.describe_set(set_name, first_row, byte_count, max(times, default=None))


def _list_sources(piles: StoredPiles) -> Iterator[SetSource]:
    for base, description in piles.descriptions:
        for one in description.sources:
            yield SetSource(base + one.index, one.name, InputCount(*one.count))


def _read_piles(piles: StoredPiles) -> Iterator[Records]:
    """Yield the records of consecutive piles, those of a pile by source and row."""
    sizes = piles.byte_counts.sum(axis=0)
    held: list[tuple[int, int]] = []
    held_bytes = 0
    for pile in np.flatnonzero(piles.counts.sum(axis=0)).tolist():
        if held and held_bytes + int(sizes[pile]) > _BATCH_BYTES:
            yield _load(piles, held)
            held, held_bytes = [], 0
        held += [(int(set_index), pile) for set_index in np.flatnonzero(piles.counts[:, pile])]
        held_bytes += int(sizes[pile])
    if held:
        yield _load(piles, held)


def _load(piles: StoredPiles, regions: list[tuple[int, int]]) -> Records:
    records = piles.load(regions)
    if records is None:
        raise RuntimeError(f"regions {regions} are empty")
    return records.take(np.argsort(find_origins(records.batch), kind="stable"))
