"""Stores as the loader reads them: opened by path, and their records in table form."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recshuf.formats.stored import StoredSource
from recshuf.interfaces import InputSummary
from recshuf.piles.store.stored import StoredPiles

if TYPE_CHECKING:
    from recshuf.interfaces import Decoder


def open_piles(store: Any) -> tuple[StoredPiles, bool]:
    """Return the piles of a store, and whether the caller must close them.

    Parameters
    ----------
    store
        Path of a store, a `PileStore`, or its piles.
    """
    if isinstance(store, str | os.PathLike):
        return StoredPiles(Path(store)), True
    if hasattr(store, "piles"):
        return store.piles(), True
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
