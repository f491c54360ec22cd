"""Row groups of a Parquet file, and runs of them that are read together."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats.parquet.metadata.file import OpenFile, explained

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow.parquet as pq

    from recshuf.formats.parquet.metadata.footer import Footer


class FileOpener:
    """Opens one file, in any thread. Its footer is read and checked the first time, and then reused."""

    def __init__(self, footer: Footer) -> None:
        self.footer = footer
        self._metadata: pq.FileMetaData | None = None
        self._lock = threading.Lock()

    def open(self) -> OpenFile:
        """Open the file; the caller closes it.

        Raises
        ------
        InputError
            When it cannot be read, or its footer has changed since the census.
        """
        with self._lock:
            if self._metadata is None:
                file = self._open()
                try:
                    self._check(file)
                except BaseException:
                    file.close()
                    raise
                self._metadata = file.metadata
                return file
        return self._open()

    def _open(self) -> OpenFile:
        footer = self.footer
        return OpenFile(footer.given, metadata=self._metadata, int96_unit=footer.int96_unit)

    def _check(self, file: OpenFile) -> None:
        with explained(file.name):
            metadata = file.metadata
            rows = tuple(metadata.row_group(index).num_rows for index in range(metadata.num_row_groups))
            if rows != self.footer.group_rows or not file.schema.equals(self.footer.schema):
                raise InputError(file.name, "was changed while it was being read")


@dataclass(frozen=True, slots=True)
class Group:
    """One row group of one file."""

    opener: FileOpener
    """Opener of its file."""
    index: int
    first_row: int
    """Row of the file that is the first of the group."""
    rows: int
    stored_bytes: int
    """Bytes before compression, every column."""

    @property
    def footer(self) -> Footer:
        """The footer of its file."""
        return self.opener.footer

    def place(self, row: int) -> str:
        """Return the position of a row of the group in words."""
        return f"row group {self.index}, row {self.first_row + row}"


def list_groups(opener: FileOpener) -> Iterator[Group]:
    """Yield each row group that has rows."""
    first_row = 0
    footer = opener.footer
    for index, (rows, stored_bytes) in enumerate(zip(footer.group_rows, footer.group_bytes, strict=True)):
        if rows:
            yield Group(opener, index, first_row, rows, stored_bytes)
        first_row += rows


def join_groups(groups: Iterable[Group], most_bytes: int) -> Iterator[list[Group]]:
    """Yield runs of row groups, each of one group or of at most so many bytes before compression."""
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
