"""The dictionaries of all Arrow inputs: one for each column, with all values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.types as pt

from recshuf.errors import MemoryLimitError
from recshuf.formats.parquet.types import dense_type
from recshuf.records.conforming import conform
from recshuf.system.units import format_size, round_up

if TYPE_CHECKING:
    from collections.abc import Iterable


_SHARE = 8
"""What of the memory limit all dictionaries may take: to unite or to apply them takes several times as much."""
_ENTRY_BYTES = 32
"""Memory to find a value, besides the value."""

Column = tuple[str, int]
"""The name of a column, and how many before it have the same."""


def number_names(names: Iterable[str]) -> list[Column]:
    """Return the names, each with how many before it are the same.

    >>> number_names(["a", "b", "a"])
    [('a', 0), ('b', 0), ('a', 1)]
    """
    counts: dict[str, int] = {}
    numbered = []
    for name in names:
        numbered.append((name, counts.get(name, 0)))
        counts[name] = numbered[-1][1] + 1
    return numbered


def count_dictionary_bytes(values: Iterable[pa.Array]) -> int:
    """Return the memory of dictionaries with what finds their values."""
    return sum(each.nbytes + _ENTRY_BYTES * len(each) for each in values)


class Dictionaries:
    """All values of the dictionaries of columns, in the order in which they came."""

    def __init__(self, memory_bytes: int | None) -> None:
        self._memory_bytes = memory_bytes
        self._parts: dict[Column, dict[pa.DataType, list[pa.Array]]] = {}
        """Of each column and type of values those that are united, and after them what came since."""
        self._bytes = 0

    def add(self, column: Column, found: pa.Array, name: str) -> None:
        """Add a dictionary of the file `name`; more than the memory limit allows is refused."""
        kind = dense_type(found.type)
        parts = self._parts.setdefault(column, {}).setdefault(kind, [])
        if pt.is_nested(kind) or (parts and found.type == kind and found.equals(parts[-1])):
            return
        parts.append(conform(found, kind))
        self._bytes += count_dictionary_bytes(parts[-1:])
        if self._memory_bytes is not None and _SHARE * self._bytes > self._memory_bytes:
            for kinds in self._parts.values():
                for known in kinds.values():
                    self._unite(known)
            self._check(self._memory_bytes, name)
        elif count_dictionary_bytes(parts[1:]) >= count_dictionary_bytes(parts[:1]):
            self._unite(parts)

    def find_values(self, column: Column, kind: pa.DataType) -> pa.Array:
        """Return all values of a column but null, in this type."""
        known = [conform(part, kind) for parts in self._parts.get(column, {}).values() for part in parts]
        return pa.chunked_array(known, kind).unique().drop_null()

    def _unite(self, parts: list[pa.Array]) -> None:
        if len(parts) > 1:
            self._bytes -= count_dictionary_bytes(parts)
            parts[:] = [pa.chunked_array(parts).unique()]
            self._bytes += count_dictionary_bytes(parts)

    def _check(self, memory_bytes: int, name: str) -> None:
        needed = _SHARE * self._bytes
        if needed > memory_bytes:
            raise MemoryLimitError(
                f"{name}: the dictionaries up to here hold {format_size(self._bytes)}, and an eighth of the memory is for them, "
                f"which needs at least {format_size(round_up(needed))}; the limit is {format_size(memory_bytes)}; raise --memory"
            )
