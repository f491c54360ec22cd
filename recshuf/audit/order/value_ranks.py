"""The order of records by one of their values: a label, a time, a name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from recshuf.audit.order.matching import invert, sort_with_lots
from recshuf.errors import UsageError
from recshuf.records.field_paths import check_path, split_path

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_LABELS = 1000
"""Values that are not more than this many are labels; more are numbers, times, names."""


def find_value(batch: pa.RecordBatch, path: str) -> pa.Array:
    """Return the values of a column, or of a field of a column that holds fields: ``meta.label``, ``meta/label``.

    Raises
    ------
    UsageError
        When there is none of that name.
    """
    check_path(path, batch.schema)
    column, fields = split_path(path, batch.schema.names)
    values = batch.column(batch.schema.names.index(column))
    return pc.struct_field(values, fields) if fields else values


@dataclass(frozen=True, slots=True)
class ValueOrder:
    """An output as an order of its sorted values."""

    order: NDArray[np.int64]
    """Permutation of ``0 .. n - 1``: the place of each record's value among the sorted ones."""
    group_sizes: list[int]
    """How many records have each value, where there are few of them; else one group of all."""
    twins: int
    """Records whose value others have, too."""
    value_count: int
    """Different values."""


def order_by_value(values: pa.Array, lots: np.random.Generator) -> ValueOrder:
    """Return the places of values among the sorted values; lots decide among equal ones.

    If records are in a uniformly random order, so is this, whatever the values are.

    Raises
    ------
    UsageError
        When values of this type have no order.
    """
    codes = rank_densely(values)
    sizes = np.bincount(codes)
    groups = sizes.tolist() if len(sizes) <= MOST_LABELS else [len(codes)]
    order = invert(sort_with_lots(codes, lots))
    return ValueOrder(order, groups, int(sizes[sizes > 1].sum()), len(sizes))


def rank_densely(values: pa.Array) -> NDArray[np.int64]:
    """Return the number of smaller values that are different, for each value; nulls come last.

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


def _simplify(values: pa.Array) -> pa.Array:
    """Return values with the same order in a type that Arrow can sort, where there is one."""
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return _simplify(values.storage)
    if pt.is_fixed_size_list(kind) and kind.list_size == 1:
        return _simplify(pc.list_element(values, 0))
    if pt.is_dictionary(kind):
        return values.dictionary_decode()
    narrow = {pa.bool_(): pa.int8(), pa.float16(): pa.float32()}
    return values.cast(narrow[kind]) if kind in narrow else values


def name_codes(values: pa.Array, codes: NDArray[np.int64]) -> list[str]:
    """Return the values as text, in the order of their codes."""
    _, places = np.unique(codes, return_index=True)
    return [_name(value) for value in values.take(pa.array(places)).to_pylist()]


def _name(value: object) -> str:
    if value is None:
        return "no value"
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
