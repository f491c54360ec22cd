"""polars: sample everything without replacement; in memory only."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import polars as pl

from benchmarks.rivals import read_job

if TYPE_CHECKING:
    from polars._typing import ParquetCompression


def main() -> None:
    """Shuffle Parquet or JSONL files into a Parquet file."""
    job = read_job()
    is_parquet = job.files[0].endswith(".parquet")
    output = job.output if job.output.endswith(".parquet") else job.make_folder() / "part.parquet"
    frame = (pl.scan_parquet if is_parquet else pl.scan_ndjson)(job.files).collect()
    shuffled = frame.sample(fraction=1, shuffle=True)
    codec = cast("ParquetCompression", job.codec)
    shuffled.write_parquet(output, compression=codec, row_group_size=job.group_rows)


if __name__ == "__main__":
    main()
