"""polars: sample everything without replacement; in memory only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

import polars as pl

from benchmarks.rivals import read_job

if TYPE_CHECKING:
    from polars._typing import ParquetCompression


def main() -> None:
    """Shuffle Parquet, JSONL or CSV files into a Parquet file."""
    job = read_job()
    scanners = {".parquet": pl.scan_parquet, ".csv": pl.scan_csv}
    scan = scanners.get(Path(job.files[0]).suffix, pl.scan_ndjson)
    output = job.output if job.output.endswith(".parquet") else job.make_folder() / "part.parquet"
    frame = scan(job.files).collect()
    shuffled = frame.sample(fraction=1, shuffle=True)
    codec = cast("ParquetCompression", job.codec)
    shuffled.write_parquet(output, compression=codec, row_group_size=job.group_rows)


if __name__ == "__main__":
    main()
