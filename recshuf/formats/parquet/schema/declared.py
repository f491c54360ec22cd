"""Schemas that files declare, each stored and analysed once: of thousands of files, most share one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.formats.parquet.metadata.annotations import read_annotations
from recshuf.formats.parquet.schema.types import is_ordered, is_time_stamp, leaf_types

if TYPE_CHECKING:
    from recshuf.formats.parquet.metadata.annotations import Annotations


@dataclass(frozen=True, slots=True, eq=False)
class Declared:
    """A schema, with facts about its Parquet columns."""

    schema: pa.Schema
    """Schema of the columns of the file."""
    record_schema: pa.Schema
    """Schema of its records: behind its columns, the index of pandas."""
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
        self._annotations: Annotations | None = None

    def find_annotations(self, name: str, footer: bytes) -> Annotations:
        """Return the annotations in the footer of a file; those of the file before, if the schema has the same bytes.

        Raises what `read_annotations` raises.
        """
        if self._annotations is None or not footer.startswith(self._annotations.head):
            self._annotations = read_annotations(name, footer)
        return self._annotations

    def find(self, schema: pa.Schema, index_name: str | None = None) -> Declared:
        """Return the facts of a schema, the same object for equal schemas; their metadata name the index."""
        for known in self._known:
            if known.schema.equals(schema, check_metadata=True):
                return known
        records = schema if index_name is None else schema.append(pa.field(index_name, pa.int64()))
        leaves = [list(leaf_types(field.type)) for field in schema]
        starts = tuple(accumulate(map(len, leaves), initial=0))
        times = tuple(index for index, types in enumerate(leaves) if any(map(is_time_stamp, types)))
        ordered = tuple(index for index, field in enumerate(schema) if is_ordered(field.type))
        self._known.append(Declared(schema, records, starts, times, ordered))
        return self._known[-1]
