"""pyarrow: read and write again in the same order, a process for each file; the floor of a shuffle."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet as pq

from benchmarks.rivals import Job, read_job

BLOCK_BYTES = 16 << 20
DICTIONARIES = ["label", "tags.list.element"]
"""Columns of the data where a dictionary pays; one for every column, as is the default, takes much longer."""


def main() -> None:
    """Rewrite Parquet, JSONL or CSV files as Parquet."""
    job = read_job()
    if job.output.endswith(".parquet"):
        rewrite_lines(job)
        return
    folder = job.make_folder()
    with ProcessPoolExecutor(job.workers, get_context("forkserver")) as pool:
        for _ in pool.map(partial(rewrite_table, job, folder), job.files):
            pass


def rewrite_table(job: Job, folder: Path, path: str) -> None:
    """Write the row groups of a file again."""
    options: dict[str, Any] = {"compression": job.codec, "use_dictionary": DICTIONARIES}
    copy = folder / Path(path).name
    with pq.ParquetFile(path) as file, pq.ParquetWriter(copy, file.schema_arrow, **options) as writer:
        for group in range(file.num_row_groups):
            writer.write_table(file.read_row_group(group, use_threads=False))


def rewrite_lines(job: Job) -> None:
    """Write JSONL or CSV as one Parquet file; pyarrow parses and writes on threads of its own."""
    pa.set_cpu_count(job.workers)
    with pa.input_stream(job.files[0], compression="detect") as stream:
        if job.files[0].endswith(".csv"):
            reader = pyarrow.csv.open_csv(stream, pyarrow.csv.ReadOptions(block_size=BLOCK_BYTES))
        else:
            reader = pyarrow.json.open_json(stream, pyarrow.json.ReadOptions(block_size=BLOCK_BYTES))
        with pq.ParquetWriter(job.output, reader.schema, compression=job.codec) as writer:
            for batch in reader:
                writer.write_batch(batch)


if __name__ == "__main__":
    main()
