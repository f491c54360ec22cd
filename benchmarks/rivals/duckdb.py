"""DuckDB: order by a random number, into one file by all threads; it spills where its memory limit makes it."""

from __future__ import annotations

from pathlib import Path

import duckdb

from benchmarks.rivals import read_job


def main() -> None:
    """Shuffle Parquet, JSONL or CSV files into a Parquet file."""
    job = read_job()
    output = job.output if job.output.endswith(".parquet") else f"{job.make_folder()}/part.parquet"
    connection = duckdb.connect(
        config={
            "memory_limit": f"{job.memory}B",
            "threads": job.workers,
            "temp_directory": job.temp,
            "preserve_insertion_order": False,
        }
    )
    readers = {".parquet": "read_parquet", ".csv": "read_csv"}
    reader = readers.get(Path(job.files[0]).suffix, "read_ndjson")
    connection.execute(
        f"COPY (SELECT * FROM {reader}({job.files}) ORDER BY random()) TO '{output}' "
        f"(FORMAT parquet, COMPRESSION {job.codec}, ROW_GROUP_SIZE {job.group_rows})"
    )


if __name__ == "__main__":
    main()
