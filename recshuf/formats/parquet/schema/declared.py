"""Schemas that files declare, each stored and analysed once: of thousands of files, most share one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from recshuf.formats.parquet.schema.types import is_ordered, is_time_stamp, leaf_types

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """A schema, with facts about its Parquet columns."""

    schema: pa.Schema
    leaf_starts: tuple[int, ...]
    """Index of the first Parquet column of each Arrow column, and the number of all."""
    time_columns: tuple[int, ...]
    """Arrow columns with time stamps in them."""
    ordered_columns: tuple[int, ...]
    """Arrow columns of ordered dictionaries."""


class DeclaredSchemas:
    """All schemas of a run."""

    def __init__(self) -> None:
        self._known: list[Declared] = []

    def find(self, schema: pa.Schema) -> Declared:
        """Return the facts of a schema, the same object for equal schemas."""
        for known in self._known:
            if known.schema.equals(schema, check_metadata=True):
                return known
        leaves = [list(leaf_types(field.type)) for field in schema]
        starts = tuple(accumulate(map(len, leaves), initial=0))
        times = tuple(index for index, types in enumerate(leaves) if any(map(is_time_stamp, types)))
        ordered = tuple(index for index, field in enumerate(schema) if is_ordered(field.type))
        self._known.append(Declared(schema, starts, times, ordered))
        return self._known[-1]
