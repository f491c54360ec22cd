"""Daft: its own shuffle on the native runner."""

from __future__ import annotations

import os

import daft

from benchmarks.rivals import read_job


def main() -> None:
    """Shuffle Parquet files."""
    job = read_job()
    daft.set_runner_native(num_threads=job.workers)
    daft.read_parquet(job.files).shuffle().write_parquet(job.output, compression=job.codec)
    os._exit(0)  # its threads crash now and then when the interpreter ends


if __name__ == "__main__":
    main()
