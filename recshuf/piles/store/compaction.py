"""Compaction: many small sets of a store become a few."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, closing
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from recshuf.errors import OutputError, UsedNameError
from recshuf.piles.encoding.slices import Origin
from recshuf.piles.layout import StorePlan
from recshuf.piles.sets.footer import SetDescription, SetSource
from recshuf.piles.store.new_sets import describe_new_set, open_new_sets
from recshuf.piles.store.set_names import SetNames
from recshuf.piles.store.store_folder import StoreFolder
from recshuf.piles.store.stored import StoredPiles
from recshuf.records.digests import Digest, digest_records
from recshuf.records.input_counts import InputCount
from recshuf.records.provenance import find_origins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from recshuf.piles.store.snapshots import SetEntry, Snapshot
    from recshuf.records.batch import Records

_BATCH_BYTES = 32 << 20
"""Records moved at once."""


def compact_store(path: Path, most_sets: int, advance: Callable[[int, int], None]) -> Snapshot:
    """Write the records of a store's newest snapshot to fewer sets, and return the new snapshot.

    Sets that follow each other in time are joined, and get the latest of their times. Keys stay, so the order of epoch 0
    stays. Later epochs change, since they depend on the sets.

    Parameters
    ----------
    most_sets
        A store with no more sets stays as it is.
    advance
        Called with the records and bytes of each part.

    Raises
    ------
    UsageError
        When there is no store.
    PileError
        When it is damaged.
    OutputError
        When the set cannot be written, or another process removes or compacts records meanwhile.
    """
    folder = StoreFolder(path)
    with closing(StoredPiles(path)) as piles:
        old = piles.info
        if len(old.sets) <= most_sets:
            return old
        with ExitStack() as locks:
            groups = _join_sets(old.sets, most_sets)
            names = _lock_names(folder, old, len(groups), locks)
            entries = [
                _write_set(piles, members, folder, name, advance)
                for name, members in zip(names, groups, strict=True)
            ]
            joined = [[old.sets[index].name for index in members] for members in groups]
            made = folder.commit(lambda newest: _replace(newest, joined, entries, path), old.store)
    folder.collect()  # not before the old sets are given back
    return made


def _lock_names(folder: StoreFolder, old: Snapshot, count: int, locks: ExitStack) -> list[str]:
    """Lock so many names of new sets, the first that no writer has.

    Raises
    ------
    OutputError
        When another process has taken them for its compaction.
    """
    names: list[str] = []
    for number in itertools.count():
        if len(names) == count:
            break
        name = f"compact-{old.number + 1:06d}-{number:03d}"
        try:
            locks.enter_context(SetNames(folder, name))
        except UsedNameError:
            newest = folder.find()
            if newest is None or newest.number != old.number:
                raise OutputError(
                    f"{folder.path}: another process has compacted it meanwhile; run again"
                ) from None
        else:
            names.append(name)
    return names


def _join_sets(sets: Sequence[SetEntry], most_sets: int) -> list[list[int]]:
    """Return the indices of the sets that are joined, at most so many groups of about as many records."""
    by_time = sorted(range(len(sets)), key=lambda k: (sets[k].age_key, sets[k].name))
    least = -(-sum(one.records for one in sets) // most_sets)
    groups: list[list[int]] = [[]]
    records = 0
    for index in by_time:
        if records >= least:
            groups.append([])
            records = 0
        groups[-1].append(index)
        records += sets[index].records
    return groups


def _replace(newest: Snapshot, joined: list[list[str]], entries: list[SetEntry], path: Path) -> Snapshot:
    if not set(chain.from_iterable(joined)) <= {one.name for one in newest.sets}:
        raise OutputError(f"{path}: another process has removed or compacted records meanwhile; run again")
    for names, entry in zip(joined, entries, strict=True):
        newest = newest.join(names, entry)
    return newest


def _write_set(
    piles: StoredPiles,
    members: list[int],
    folder: StoreFolder,
    name: str,
    advance: Callable[[int, int], None],
) -> SetEntry:
    """Write the records of some sets to one."""
    plan = StorePlan(
        piles.info.pile_count,
        (float(piles.counts[members].sum()),),
        resident_bytes=0,
        set_prefix=name,
    )
    with ExitStack() as cleanup:
        made = open_new_sets(folder, plan, piles.pile_schema, cleanup)
        digest, first_row = Digest(), 0
        for records in _read_piles(piles, members):
            made.add(0, Origin(0, first_row), records)
            digest += digest_records(records)
            first_row += len(records)
            advance(len(records), records.byte_count)
        sources = tuple(_list_sources(piles, members))
        # Sources keep their numbers, which are those of the first stream.
        made.complete(0, digest, SetDescription(piles.seed, sources))
        made.seal_next()
    byte_count = sum(one.count.byte_count for one in sources)
    times = [one.time for one in (piles.info.sets[k] for k in members) if one.time is not None]
    return describe_new_set(folder, name, 0, first_row, byte_count, max(times, default=None))


def _list_sources(piles: StoredPiles, members: list[int]) -> Iterator[SetSource]:
    for base, description in (piles.descriptions[index] for index in members):
        for one in description.sources:
            yield SetSource(base + one.index, one.name, InputCount(*one.count))


def _read_piles(piles: StoredPiles, members: list[int]) -> Iterator[Records]:
    """Yield the records of consecutive piles, those of a pile by source and row."""
    sizes = piles.byte_counts[members].sum(axis=0)
    held: list[tuple[int, int]] = []
    held_bytes = 0
    for pile in np.flatnonzero(piles.counts[members].sum(axis=0)).tolist():
        if held and held_bytes + int(sizes[pile]) > _BATCH_BYTES:
            yield _load(piles, held)
            held, held_bytes = [], 0
        held += [(set_index, pile) for set_index in members if piles.counts[set_index, pile]]
        held_bytes += int(sizes[pile])
    if held:
        yield _load(piles, held)


def _load(piles: StoredPiles, regions: list[tuple[int, int]]) -> Records:
    records = piles.load(regions)
    if records is None:
        raise RuntimeError(f"regions {regions} are empty")
    return records.take(np.argsort(find_origins(records.batch), kind="stable"))
