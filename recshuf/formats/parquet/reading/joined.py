"""Small Parquet files, read one behind the other into one batch.

What it takes to find out that a batch is sound, and to pass it on, would be more than to read the rows of such a file.
"""

from __future__ import annotations

from contextlib import suppress
from operator import is_
from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import InputError
from recshuf.formats.parquet.metadata.entries import EntryCount
from recshuf.formats.parquet.metadata.file import explained
from recshuf.formats.parquet.metadata.page_checks import check_pages
from recshuf.formats.parquet.reading.fragment import Pace
from recshuf.formats.parquet.reading.groups import Opener, list_groups
from recshuf.interfaces import Joined
from recshuf.records.batch import concat_batches

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from threading import Lock

    import pyarrow as pa

    from recshuf.formats.parquet.metadata.footer import Footer
    from recshuf.formats.parquet.reading.projection import Projection


class _File(NamedTuple):
    """What was read of one file."""

    stored: list[pa.RecordBatch]
    batches: list[pa.RecordBatch]
    """The same in the schema of the run."""
    group_rows: list[int]
    claims: list[list[int]]
    """For each row group how many values the footer claims for each column."""


def read_files(footers: Sequence[Footer], columns: Projection, block_bytes: int, turn: Lock) -> Joined | None:
    """Return the records of the first files, as many as fit a block and are read without an error; None for none.

    It ends before one that holds INT96 times, which `ParquetFragment` reads twice.

    Parameters
    ----------
    footers
        What the census found in each file, all with the same schema.
    turn
        Held but for the decoding: what else a file takes is many short calls, between which threads would wake each
        other for the interpreter.
    """
    if not columns.is_countable:
        return None
    reader = _Reader(columns, block_bytes, turn)
    files: list[_File] = []
    with suppress(InputError), turn:
        for footer in footers:
            if footer.int96_columns or (file := reader.read(footer)) is None:
                break
            files.append(file)
    return _join(files, columns)


class _Reader:
    """Reads files one after the other, no more of all together than fits a block."""

    def __init__(self, columns: Projection, block_bytes: int, turn: Lock) -> None:
        self._columns = columns
        self._turn = turn
        self._room = block_bytes
        self._pace: Pace | None = None

    def read(self, footer: Footer) -> _File | None:
        """Return the rows of a file; None where they do not fit, or are more or fewer than its footer says.

        Raises
        ------
        InputError
            When they cannot be read.
        """
        opener = Opener(footer)
        groups = list(list_groups(opener))
        file = _File([], [], [group.rows for group in groups], [])
        if not groups:
            return file
        if self._pace is None:
            self._pace = Pace(groups[0], self._room)
        indices = [group.index for group in groups]
        with opener.open() as opened, explained(footer.name):
            batches = opened.batches(indices, self._columns.leaves, self._pace.rows)
            for stored in self._give_turn(batches):
                batch = self._columns.conform(stored)
                size = batch.get_total_buffer_size()
                self._room -= size
                if self._room < 0:
                    return None
                file.stored.append(stored)
                file.batches.append(batch)
                self._pace.learn(batch.num_rows, size)
                opened.set_batch_rows(self._pace.rows)
            if sum(batch.num_rows for batch in file.batches) != footer.row_count:
                return None
            file.claims.extend(check_pages(opened, indices, self._columns.leaves))
        return file

    def _give_turn(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield batches, each decoded while another thread has the turn."""
        while True:
            self._turn.release()
            try:
                batch = next(batches, None)
            finally:
                self._turn.acquire()
            if batch is None:
                return
            yield batch


def _join(files: list[_File], columns: Projection) -> Joined | None:
    """Return all rows as one batch; None where there are none, or have another number of entries than they should."""
    batches = [batch for file in files for batch in file.batches]
    if not batches:
        return None
    batch = concat_batches(batches)
    stored = [batch for file in files for batch in file.stored]
    is_plain = all(map(is_, stored, batches))
    entries = EntryCount([rows for file in files for rows in file.group_rows], columns.kinds)
    for part in [batch] if is_plain else stored:
        entries.add(part)
    claims = [claim for file in files for claim in file.claims]
    if any(entries.of(index) != claim for index, claim in enumerate(claims)):
        return None
    return Joined(batch, [sum(file.group_rows) for file in files])
