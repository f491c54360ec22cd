"""Ray Data: its random_shuffle on one machine."""

from __future__ import annotations

import logging

import ray
import ray.data

from benchmarks.rivals import read_job


def main() -> None:
    """Shuffle Parquet files."""
    job = read_job()
    ray.init(
        num_cpus=job.workers,
        object_store_memory=max(job.memory, 1 << 27),
        object_spilling_directory=job.temp,
        include_dashboard=False,
        logging_level=logging.ERROR,
        log_to_driver=False,
    )
    ray.data.DataContext.get_current().enable_progress_bars = False
    shuffled = ray.data.read_parquet(job.files).random_shuffle(seed=7)
    shuffled.write_parquet(job.output, compression=job.codec, row_group_size=job.group_rows)


if __name__ == "__main__":
    main()
