"""Pile sets that are written into a store, before a snapshot refers to them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from recshuf.piles.encoding.codec import choose_codec
from recshuf.piles.run_piles import RunPiles
from recshuf.piles.sets.scratch import STORE_MESSAGES, Scratch
from recshuf.piles.spilled import name_set
from recshuf.piles.store.store_folder import SET_MODE, SET_SUFFIX

if TYPE_CHECKING:
    from contextlib import ExitStack

    import pyarrow as pa

    from recshuf.piles.layout import StorePlan
    from recshuf.piles.store.snapshots import SetEntry
    from recshuf.piles.store.store_folder import StoreFolder


def open_new_sets(
    folder: StoreFolder, plan: StorePlan, schema: pa.Schema, cleanup: ExitStack, needed_bytes: int = 0
) -> RunPiles:
    """Return the piles of new sets, open until `cleanup`; sealed sets are synced to disk.

    Parameters
    ----------
    plan
        The caller holds the lock of its `set_prefix`.
    schema
        Columns of the records, with provenance.
    needed_bytes
        Expected bytes, for messages.
    """
    scratch = Scratch(folder.sets, folder.path, folder.sets, needed_bytes, SET_MODE, STORE_MESSAGES)
    cleanup.callback(scratch.close)
    piles = RunPiles(replace(plan, keeps_sets=True, syncs_sets=True), choose_codec(schema), scratch)
    cleanup.callback(piles.close)
    return piles


def describe_new_set(
    folder: StoreFolder, name: str, set_index: int, records: int, byte_count: int, time: float | None = None
) -> SetEntry:
    """Return the entry of a sealed set for a snapshot.

    Parameters
    ----------
    name
        The `set_prefix` of its plan.

    Raises
    ------
    OutputError
        When it is gone.
    """
    set_name = name_set(name, set_index).removesuffix(SET_SUFFIX)
    return folder.describe_set(set_name, records, byte_count, time)
