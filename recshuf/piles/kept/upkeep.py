"""Upkeep of a store: what it holds, whether it is whole, its deletion, and its compaction to fewer sets."""

from __future__ import annotations

import itertools
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from recshuf.errors import OutputError, PileError, UsedNameError
from recshuf.piles.footer import SetDescription, SetSource
from recshuf.piles.kept.stored import StoredPiles, open_new_sets, open_place
from recshuf.piles.layout import StorePlan, join_nulls
from recshuf.piles.set_folder import remake_store
from recshuf.piles.slices import Origin, RecordCodec
from recshuf.records.arrays import count_bytes
from recshuf.records.digests import Digest, InputCount, digest_records
from recshuf.records.provenance import find_origins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from recshuf.piles.kept.place import StorePlace
    from recshuf.piles.kept.snapshots import Snapshot
    from recshuf.piles.layout import SealedSet
    from recshuf.records.batch import Records


_BATCH_BYTES = 32 << 20
"""Records moved at once."""


def compact_store(store: Any, most_sets: int, advance: Callable[[int, int], None]) -> Snapshot:
    """Write the records of a store's newest snapshot to fewer sets, and return the new snapshot.

    Sets that follow each other in time are joined, and get the latest of their times. Keys stay, so the order of epoch 0
    stays. Later epochs change, since they depend on the sets.

    Parameters
    ----------
    most_sets
        A store with no more sets stays as it is.
    advance
        Called with the records and bytes of each part.
    """
    place = open_place(store)
    with closing(StoredPiles(place)) as piles:
        old = piles.info
        if len(old.sets) <= most_sets:
            return old
        with ExitStack() as locks:
            groups = _join_sets(old.sets, most_sets)
            names = _lock_names(place, old, len(groups), locks)
            entries = [
                _write_set(piles, members, place, name, advance)
                for name, members in zip(names, groups, strict=True)
            ]
            joined = [[old.sets[index].name for index in members] for members in groups]
            made = place.commit(lambda newest: _replace(newest, joined, entries, place.name), old.store)
    place.collect()  # not before the old sets are given back
    return made


def _lock_names(place: StorePlace, old: Snapshot, count: int, locks: ExitStack) -> list[str]:
    """Lock so many names of new sets, the first that no writer has."""
    names: list[str] = []
    for number in itertools.count():
        if len(names) == count:
            break
        name = f"compact-{old.number + 1:06d}-{number:03d}"
        try:
            locks.enter_context(place.hold_name(name))
        except UsedNameError:
            newest = place.find()
            if newest is None or newest.number != old.number:
                raise OutputError(
                    f"{place.name}: another process has compacted it meanwhile; run again"
                ) from None
        else:
            names.append(name)
    return names


def _join_sets(sets: Sequence[SealedSet], most_sets: int) -> list[list[int]]:
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


def _replace(newest: Snapshot, joined: list[list[str]], entries: list[SealedSet], path: str) -> Snapshot:
    if not set(chain.from_iterable(joined)) <= {one.name for one in newest.sets}:
        raise OutputError(f"{path}: another process has removed or compacted records meanwhile; run again")
    for names, entry in zip(joined, entries, strict=True):
        newest = newest.join(names, entry)
    return newest


def _write_set(
    piles: StoredPiles,
    members: list[int],
    place: StorePlace,
    name: str,
    advance: Callable[[int, int], None],
) -> SealedSet:
    plan = StorePlan(
        piles.info.pile_count,
        (float(piles.counts[members].sum()),),
        resident_bytes=0,
        set_prefix=name,
    )
    with ExitStack() as cleanup:
        made = open_new_sets(place, plan, piles.pile_schema, cleanup)
        digest, first_row = Digest(), 0
        for records in _read_piles(piles, members):
            made.add(0, Origin(0, first_row), records)
            digest += digest_records(records)
            first_row += len(records)
            advance(len(records), records.byte_count)
        sources = tuple(_list_sources(piles, members))
        # Sources keep their numbers, which are those of the first stream.
        made.complete(0, digest, SetDescription(piles.seed, sources))
        entry = made.seal_next()
        assert entry is not None  # noqa: S101 - it has records
    sets = [piles.info.sets[index] for index in members]
    times = [one.time for one in sets if one.time is not None]
    return replace(entry, time=max(times, default=None), nulls=join_nulls(sets))


def _list_sources(piles: StoredPiles, members: list[int]) -> Iterator[SetSource]:
    counts: dict[tuple[int, str], InputCount] = {}
    for base, description in (piles.descriptions[index] for index in members):
        for one in description.sources:
            key = base + one.index, one.name
            counts[key] = counts.get(key, InputCount()) + one.count
    for (index, name), count in counts.items():
        yield SetSource(index, name, count)


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
    return records.take(np.argsort(find_origins(records.batch), kind="stable"))


def describe_store(store: Any) -> dict[str, Any]:
    """Return what the newest snapshot of a store holds, as JSON values."""
    with closing(StoredPiles(store)) as piles:
        info = piles.info
        return {
            "path": piles.path,
            "store": info.store,
            "snapshot": info.number,
            "seed": str(info.seed),
            "format": "table" if info.origin is None else info.origin["format"],
            "records": info.record_count,
            "bytes": info.byte_count,
            "file_bytes": sum(one.file_bytes for one in info.sets),
            "disk_bytes": piles.place.count_disk_bytes(piles.names),
            "region_bytes": piles.region_bytes,
            "piles": info.pile_count,
            "columns": {} if info.schema is None else {one.name: str(one.type) for one in piles.schema},
            "sources": list(piles.sources),
            "sets": [
                {"name": one.name, "records": one.records, "bytes": one.byte_count, "time": one.time}
                for one in info.sets
            ],
        }


def verify_store(store: Any, advance: Callable[[int, int], None]) -> int:
    """Read every record of a store's newest snapshot, and return their number.

    `advance` is called with the records and bytes of each part.
    """
    with closing(StoredPiles(store, checks_footers=True)) as piles:
        if not piles.names:
            return 0
        codec = RecordCodec(piles.pile_schema)
        given = [piles.lengths(column) for column in codec.variable_columns]
        cells = [(set_index, pile) for set_index, pile in np.argwhere(piles.counts).tolist()]
        for set_index, pile in piles.announce(cells, lambda cell: [cell]):
            records = piles.load([(set_index, pile)])
            found = codec.sum_lengths(records.batch, np.array([0, len(records)])).ravel().tolist()
            if found != [int(sums[set_index, pile]) for sums in given]:
                raise PileError(
                    f"{piles.path}: set {piles.names[set_index]}: its footer has other lengths than the records of "
                    f"pile {pile}; {remake_store(piles.path)}, and report this as a fault"
                )
            advance(len(records), count_bytes(records.batch))
        return piles.record_count


def drop_store(store: Any) -> None:
    """Delete a store, also a damaged one, or what is left of one."""
    open_place(store).drop()
