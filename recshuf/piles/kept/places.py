"""The choice of the place of a pile store, a folder or a bucket, and new sets in it."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recshuf.errors import RecshufError, UsageError
from recshuf.piles.kept.folder import StoreFolder
from recshuf.piles.kept.place import StorePlace
from recshuf.storage import StorageOptions, Url, is_url, refuse_unknown_scheme
from recshuf.system.paths import check_name

if TYPE_CHECKING:
    from contextlib import ExitStack

    import pyarrow as pa

    from recshuf.piles.layout import StorePlan
    from recshuf.piles.store import Store


def open_place(store: Any, options: StorageOptions | None = None) -> StorePlace:
    """Return the place of a store, given its path or URL, or a place. Options are for URLs."""
    if isinstance(store, StorePlace):
        return store
    if not isinstance(store, str | os.PathLike):
        raise UsageError(f"{store!r} is no path; give text or a pathlib.Path")
    check_name(store)
    name = os.fspath(store)
    if not isinstance(store, str) or not is_url(name):
        refuse_unknown_scheme(name)
        return StoreFolder(Path(name))
    from recshuf.storage.writing import WRITTEN_SCHEMES, check_prefix

    url = Url.parse(name)
    if url.scheme not in WRITTEN_SCHEMES:
        raise UsageError(f"{name}: a pile store cannot lie there; give s3://, gs://, az:// or a local folder")
    check_prefix(url, name, "store")
    from recshuf.piles.kept.bucket import StoreBucket  # most stores are folders

    return StoreBucket(url, options or StorageOptions())


def is_store(name: str, options: StorageOptions) -> bool:
    """Tell whether there is a pile store at a path or URL; False if nobody can tell."""
    with suppress(RecshufError):
        return open_place(name, options).is_store
    return False


def open_new_sets(
    place: StorePlace, plan: StorePlan, schema: pa.Schema, cleanup: ExitStack, needed_bytes: int = 0
) -> Store:
    """Return the store of new sets, open until `cleanup`; sealed sets are synced to disk, or uploaded.

    The caller holds the plan's `set_prefix` as a name. The schema has provenance. `needed_bytes` are for messages.
    """
    from recshuf.piles.codec import choose_codec
    from recshuf.piles.store import Store  # who reads stores needs none

    sets = place.open_sets(needed_bytes=needed_bytes)
    cleanup.callback(sets.close)
    store = Store(replace(plan, syncs_sets=True), choose_codec(schema), sets)
    cleanup.callback(store.close)
    return store
