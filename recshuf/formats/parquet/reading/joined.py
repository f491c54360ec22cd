"""Small Parquet files, read one after the other into one batch: handling each alone would take longer than decoding it."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from recshuf.errors import InputError
from recshuf.formats.parquet.metadata.file import explained
from recshuf.formats.parquet.reading.fragment import Pace, read_run
from recshuf.formats.parquet.reading.groups import FileOpener, list_groups
from recshuf.interfaces import Joined
from recshuf.records.batch import concat_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.formats.parquet.metadata.footer import Footer
    from recshuf.formats.parquet.reading.fragment import BatchLimits
    from recshuf.formats.parquet.reading.projection import Projection


def read_files(footers: Sequence[Footer], columns: Projection, limits: BatchLimits) -> Joined | None:
    """Return the records of the first files, as many as fit a block and are read without error; None if there are none.

    Parameters
    ----------
    footers
        Footers of the files, all with the same schema.
    """
    if not columns.is_countable:
        return None
    reader = _FileReader(columns, limits)
    batches: list[pa.RecordBatch] = []
    rows: list[int] = []
    with suppress(InputError):
        for footer in footers:
            if (read := reader.read(footer)) is None:
                break
            batches += read
            rows.append(footer.row_count)
    return Joined(concat_batches(batches), rows) if batches else None


class _FileReader:
    """Reads files one after the other, at most a block in total."""

    def __init__(self, columns: Projection, limits: BatchLimits) -> None:
        self._columns = columns
        self._limits = limits
        self._room = limits.block_bytes
        self._pace: Pace | None = None

    def read(self, footer: Footer) -> list[pa.RecordBatch] | None:
        """Return the rows of a file; None if they do not fit.

        Raises
        ------
        InputError
            When they cannot be read.
        """
        batches: list[pa.RecordBatch] = []
        if not footer.row_count:
            return batches
        opener = FileOpener(footer)
        groups = list(list_groups(opener))
        pace = self._pace = self._pace or Pace(groups[0], self._room)
        with opener.open() as file, explained(footer.name):
            for stored in read_run(file, groups, self._columns, pace, self._limits.page_bytes):
                batch = self._columns.conform(stored, sum(batch.num_rows for batch in batches))
                size = batch.get_total_buffer_size()
                self._room -= size
                if self._room < 0:
                    return None
                batches.append(batch)
                pace.learn(batch.num_rows, size)
        return batches
