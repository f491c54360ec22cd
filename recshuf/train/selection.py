"""Stores as loaders open them and read their groups."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from recshuf.errors import UsageError
from recshuf.formats.stored import StoredSource
from recshuf.interfaces import InputSummary
from recshuf.piles.groups import Groups
from recshuf.piles.kept.place import StorePlace
from recshuf.piles.kept.places import open_place
from recshuf.piles.kept.region_cache import RegionCache
from recshuf.piles.kept.stored import StoredPiles
from recshuf.system.units import check_size

if TYPE_CHECKING:
    from recshuf.interfaces import Decoder
    from recshuf.piles.epochs import EpochOrder
    from recshuf.storage.settings import StorageOptions


def open_piles(store: Any, storage: StorageOptions | None = None) -> tuple[StoredPiles, bool]:
    """Return the piles of a store, and whether the caller must close them.

    Parameters
    ----------
    store
        Path or URL of a store, a `PileStore`, or its piles.
    storage
        For URLs.
    """
    if isinstance(store, str | os.PathLike | StorePlace):
        return StoredPiles(open_place(store, storage)), True
    if hasattr(store, "piles"):
        return store.piles(), True
    if not hasattr(store, "store_id"):
        raise UsageError(f"store={store!r}: give the path or URL of a store, or a PileStore")
    return store, False


def open_cache(place: Any, most_bytes: Any) -> RegionCache | None:
    """Return the cache of regions that a loader was given, if any: a folder, and a size or None."""
    if place is None:
        if most_bytes is not None:
            raise UsageError(f"cache_bytes={most_bytes!r}: there is no cache; give its folder, too")
        return None
    if place == "":
        raise UsageError("cache='': give a folder, or None")
    return RegionCache(place, None if most_bytes is None else check_size("cache_bytes", most_bytes, least=1))


def keep_regions(piles: StoredPiles, cache: RegionCache, mix: int) -> None:
    """Have the regions of a store kept in a cache, which must have room for a group."""
    cache.hold(mix * int(piles.byte_counts.max(axis=1, initial=0).sum()))
    piles.use_cache(cache)


def restore_decoder(piles: StoredPiles) -> Decoder:
    """Return the decoder from native records, without provenance, to table form."""
    inputs = [InputSummary(name, None, None, False, None) for name in piles.sources]
    return StoredSource(piles.schema, piles.info.origin, inputs).decoder()


@dataclass(frozen=True, slots=True)
class GroupSource:
    """The groups of a store, epoch by epoch."""

    piles: StoredPiles
    """They stay open."""
    order: EpochOrder
    """That of one epoch; others differ in their number."""
    prefetch: int
    """Number of groups that threads load ahead."""

    def open(self, epoch: int) -> Groups:
        """Return the groups of an epoch."""
        return Groups(self.piles, replace(self.order, epoch=epoch))
