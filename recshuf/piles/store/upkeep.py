"""Upkeep of a store: what it holds, whether it is whole, and its deletion."""

from __future__ import annotations

import errno
import os
import shutil
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from recshuf.errors import OutputError, PileError
from recshuf.piles.encoding.codec import choose_codec
from recshuf.piles.sets.pile_file import remake_store
from recshuf.piles.store.store_folder import SET_SUFFIX, StoreFolder
from recshuf.piles.store.stored import StoredPiles
from recshuf.records.arrays.byte_sizes import count_bytes
from recshuf.system.locks import lock_existing
from recshuf.system.paths import real_path, write_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_BLOCK_BYTES = 512
"""Unit of `st_blocks`."""


def describe_store(path: Path) -> dict[str, Any]:
    """Return what the newest snapshot of a store holds, as JSON values.

    Raises
    ------
    UsageError
        When there is no store.
    PileError
        When it is damaged.
    """
    piles = StoredPiles(path)
    try:
        info = piles.info
        return {
            "path": str(path),
            "store": info.store,
            "snapshot": info.number,
            "seed": str(info.seed),
            "format": "table" if info.origin is None else info.origin["format"],
            "records": info.record_count,
            "bytes": info.byte_count,
            "file_bytes": sum(one.file_bytes for one in info.sets),
            "disk_bytes": _count_disk_bytes(piles),
            "piles": info.pile_count,
            "columns": {} if info.schema is None else {one.name: str(one.type) for one in piles.schema},
            "sources": list(piles.sources),
            "sets": [
                {"name": one.name, "records": one.records, "bytes": one.byte_count, "time": one.time}
                for one in info.sets
            ],
        }
    finally:
        piles.close()


def _count_disk_bytes(piles: StoredPiles) -> int:
    """Return what the sets take on disk: less than their sizes where regions were reserved and not filled."""
    folder = StoreFolder(piles.path).sets
    return sum((folder / (name + SET_SUFFIX)).stat().st_blocks for name in piles.names) * _BLOCK_BYTES


def verify_store(path: Path, advance: Callable[[int, int], None]) -> int:
    """Read every record of a store's newest snapshot, and return their number.

    Parameters
    ----------
    advance
        Called with the records and bytes of each part.

    Raises
    ------
    UsageError
        When there is no store.
    PileError
        When a set is missing or damaged; names it.
    """
    piles = StoredPiles(path)
    try:
        if piles.names:
            _verify_regions(piles, advance)
        return piles.record_count
    finally:
        piles.close()


def _verify_regions(piles: StoredPiles, advance: Callable[[int, int], None]) -> None:
    codec = choose_codec(piles.pile_schema)
    given = [piles.lengths(column) for column in codec.variable_columns]
    for set_index, pile in np.argwhere(piles.counts).tolist():
        records = piles.load([(set_index, pile)])
        if records is None:
            continue
        found = codec.sum_lengths(records.batch, np.array([0, len(records)])).ravel().tolist()
        if found != [int(sums[set_index, pile]) for sums in given]:
            raise PileError(
                f"{piles.path}: set {piles.names[set_index]}: its footer has other lengths than the records of "
                f"pile {pile}; {remake_store(piles.path)}, and report this as a fault"
            )
        advance(len(records), count_bytes(records.batch))


def drop_store(path: Path) -> None:
    """Delete a store, also a damaged one, or what is left of one: by a drop that died, or a process that wrote to it meanwhile.

    Raises
    ------
    UsageError
        When there is no store.
    OutputError
        When a process reads or writes it, it holds other files, or it cannot be deleted.
    """
    folder = StoreFolder(path)
    if not folder.is_rest:
        with suppress(PileError):
            folder.open()[1].close()
    if path.is_symlink():
        raise OutputError(f"{path}: is a symbolic link; name the folder that it leads to, {real_path(path)}")
    if foreign := folder.list_foreign():
        raise OutputError(f"{path}: holds {foreign[0]!r}, which is not of the store; move it away")
    busy = OutputError(f"{path}: a process reads or writes it; wait for its end")
    with ExitStack() as locks:
        try:
            if not _lock_all(folder, locks):
                raise busy
            # Snapshots last: as long as there is one, the command can be given again.
            if folder.sets.exists():
                shutil.rmtree(folder.sets)
            for file in [*folder.list_parts(), *folder.list_snapshots()]:
                file.unlink(missing_ok=True)
            path.rmdir()
        except OSError as error:
            # Writers that began after the locks were taken make and delete files here.
            is_busy = error.errno in (errno.ENOTEMPTY, errno.ENOENT)
            raise busy if is_busy else write_error(error, str(path)) from error


def _lock_all(folder: StoreFolder, locks: ExitStack) -> bool:
    """Lock all snapshots and names of a store, and tell whether no process has them."""
    snapshots = set(folder.list_snapshots())
    try:
        for file in [*snapshots, *folder.list_locks()]:
            locks.callback(os.close, lock_existing(file))
    except (BlockingIOError, FileNotFoundError):
        return False
    # Who has committed meanwhile had a lease of a snapshot before.
    return set(folder.list_snapshots()) == snapshots
