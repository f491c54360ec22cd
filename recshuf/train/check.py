"""A test of what a loader yields over two epochs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from recshuf.audit.order.battery import Score
from recshuf.audit.order.check import combine_reports, score_matching
from recshuf.audit.order.matching import Matching
from recshuf.errors import CheckError, UsageError
from recshuf.formats.stored import ID
from recshuf.piles.epochs import EpochOrder
from recshuf.piles.groups import Groups
from recshuf.records.provenance import pack_provenance, unpack_provenance
from recshuf.train.loader import PileLoader
from recshuf.train.loading import open_piles

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.audit.order.check import CheckReport
    from recshuf.job.report import Progress
    from recshuf.piles.epochs import Reshuffle
    from recshuf.piles.kept.stored import StoredPiles


_BATCH = 4096
_SIMULATIONS = 64
_MOST_GROUPS = 4096
_HIGHER = (
    "Records that shared a group share one again in the next epoch too often: the epochs are not independent."
)
_LOWER = "Records that shared a group are kept apart in the next epoch."


def check_epochs(
    store: Any, seed: int | None, epoch: int, reshuffle: str, mix: int, progress: Progress
) -> CheckReport:
    """Test two epochs of a store: each by itself, and how often records that shared a group share one again.

    Each must hold every record of the store once. Records are known by source and row, which are read from the store
    without a loader, too. All of them are in memory: 40 bytes a record.
    """
    started = time.perf_counter()
    piles, _ = open_piles(store)
    try:
        order = EpochOrder(piles.seed if seed is None else seed, epoch, reshuffle, piles.seed, mix)
        orders = [order, replace(order, epoch=order.epoch + 1)]
        groups = [Groups(piles, epoch_order).sizes for epoch_order in orders]
        if len(groups[0]) > _MOST_GROUPS:
            raise UsageError(
                f"mix={mix}: makes {len(groups[0]):,} groups, and {_MOST_GROUPS:,} can be tested; raise it"
            )
        progress.start("check", 2 * piles.record_count, 2 * int(piles.byte_counts.sum()))
        origins = [_read_origins(piles, epoch_order, mix, progress) for epoch_order in orders]
        listed = _list_origins(piles)
        _check_once(listed, origins, order, piles)
        positions = [np.searchsorted(listed, yielded) for yielded in origins]
        sizes = np.unique(unpack_provenance(listed)[0], return_counts=True)[1].tolist()
        reports = [
            score_matching(Matching(one, sizes, records=len(one), share=1.0), started) for one in positions
        ]
        _check_orders(origins, order, piles)
        table = _make_table(positions, groups)
        meetings = _count_meetings(table, table.sum(axis=1), table.sum(axis=0))
        again = _score_meetings(piles, order, mix, meetings)
        both = combine_reports(reports, started)
        return replace(both, scores=(*both.scores, again), seconds=time.perf_counter() - started)
    finally:
        piles.close()


def _read_origins(piles: StoredPiles, order: EpochOrder, mix: int, progress: Progress) -> NDArray[np.uint64]:
    """Return the provenance of all records, in the order of a loader."""
    loader = PileLoader(
        piles, _BATCH, columns=[ID], seed=order.seed, epoch=order.epoch, reshuffle=cast("Reshuffle", order.reshuffle), mix=mix, drop_last=False
    )  # fmt: skip
    parts, share = [], int(piles.byte_counts.sum()) / max(1, piles.record_count)
    for batch in loader:
        parts.append(pack_provenance(*batch[ID].T))
        progress.advance(len(batch[ID]), int(len(batch[ID]) * share))
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _list_origins(piles: StoredPiles) -> NDArray[np.uint64]:
    """Return the provenance of all records as the store has it, sorted."""
    origins, end = np.empty(piles.record_count, np.uint64), 0
    for pile, counts in enumerate(piles.counts.T):
        packed = piles.pack([(set_index, pile) for set_index in np.flatnonzero(counts).tolist()])
        if packed is not None:
            begin, end = end, end + int(counts.sum())
            origins[begin:end] = packed.origins
    origins.sort()
    return origins


def _check_once(
    listed: NDArray[np.uint64], origins: list[NDArray[np.uint64]], order: EpochOrder, piles: StoredPiles
) -> None:
    """Check that epochs hold the records of the store, each once."""
    for epoch, yielded in enumerate(map(np.sort, origins), order.epoch):
        twice = int((yielded[1:] == yielded[:-1]).sum())
        if twice or not np.array_equal(yielded, listed):
            others = int(np.isin(yielded, listed, invert=True).sum())
            raise CheckError(
                f"{piles.path}: a loader does not yield every record once: in epoch {epoch} {len(yielded):,} of "
                f"{len(listed):,}, {twice:,} twice, {others:,} with a source and row that the store does not hold; report "
                "this as a fault"
            )


def _check_orders(origins: list[NDArray[np.uint64]], order: EpochOrder, piles: StoredPiles) -> None:
    """Check that the orders of two epochs are as alike as they are to be. By chance those of so many records never are."""
    first, second = origins
    is_same = np.array_equal(first, second)
    if is_same != (order.reshuffle == "none"):
        raise CheckError(
            f"{piles.path}: a loader with reshuffle={order.reshuffle!r} yields {'one order' if is_same else 'two orders'} "
            f"in epochs {order.epoch} and {order.epoch + 1}; report this as a fault"
        )


def _make_table(positions: list[NDArray[np.intp]], sizes: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the number of records of each group of the first epoch in each one of the second."""
    places = []
    for order, group_sizes in zip(positions, sizes, strict=True):
        group = np.empty(len(order), np.int64)
        group[order] = np.repeat(np.arange(len(group_sizes)), group_sizes)
        places.append(group)
    count = len(sizes[0])
    return np.bincount(places[0] * count + places[1], minlength=count**2).reshape(count, count)


