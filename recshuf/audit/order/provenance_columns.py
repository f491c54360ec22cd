"""Where records say that they were read, as one number for each."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import xxhash

from recshuf.audit.order.matching import Origins, rank
from recshuf.errors import InputError, UsageError
from recshuf.records.provenance import FILE_COLUMN, FILE_SHIFT, MAX_INPUTS, ROW_COLUMN

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.audit.order.sample import Sample

_REMEDY = "it takes an output written with --provenance; else give --against INPUT... or --column NAME"
_ODD, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


class PlaceNames:
    """The names of files in the order in which they are met, which threads may change; used by many threads."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._lock = threading.Lock()

    def read_places(self, table: pa.RecordBatch) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return a place for each record, file and row, and a lot that follows from both, shape ``(n,)`` each.

        Raises
        ------
        UsageError
            When the columns are not there, or not what a run writes.
        """
        names, rows = _find_columns(table)
        encoded = names.dictionary_encode()
        files = [str(name) for name in encoded.dictionary.to_pylist()]
        index = encoded.indices.to_numpy()
        codes = np.array(self._encode(files), np.uint64)[index]
        seeds = np.array([xxhash.xxh3_64_intdigest(name.encode()) for name in files], np.uint64)[index]
        return codes << FILE_SHIFT | rows, _draw_lots(seeds, rows)

    def _encode(self, names: list[str]) -> list[int]:
        with self._lock:
            codes = [self._codes.setdefault(name, len(self._codes)) for name in names]
        if len(self._codes) > MAX_INPUTS:
            raise UsageError(f"column {FILE_COLUMN!r} names more than {MAX_INPUTS:,} files; {_REMEDY}")
        return codes

    def find_origins(self, sample: Sample, output: str) -> Origins:
        """Return where the records of an output come from, files in the order of their names.

        Parameters
        ----------
        sample
            Their places.
        output
            What messages call them.

        Raises
        ------
        InputError
            When two come from one place.
        """
        given = sample.take().values.to_numpy()
        names = sorted(self._codes)
        ranks = np.empty(len(names), np.uint64)
        ranks[[self._codes[name] for name in names]] = np.arange(len(names), dtype=np.uint64)
        rows = given & ((np.uint64(1) << FILE_SHIFT) - np.uint64(1))
        files = ranks[given >> FILE_SHIFT]
        places = files << FILE_SHIFT | rows
        order = rank(places)
        _check_single(places, order, names, output)
        sizes = np.bincount(files.astype(np.int64), minlength=len(names)).tolist()
        return Origins(order, sizes, share=0.5**sample.level, missing=0, extra=0, twins=0)


def _find_columns(table: pa.RecordBatch) -> tuple[pa.Array, NDArray[np.uint64]]:
    """Return names of files as text, and rows."""
    known = table.schema.names
    for name in (FILE_COLUMN, ROW_COLUMN):
        if name not in known:
            raise UsageError(f"there is no column {name!r}; {_REMEDY}")
    names, rows = (table.column(known.index(name)) for name in (FILE_COLUMN, ROW_COLUMN))
    if pt.is_dictionary(names.type):
        names = names.dictionary_decode()
    is_text = pt.is_string(names.type) or pt.is_large_string(names.type)
    if not is_text or not pt.is_integer(rows.type) or names.null_count or rows.null_count:
        raise UsageError(f"columns {FILE_COLUMN!r} and {ROW_COLUMN!r} are no names and numbers; {_REMEDY}")
    most = pc.min_max(rows)
    if len(rows) and not 0 <= most["min"].as_py() <= most["max"].as_py() < 1 << int(FILE_SHIFT):
        raise UsageError(f"column {ROW_COLUMN!r} holds what is no place in a file; {_REMEDY}")
    return names, rows.to_numpy().astype(np.uint64)


def _draw_lots(seeds: NDArray[np.uint64], rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a number for each place that looks random and is the same in every output."""
    lots = (rows + np.uint64(1)) * _ODD ^ seeds
    for _ in range(2):
        lots = (lots ^ lots >> _HALF) * _MIX
    return lots ^ lots >> _HALF


def _check_single(
    places: NDArray[np.uint64], order: NDArray[np.int64], names: list[str], output: str
) -> None:
    ordered = np.empty_like(places)
    ordered[order] = places
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        place = int(ordered[twice[0]])
        raise InputError(
            output,
            f"row {place & (1 << int(FILE_SHIFT)) - 1} of {names[place >> int(FILE_SHIFT)]} is there more than once",
            remedy="name each shuffle by itself, or give --against INPUT..., which compares contents",
        )
