"""Row groups of a Parquet file, and runs of them that are read in one go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recshuf.formats._parquet_file import OpenFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow.parquet as pq

    from recshuf.formats._parquet_footer import Footer


@dataclass(frozen=True, slots=True)
class Group:
    """One row group of one file."""

    footer: Footer
    metadata: pq.FileMetaData
    """The footer as it was read, shared by all of a file: it spares reading it again."""
    index: int
    first_row: int
    """Row of the file that is the first in here."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.footer.group_rows[self.index]

    @property
    def stored_bytes(self) -> int:
        """Bytes before compression, every column."""
        return self.footer.group_bytes[self.index]

    def open(self, int96_unit: str | None = None) -> OpenFile:
        """Open the file; the caller closes it."""
        unit = int96_unit or self.footer.int96_unit
        return OpenFile(self.footer.name, self.footer.path, metadata=self.metadata, int96_unit=unit)

    def place(self, row: int) -> str:
        """Return in words where a row of the group is."""
        return f"row group {self.index}, row {self.first_row + row}"


def list_groups(footer: Footer, metadata: pq.FileMetaData) -> Iterator[Group]:
    """Yield each row group that has rows."""
    first_row = 0
    for index, rows in enumerate(footer.group_rows):
        if rows:
            yield Group(footer, metadata, index, first_row)
        first_row += rows


def join_groups(groups: Iterable[Group], most_bytes: int) -> Iterator[list[Group]]:
    """Yield runs of row groups that have no more bytes before compression than that, or are one."""
    run: list[Group] = []
    run_bytes = 0
    for group in groups:
        if run and run_bytes + group.stored_bytes > most_bytes:
            yield run
            run, run_bytes = [], 0
        run.append(group)
        run_bytes += group.stored_bytes
    if run:
        yield run
