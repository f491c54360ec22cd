"""Row groups of one Parquet file that follow each other, to be read as one."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING

from recshuf.formats._parquet_file import OpenFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    import pyarrow.parquet as pq

    from recshuf.formats._parquet_footer import Footer


@dataclass(frozen=True)
class GroupRun:
    """Row groups that have rows, with none that has between them; `metadata` spares reading the footer again."""

    footer: Footer
    metadata: pq.FileMetaData
    groups: tuple[int, ...]
    """Their indices, at least one."""
    first_row: int
    """Row of the file that the first one begins with."""

    @cached_property
    def _ends(self) -> list[int]:
        """Rows up to the end of each row group."""
        return list(accumulate(self.footer.group_rows[group] for group in self.groups))

    @property
    def row_count(self) -> int:
        """Rows of all of them, by the footer."""
        return self._ends[-1]

    @property
    def name(self) -> str:
        """The file as messages show it."""
        return self.footer.name

    def open(self, int96_unit: str | None = None) -> OpenFile:
        """Open the file; the caller closes it."""
        unit = int96_unit or self.footer.int96_unit
        return OpenFile(self.footer.name, self.footer.path, metadata=self.metadata, int96_unit=unit)

    def batches(self, file: OpenFile, columns: Sequence[int], rows: int) -> Iterator[pa.RecordBatch]:
        """Yield these Arrow columns, `rows` rows at a time whichever row group they are of; see `OpenFile.batches`."""
        return file.batches(self.groups, self.footer.leaves(columns), rows)

    def place(self, row: int) -> str:
        """Return how messages name a row of the run."""
        group = self.groups[min(bisect_right(self._ends, row), len(self.groups) - 1)]
        return f"row group {group}, row {self.first_row + row}"

    def singles(self) -> Iterator[GroupRun]:
        """Yield each row group as a run."""
        first_row = self.first_row
        for group, end in zip(self.groups, self._ends, strict=True):
            yield GroupRun(self.footer, self.metadata, (group,), first_row)
            first_row = self.first_row + end


def cut_runs(footer: Footer, metadata: pq.FileMetaData, most_bytes: int) -> Iterator[GroupRun]:
    """Yield runs that cover a file, each of no more bytes before compression than that, or of one row group."""
    groups: list[int] = []
    held_bytes = first_row = next_row = 0
    for group, (rows, size) in enumerate(zip(footer.group_rows, footer.group_bytes, strict=True)):
        if not rows:
            continue
        if groups and held_bytes + size > most_bytes:
            yield GroupRun(footer, metadata, tuple(groups), first_row)
            groups, held_bytes, first_row = [], 0, next_row
        groups.append(group)
        held_bytes += size
        next_row += rows
    if groups:
        yield GroupRun(footer, metadata, tuple(groups), first_row)
