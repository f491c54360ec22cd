"""The order of an output by its own columns of provenance, which say where each record was read."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
import xxhash

from recshuf.audit.order.matching import Matching, rank
from recshuf.errors import InputError, UsageError
from recshuf.records.provenance import (
    FILE_COLUMN,
    MAX_INPUTS,
    MAX_ROWS,
    ROW_COLUMN,
    pack_provenance,
    unpack_provenance,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from recshuf.audit.order.sample import BottomKSample

_REMEDY = "it takes an output written with --provenance; else give --against INPUT... or --column NAME"
_ODD, _MIX = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


class ProvenanceReader:
    """Reads the columns of provenance as one number per record; many threads may read.

    A file's index is the order in which its name is first read, which depends on the threads.
    """

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._lock = threading.Lock()

    def read(self, table: pa.RecordBatch) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the provenance of each record and a priority that is a hash of it, shape ``(n,)`` each.

        Raises
        ------
        UsageError
            When the columns are missing, or do not hold what a run writes.
        """
        names, rows = _find_columns(table)
        encoded = names.dictionary_encode()
        files = [str(name) for name in encoded.dictionary.to_pylist()]
        index = encoded.indices.to_numpy()
        codes = np.array(self._encode(files), np.uint64)[index]
        seeds = np.array([xxhash.xxh3_64_intdigest(name.encode()) for name in files], np.uint64)[index]
        return pack_provenance(codes, rows), _hash_rows(seeds, rows)

    def _encode(self, names: list[str]) -> list[int]:
        with self._lock:
            codes = [self._codes.setdefault(name, len(self._codes)) for name in names]
        if len(self._codes) > MAX_INPUTS:
            raise UsageError(f"column {FILE_COLUMN!r} names more than {MAX_INPUTS:,} files; {_REMEDY}")
        return codes

    def match_records(self, sample: BottomKSample, output: str) -> Matching:
        """Return the order of an output's records, input files ordered by name.

        Parameters
        ----------
        sample
            Provenance of the records, as `read` returns it.
        output
            The output's name for messages.

        Raises
        ------
        InputError
            When two records have the same provenance.
        """
        given = sample.take().values.to_numpy()
        names = sorted(self._codes)
        ranks = np.empty(len(names), np.int64)
        ranks[[self._codes[name] for name in names]] = np.arange(len(names))
        codes, rows = unpack_provenance(given)
        files = ranks[codes]
        provenance = pack_provenance(files, rows)
        order = rank(provenance)
        _check_unique(provenance, order, names, output)
        sizes = np.bincount(files, minlength=len(names)).tolist()
        return Matching(order, sizes, sample.records, share=0.5**sample.level)


def _find_columns(table: pa.RecordBatch) -> tuple[pa.Array, NDArray[np.uint64]]:
    """Return file names as text, and row numbers."""
    known = table.schema.names
    for name in (FILE_COLUMN, ROW_COLUMN):
        if name not in known:
            raise UsageError(f"there is no column {name!r}; {_REMEDY}")
    names, rows = (table.column(known.index(name)) for name in (FILE_COLUMN, ROW_COLUMN))
    if pt.is_dictionary(names.type):
        names = names.dictionary_decode()
    is_text = pt.is_string(names.type) or pt.is_large_string(names.type)
    if not is_text or not pt.is_integer(rows.type) or names.null_count or rows.null_count:
        raise UsageError(
            f"columns {FILE_COLUMN!r} and {ROW_COLUMN!r} must hold file names and row numbers; {_REMEDY}"
        )
    bounds = pc.min_max(rows)
    if len(rows) and not 0 <= bounds["min"].as_py() <= bounds["max"].as_py() < MAX_ROWS:
        raise UsageError(f"column {ROW_COLUMN!r} holds a value that is not a row number; {_REMEDY}")
    return names, rows.to_numpy().astype(np.uint64)


def _hash_rows(seeds: NDArray[np.uint64], rows: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return a hash of each row number and its file's seed, the same in every output."""
    hashes = (rows + np.uint64(1)) * _ODD ^ seeds
    for _ in range(2):
        hashes = (hashes ^ hashes >> _HALF) * _MIX
    return hashes ^ hashes >> _HALF


def _check_unique(
    provenance: NDArray[np.uint64], order: NDArray[np.int64], names: list[str], output: str
) -> None:
    ordered = np.empty_like(provenance)
    ordered[order] = provenance
    repeated = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(repeated):
        file, row = (int(numbers[0]) for numbers in unpack_provenance(ordered[repeated[:1]]))
        raise InputError(
            output,
            f"row {row} of {names[file]} is there more than once",
            remedy="name each shuffle by itself, or give --against INPUT..., which compares contents",
        )
