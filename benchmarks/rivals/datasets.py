"""Hugging Face datasets: shuffle the indices, gather the rows in that order, write."""

from __future__ import annotations

import os

from benchmarks.rivals import read_job


def main() -> None:
    """Shuffle Parquet files into one; it chooses the codec itself, which is snappy."""
    job = read_job()
    os.environ |= {"HF_HOME": job.temp, "HF_HUB_OFFLINE": "1"}
    import datasets  # reads the place of its cache when it is imported

    datasets.disable_progress_bars()
    workers = min(job.workers, len(job.files))
    given = datasets.load_dataset("parquet", data_files=job.files, split="train", num_proc=workers)
    gathered = given.shuffle(seed=7).flatten_indices(num_proc=job.workers)
    output = job.make_folder() / "part.parquet"
    gathered.to_parquet(output, batch_size=job.group_rows, use_content_defined_chunking=False)


if __name__ == "__main__":
    main()
