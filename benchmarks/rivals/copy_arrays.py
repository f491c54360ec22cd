"""h5py: copy every dataset chunk by chunk with the same filters, in the same order.

A process for each file, or with ``--serial`` as second argument one after the other in this process.
"""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import h5py

from benchmarks.rivals import read_job


def main() -> None:
    """Copy HDF5 files."""
    job = read_job()
    copy = partial(copy_file, job.make_folder())
    if "--serial" in sys.argv:
        for path in job.files:
            copy(path)
        return
    with ProcessPoolExecutor(job.workers, get_context("forkserver")) as pool:
        for _ in pool.map(copy, job.files):
            pass


def copy_file(folder: Path, path: str) -> None:
    """Copy the datasets of a file."""
    with h5py.File(path) as file, h5py.File(folder / Path(path).name, "w") as copy:
        for name, given in file.items():
            copy_dataset(given, make_alike(copy, name, given))


def make_alike(file: h5py.File, name: str, given: h5py.Dataset) -> h5py.Dataset:
    """Make a dataset of the same shape, type, chunks and filters."""
    filters = {"compression": given.compression, "compression_opts": given.compression_opts}
    return file.create_dataset(name, given.shape, given.dtype, chunks=given.chunks, **filters)


def copy_dataset(given: h5py.Dataset, copy: h5py.Dataset) -> None:
    """Copy chunk by chunk, or at once where there are no chunks."""
    if given.chunks is None:
        copy[...] = given[...]
        return
    for place in given.iter_chunks():
        copy[place] = given[place]


if __name__ == "__main__":
    main()
