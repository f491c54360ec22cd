"""Stores as the loader reads them: opened by path, epoch by epoch, and their records in table form."""

from __future__ import annotations

import os
import tempfile
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recshuf.errors import UsageError
from recshuf.formats.stored import StoredSource
from recshuf.interfaces import InputSummary
from recshuf.piles.order.rekeyed import RekeyedPiles
from recshuf.piles.store.stored import StoredPiles
from recshuf.system.paths import local_path

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from recshuf.interfaces import Decoder
    from recshuf.piles.order.epochs import EpochOrder
    from recshuf.piles.order.groups import CheckedRegions

_OTHER_FOLDER = "set TMPDIR to another folder"


def open_piles(store: Any) -> tuple[StoredPiles, bool]:
    """Return the piles of a store, and whether the caller must close them.

    Parameters
    ----------
    store
        Path of a store, a `PileStore`, or its piles.

    Raises
    ------
    UsageError
        When it is none of these, or there is no store.
    """
    if isinstance(store, str | os.PathLike):
        return StoredPiles(local_path(store)), True
    if hasattr(store, "piles"):
        return store.piles(), True
    if not hasattr(store, "store_id"):
        raise UsageError(f"store={store!r}: give the path of a store, or a PileStore")
    return store, False


def restore_decoder(piles: StoredPiles) -> Decoder:
    """Return the decoder from native records, without provenance, to table form.

    Raises
    ------
    ConversionError
        When the records have no table form.
    """
    inputs = [InputSummary(name, None, None, False, None) for name in piles.sources]
    return StoredSource(piles.schema, piles.info.origin, inputs).decoder()


def fill_piles(rekeyed: RekeyedPiles) -> AbstractContextManager[CheckedRegions]:
    """Write piles of new keys to the temporary folder, as `RekeyedPiles.fill` does."""
    return rekeyed.fill(Path(tempfile.gettempdir()), _OTHER_FOLDER)


class EpochPiles:
    """The regions of epochs that several readers pass at their own pace. Used by one thread."""

    def __init__(self, piles: StoredPiles) -> None:
        self._piles = piles
        self._filled: weakref.WeakValueDictionary[int, CheckedRegions] = weakref.WeakValueDictionary()

    def open(self, order: EpochOrder) -> CheckedRegions:
        """Return the regions of an epoch. Those with new keys are written once, and kept as long as somebody has them.

        Raises
        ------
        DiskFullError
            When the temporary folder has no space for all records.
        PileError
            When the store is damaged.
        """
        if not order.needs_keys:
            return self._piles
        filled = self._filled.get(order.epoch)
        if filled is None:
            with ExitStack() as stack:
                filled = stack.enter_context(fill_piles(RekeyedPiles(self._piles, order)))
                weakref.finalize(filled, stack.pop_all().close)
            self._filled[order.epoch] = filled
        return filled
