"""Counts the entries of decoded rows, to be compared with the footer.

A column chunk holds one entry for each value, null and empty list; only repetition levels assign them to rows. If rows
moved from one row group into another, the numbers of entries differ.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recshuf.formats.parquet.schema.types import leaf_types
from recshuf.records.arrays.arrow_views import has_offsets, is_variable_list, view_offsets

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray


def is_countable(kind: pa.DataType) -> bool:
    """Tell whether the entries of a column can be counted, and row groups of it be read together.

    A list of a fixed size is padded where it is null. pyarrow cannot read nested dictionaries over several row groups.
    """
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return is_countable(kind.storage_type)
    if not types.is_nested(kind):
        return True
    members = [kind.field(index).type for index in range(kind.num_fields)]
    if any(map(types.is_dictionary, members)):
        return False
    if types.is_fixed_size_list(kind):
        return kind.list_size > 0 and not types.is_nested(members[0])
    is_supported = is_variable_list(kind) or types.is_map(kind) or types.is_struct(kind)
    return is_supported and all(map(is_countable, members))


class EntryCount:
    """The entries of row groups that are read together, counted batch by batch."""

    def __init__(self, rows: Sequence[int], kinds: Sequence[pa.DataType]) -> None:
        self._edges = np.array([0, *accumulate(rows)])
        self.rows = 0
        """Rows that have been counted."""
        # For each column its Parquet columns, and of each of these the entries in each row group.
        self._counts: list[list[Any]] = [_count_flat(kind, rows) for kind in kinds]
        self._nested = [index for index, leaves in enumerate(self._counts) if not leaves]

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the entries of the next rows."""
        if self._nested:
            edges = np.minimum(np.maximum(self._edges - self.rows, 0), batch.num_rows)
            for index in self._nested:
                found = list(_count_entries(batch.column(index), edges))
                counts = self._counts[index]
                self._counts[index] = list(map(np.add, counts, found)) if counts else found
        self.rows += batch.num_rows

    def of(self, group: int) -> list[int | None]:
        """Return the entries of each Parquet column in one of the row groups, None for those that cannot be counted."""
        return [None if leaf is None else int(leaf[group]) for leaves in self._counts for leaf in leaves]


def _count_flat(kind: pa.DataType, rows: Sequence[int]) -> list[Any]:
    """Return the entries of each Parquet column if the type determines them; empty if they have to be counted."""
    if not is_countable(kind):
        return [None for _ in leaf_types(kind)]
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return [] if pa.types.is_nested(storage) else [rows]


def _count_entries(column: pa.Array, edges: NDArray[Any]) -> Iterator[NDArray[np.int64]]:
    """Yield, for each Parquet column below a column, the entries of the rows between each two edges.

    >>> [found.tolist() for found in _count_entries(pa.array([[1, 2], [], None, [3]]), np.array([0, 1, 4]))]
    [[2, 3]]
    """
    kind, types = column.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        yield from _count_entries(column.storage, edges)
    elif types.is_struct(kind):
        for index in range(kind.num_fields):
            yield from _count_entries(column.field(index), edges)
    elif types.is_fixed_size_list(kind):
        nulls = (
            _count_between(column.is_null().to_numpy(zero_copy_only=False), edges) if column.null_count else 0
        )
        yield (edges[1:] - edges[:-1] - nulls) * kind.list_size + nulls
    elif types.is_nested(kind) and has_offsets(kind):
        offsets = view_offsets(column)
        empty = _count_between(offsets[1:] == offsets[:-1], edges)
        for found in _count_entries(column.values, offsets[edges]):
            yield found + empty
    else:
        yield edges[1:] - edges[:-1]


def _count_between(flags: NDArray[np.bool_], edges: NDArray[Any]) -> NDArray[np.int64]:
    """Return how many flags are set between each two edges."""
    if len(edges) == 2:
        return np.array([np.count_nonzero(flags[edges[0] : edges[1]])])
    found: NDArray[np.int64] = np.diff(np.cumsum(np.concatenate(([False], flags)))[edges])
    return found
