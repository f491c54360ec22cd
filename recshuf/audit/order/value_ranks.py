"""The order of records by the values of a column: a label, a time, a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.audit.order.matching import invert, sort_randomly
from recshuf.errors import UsageError
from recshuf.records.arrays.field_paths import check_path, split_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_LABELS = 1000
"""A column of at most so many different values holds labels."""


def find_value(batch: pa.RecordBatch, path: str) -> pa.Array:
    """Return the values of a column or of a field in it: ``meta.label``, ``meta/label``.

    Raises
    ------
    UsageError
        When there is no such column or field.
    """
    check_path(path, batch.schema)
    column, fields = split_path(path, batch.schema.names)
    values = batch.column(batch.schema.names.index(column))
    return pc.struct_field(values, fields) if fields else values


@dataclass(frozen=True, slots=True)
class ValueOrder:
    """The order of records in terms of their sorted values."""

    order: NDArray[np.int64]
    """Permutation of ``0 .. n - 1``: the rank of each record's value; equal values are ranked at random."""
    group_sizes: list[int]
    """How many records have each value if there are at most `MOST_LABELS` values, else one group of all records."""
    duplicates: int
    """Number of records whose value is not unique."""
    value_count: int
    """Number of different values."""


def order_by_value(values: pa.Array, rng: np.random.Generator) -> ValueOrder:
    """Return the ranks of values; `rng` ranks equal values.

    If records are in a uniformly random order, the ranks are too, whatever the values.

    Raises
    ------
    UsageError
        When values of this type have no order.
    """
    codes = rank_densely(values)
    sizes = np.bincount(codes)
    groups = sizes.tolist() if len(sizes) <= MOST_LABELS else [len(codes)]
    order = invert(sort_randomly(codes, rng))
    return ValueOrder(order, groups, int(sizes[sizes > 1].sum()), len(sizes))


def rank_densely(values: pa.Array | pa.ChunkedArray) -> NDArray[np.int64]:
    """Return the dense rank of each value, from 0; nulls come last.

    Raises
    ------
    UsageError
        When values of this type have no order.
    """
    try:
        ranks = pc.rank(_simplify(values), sort_keys="ascending", tiebreaker="dense")
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError):
        problem = f"values of type {values.type} have no order"
        raise UsageError(f"{problem}; choose a column of numbers, times or text") from None
    codes: NDArray[np.int64] = ranks.to_numpy().astype(np.int64) - 1
    return codes


def _simplify(values: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Return values of the same order in a type that Arrow can sort, if there is one."""
    kind = values.type
    if isinstance(values, pa.ChunkedArray):
        return pa.chunked_array([_simplify(chunk) for chunk in values.chunks])
    if isinstance(kind, pa.BaseExtensionType):
        return _simplify(values.storage)
    if pt.is_fixed_size_list(kind) and kind.list_size == 1:
        return _simplify(pc.list_element(values, 0))
    if pt.is_dictionary(kind):
        return values.dictionary_decode()
    narrow = {pa.bool_(): pa.int8(), pa.float16(): pa.float32()}
    return values.cast(narrow[kind]) if kind in narrow else values


def name_codes(values: pa.ChunkedArray, codes: NDArray[np.int64]) -> list[str]:
    """Return the name of each code, in the order of codes."""
    _, rows = np.unique(codes, return_index=True)
    return [_name(value) for value in values.take(pa.array(rows)).to_pylist()]


def _name(value: object) -> str:
    if value is None:
        return "no value"
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