def _count_meetings(table: NDArray[np.int64], sizes: NDArray[np.int64], after: NDArray[np.int64]) -> float:
    """Return how much more often than by chance two records of a group share one in the next epoch.

    Given are the numbers of records that each group of one epoch shares with each of the next, of which zeros may be left
    out, and the sizes of the groups of both.
    """
    total = float(sizes.sum())
    pairs = float((table * (table - 1)).sum())
    chances = float((sizes * (sizes - 1)).sum()) * float((after * (after - 1)).sum())
    return pairs * total * (total - 1) / chances if chances else 0.0


def _score_meetings(piles: StoredPiles, order: EpochOrder, mix: int, meetings: float) -> Score:
    """Return the score of the meetings among those of other seeds."""
    others = [
        _count_meetings(*_simulate(piles, replace(order, seed=seed), mix)) for seed in range(_SIMULATIONS)
    ]
    expected = float(np.mean(others))
    if not expected:
        raise UsageError(
            f"mix={mix}: makes groups in which no two of the {piles.record_count:,} records meet twice; raise it"
        )
    return Score("meetings", meetings, expected, max(float(np.std(others)), 1e-6 * expected), _HIGHER, _LOWER)


def _simulate(
    piles: StoredPiles, order: EpochOrder, mix: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return what `_count_meetings` takes of two epochs with a seed, from the counts of the regions alone."""
    pile_count, counts = piles.counts.shape[1], piles.counts.ravel()
    count = -(-pile_count // mix)
    places = []
    for epoch_order in (order, replace(order, epoch=order.epoch + 1)):
        slots = epoch_order.find_slots(piles.names, pile_count)
        places.append((np.argsort(slots, axis=1) // mix).ravel())
    # A table of all groups would have far more places than there are regions.
    _, cells = np.unique(places[0] * count + places[1], return_inverse=True)
    table, sizes, after = (
        np.bincount(own, counts, least).astype(np.int64)
        for own, least in ((cells, 0), (places[0], count), (places[1], count))
    )
    return table, sizes, after
