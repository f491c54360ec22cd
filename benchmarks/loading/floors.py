"""What costs least: files read in order, and rows taken from memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.loading import BATCH, SEED
from benchmarks.loading.rows import view_batch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray


def name_file(folder: Path) -> Path:
    """Return the path of the Arrow file."""
    return folder / "rows.arrow"


def write(folder: Path, tables: list[pa.Table]) -> None:
    """Write the rows as one Arrow file."""
    folder.mkdir(parents=True, exist_ok=True)
    with pa.OSFile(str(name_file(folder)), "wb") as sink, pa.ipc.new_file(sink, tables[0].schema) as stream:
        for table in tables:
            stream.write_table(table, max_chunksize=8192)


def write_parquet(folder: Path, tables: list[pa.Table]) -> None:
    """Write each table as a Parquet file."""
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number:02}.parquet")


def load_ordered(folder: Path) -> Iterator[Any]:
    """Yield batches of the Arrow file in order."""
    with pa.memory_map(str(name_file(folder))) as source:
        file = pa.ipc.open_file(source)
        for number in range(file.num_record_batches):
            yield from cut(file.get_batch(number))


def load_parquet(folder: Path) -> Iterator[Any]:
    """Yield batches of the Parquet files in order."""
    import pyarrow.dataset as ds

    for records in ds.dataset(folder).to_batches(batch_size=8192):
        yield from cut(records)


def load_index(folder: Path) -> Iterator[Any]:
    """Yield batches of rows held in memory, by a random index."""
    with pa.memory_map(str(name_file(folder))) as source:
        table = pa.ipc.open_file(source).read_all()
    columns = [column.combine_chunks() for column in table.columns]
    index: NDArray[Any] = np.random.default_rng(SEED).permutation(table.num_rows)
    records = pa.RecordBatch.from_arrays(columns, schema=table.schema)
    for start in range(0, len(index), BATCH):
        yield view_batch(records.take(pa.array(index[start : start + BATCH])))


def cut(records: pa.RecordBatch) -> Iterator[Any]:
    """Yield the batches of a record batch."""
    for start in range(0, records.num_rows, BATCH):
        yield view_batch(records.slice(start, BATCH))
