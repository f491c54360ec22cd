"""Pile sets that are written into a store before a snapshot refers to them, each name by one process at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from recshuf.piles.codec import choose_codec
from recshuf.piles.store import Store

if TYPE_CHECKING:
    from contextlib import ExitStack

    import pyarrow as pa

    from recshuf.piles.kept.place import StorePlace
    from recshuf.piles.layout import StorePlan


def open_new_sets(
    place: StorePlace, plan: StorePlan, schema: pa.Schema, cleanup: ExitStack, needed_bytes: int = 0
) -> Store:
    """Return the store of new sets, open until `cleanup`; sealed sets are synced to disk, or uploaded.

    The caller holds the plan's `set_prefix` as a name. The schema has provenance. `needed_bytes` are for messages.
    """
    sets = place.open_sets(needed_bytes=needed_bytes)
    cleanup.callback(sets.close)
    store = Store(replace(plan, syncs_sets=True), choose_codec(schema), sets)
    cleanup.callback(store.close)
    return store
