"""`PileStore`: a kept pile store, as programs open it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from recshuf.formats.stored import StoredSource
from recshuf.job.progress import SilentProgress
from recshuf.piles.store.store_folder import StoreFolder
from recshuf.piles.store.stored import StoredPiles
from recshuf.run.stores.store_update import StoreUpdate
from recshuf.system.paths import local_path

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    import pyarrow as pa

    from recshuf.job.progress import Progress
    from recshuf.piles.store.snapshots import Snapshot


class PileStore:
    """A pile store, as its newest snapshot is when it is opened.

    Raises
    ------
    UsageError
        When there is no store.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = local_path(path)
        self._folder = StoreFolder(self.path)
        self._snapshot = self._open()

    def _open(self) -> Snapshot:
        snapshot, lease = self._folder.open()
        lease.close()
        return snapshot

    @property
    def id(self) -> str:
        """Identifier of the store, 32 hexadecimal digits."""
        return self._snapshot.store

    @property
    def snapshot(self) -> int:
        """Number of the snapshot."""
        return self._snapshot.number

    @property
    def num_records(self) -> int:
        """Number of records."""
        return self._snapshot.record_count

    @property
    def num_bytes(self) -> int:
        """Bytes of the records."""
        return self._snapshot.byte_count

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the sources, which `_id` numbers."""
        piles = self.piles()
        try:
            return piles.sources
        finally:
            piles.close()

    @property
    def schema(self) -> pa.Schema:
        """Columns of the records.

        Raises
        ------
        ConversionError
            When the records have no columns.
        PileError
            When there are no records yet.
        """
        piles = self.piles()
        try:
            return StoredSource(piles.schema, piles.info.origin, ()).decoder().finish()
        finally:
            piles.close()

    def piles(self) -> StoredPiles:
        """Open the piles of this snapshot; the caller closes them."""
        return StoredPiles(self.path, self.snapshot)

    @contextmanager
    def update(self, progress: Progress | None = None) -> Iterator[StoreUpdate]:
        """Change what the store holds, in one step at the end of the context; nothing changes after an exception.

        Open loaders keep the snapshot that they have.

        Raises
        ------
        RecshufError
            When records cannot be read or written, or do not fit the store.
        """
        with ExitStack() as cleanup:
            update = StoreUpdate(self._folder, self._open(), progress or SilentProgress(), cleanup)
            cleanup.callback(update.end)
            yield update
            self._snapshot = update.commit()
