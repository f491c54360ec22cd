"""h5py: draw an order of all rows, read row after row in that order, and append them; a sample of some seconds."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from itertools import accumulate

import h5py
import numpy as np

from benchmarks.rivals import read_job
from benchmarks.rivals.copy_arrays import make_alike

SECONDS = 10


def main() -> None:
    """Shuffle HDF5 files into one, and print the share of the rows that was done."""
    job = read_job()
    inputs = [h5py.File(path) for path in job.files]
    names = list(inputs[0])
    bounds = list(accumulate(len(file[names[0]]) for file in inputs))
    order = np.random.default_rng(7).permutation(bounds[-1]).tolist()
    with h5py.File(job.make_folder() / "part.h5", "w") as file:
        outputs = {name: make_alike(file, name, inputs[0][name]) for name in names}
        started, cpu_started = time.perf_counter(), time.process_time()
        done = copy_rows(inputs, bounds, order, outputs)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu_started
    print(json.dumps({"share": done / bounds[-1], "seconds": seconds, "cpu_seconds": cpu_seconds}))


def copy_rows(
    inputs: list[h5py.File], bounds: list[int], order: list[int], outputs: dict[str, h5py.Dataset]
) -> int:
    """Copy rows in order for some seconds, as many as fit into an output alike, and return how many."""
    last = time.perf_counter() + SECONDS
    count = bounds[0]  # the outputs have the shape of the first input's datasets
    for place, row in enumerate(order[:count]):
        index = bisect_right(bounds, row)
        first = bounds[index - 1] if index else 0
        for name, output in outputs.items():
            output[place] = inputs[index][name][row - first]
        if time.perf_counter() > last:
            return place + 1
    return count


if __name__ == "__main__":
    main()
