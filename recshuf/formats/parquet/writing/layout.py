"""Properties of Parquet inputs that shards keep: codecs, dictionaries, row-group size, declared schema."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from recshuf.formats.parquet.metadata.page_checks import PageClaims

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.formats.parquet.metadata.file import OpenFile
    from recshuf.formats.parquet.metadata.footer import Footer
    from recshuf.formats.parquet.reading.sample import LeafStorage

ROW_GROUP_BYTES = 1 << 26
"""Most Arrow data in a row group."""
_LEAST_GROUP_BYTES = 1 << 20
"""Least Arrow data in a row group: a smaller one takes longer to open than to read, and its footer entry is as large."""
ROW_GROUP_ROWS = 1 << 20
"""Most rows in a row group, unless the inputs have more."""
SINK_FACTOR = 2.5
"""Memory of writing rows, as a multiple of their Arrow data."""
SINK_BYTES = int(SINK_FACTOR * ROW_GROUP_BYTES)
"""Most memory of writing a row group."""


@dataclass(frozen=True, slots=True)
class ParquetLayout:
    """How the inputs are stored."""

    schema: pa.Schema
    """The declared schema, dictionaries and views included, which shards declare again."""
    storage: tuple[tuple[LeafStorage, ...], ...]
    """For each column of `schema` its Parquet columns, as the first input with rows stores them; empty for
    a column that it lacks."""
    row_group_rows: int
    """Rows of each row group but the last of a shard."""
    sink_bytes: int
    """Memory of collecting and writing such a row group."""
    categories: dict[int, pa.Array]
    """For each column of an ordered dictionary type its values, in their order."""


def choose_row_group_rows(footers: Sequence[Footer], least: int, most: int) -> int:
    """Return the rows of a row group of the shards, from `least` to `most`.

    The largest row group counts only if some input has several: otherwise its size is that of the data.
    """
    chosen = [max(footer.group_rows) for footer in footers if len(footer.group_rows) > 1]
    if chosen:
        return min(max(*chosen, least), most)
    single = max((footer.row_count for footer in footers), default=0)
    return min(max(single, ROW_GROUP_ROWS), most)


@dataclass(frozen=True, slots=True)
class RowCost:
    """Memory of a row until it is written, in bytes.

    A row group is held twice while its columns are made contiguous. The writer adds scratch space for one column: levels
    for each value, and values of another width than in Arrow.
    """

    row_bytes: float
    scratch_bytes: float

    @property
    def sink_bytes(self) -> float:
        """Peak memory of a row."""
        return 2 * self.row_bytes + self.scratch_bytes

    def least_rows(self) -> int:
        """Return the rows of `_LEAST_GROUP_BYTES`."""
        return math.ceil(_LEAST_GROUP_BYTES / max(1, self.row_bytes))

    def most_rows(self) -> int:
        """Return the rows of a row group within `ROW_GROUP_BYTES` and `SINK_BYTES`."""
        return max(
            1, int(min(ROW_GROUP_BYTES / max(1, self.row_bytes), SINK_BYTES / max(1, self.sink_bytes)))
        )


class CategoryOrder:
    """The values of an ordered dictionary over all inputs, by first appearance."""

    def __init__(self, value_type: pa.DataType) -> None:
        self._values = pa.array([], value_type)

    @property
    def values(self) -> pa.Array:
        """The values seen so far, each once."""
        return self._values

    def add(self, file: OpenFile, footer: Footer, column: int, memory_bytes: int | None) -> None:
        """Add the dictionaries of one column of a file, one per row group, within the memory limit of the run."""
        for group, rows in enumerate(footer.group_rows):
            if rows:
                PageClaims(file, [group], footer.leaves([column]), memory_bytes)
                batch = next(file.batches([group], footer.leaves([column]), 1))
                self._merge(batch.column(0).dictionary)

    def _merge(self, dictionary: pa.Array) -> None:
        if not dictionary.equals(self._values):
            chunks = [self._values, dictionary.cast(self._values.type).drop_null()]
            self._values = pa.chunked_array(chunks).unique()
