"""Nested columns flattened, with the row of each value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.types as pt

from recshuf.records.arrays.arrow_views import is_variable_list

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.formats.jsonl.decoding.line_checks import Path

    Rows = Callable[[NDArray[np.int64]], NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Column:
    """All values at one path."""

    path: Path
    values: pa.Array
    """One value for each record, or for each element of the lists on the way."""
    rows: Rows
    """Maps positions in `values` to rows."""

    def first_row(self) -> int | None:
        """Return the row of the first value that is not null."""
        if self.values.null_count == len(self.values):
            return None
        valid = self.values.is_valid().to_numpy(zero_copy_only=False)
        return int(self.rows(np.array([np.argmax(valid)]))[0])


def walk_columns(columns: list[pa.Array], names: list[str]) -> Iterator[Column]:
    """Yield every column and its nested columns, parents first, without those of type null."""
    for name, column in zip(names, columns, strict=True):
        yield from _walk((name,), column, lambda positions: positions)


def _walk(path: Path, values: pa.Array, rows: Rows) -> Iterator[Column]:
    if pt.is_null(values.type):
        return
    yield Column(path, values, rows)
    if pt.is_struct(values.type):
        for index, field in enumerate(values.type):
            yield from _walk((*path, field.name), values.field(index), rows)
    elif is_variable_list(values.type):
        offsets = values.offsets.to_numpy()
        yield from _walk(
            (*path, None), values.values, lambda at: rows(np.searchsorted(offsets, at, side="right") - 1)
        )
    elif pt.is_fixed_size_list(values.type):
        size = values.type.list_size
        yield from _walk((*path, None), values.values, lambda at: rows(at // size))
