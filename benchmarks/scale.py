"""Measures a shuffle on a Ray cluster of this machine beside Ray Data's `random_shuffle`, as ratios of medians.

    python -m benchmarks.scale [FOLDER] [--size 2GB] [--format jsonl] [--rounds 3] [--nodes 2] [--store 300MB]

Both read and write the same files, take turns, and are warm: the cluster is up, the driver connected, and each has
shuffled a small set before. CPU seconds are those of the driver and of all processes of the cluster. FOLDER needs five
times the size; what is written there is removed afterwards.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import psutil
import pyarrow.parquet as pq
import ray
import ray.data
from ray.cluster_utils import Cluster

import recshuf
from benchmarks.data import make_data
from recshuf.system.units import format_size, parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SAMPLED_SECONDS = 0.2
_STORE_SHARE = 0.3  # Ray's default share of memory for its objects
_SMALL_BYTES = 50 << 20
_READ_BYTES = 1 << 20
_KINDS = {"parquet": "parquet", "jsonl": "lines140"}
"""Formats, and the data of `make_data` in each."""


class Cost(NamedTuple):
    """What a shuffle took."""

    seconds: float
    cpu_seconds: float


class CpuMeter:
    """The CPU seconds of this process and its descendants, those that have ended included."""

    def __init__(self) -> None:
        self._found: dict[tuple[int, float], float] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopped.wait(_SAMPLED_SECONDS):
            self.read()

    def read(self) -> float:
        """Return the CPU seconds so far."""
        me = psutil.Process()
        for one in [me, *me.children(recursive=True)]:
            with suppress(psutil.Error):
                times = one.cpu_times()
                self._found[one.pid, one.create_time()] = times.user + times.system
        return sum(self._found.values())

    def close(self) -> None:
        """Stop watching."""
        self._stopped.set()
        self._thread.join()


@contextmanager
def open_cluster(nodes: int, store_bytes: int) -> Iterator[str]:
    """Give the address of a cluster whose head runs no tasks, and each of whose nodes has one core.

    Parameters
    ----------
    store_bytes
        Memory of each node for Ray's objects.
    """
    head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": 100 << 20}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(nodes):
        cluster.add_node(num_cpus=1, object_store_memory=store_bytes)
    ray.init(cluster.address, logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield cluster.address
    finally:
        ray.shutdown()
        cluster.shutdown()


def make_shuffles(format_name: str, nodes: int) -> dict[str, Callable[[Path, Path], None]]:
    """Return the contenders: functions of a folder of inputs and a new folder."""

    def shuffle_by_tasks(inputs: Path, output: Path) -> None:
        recshuf.shuffle(inputs, f"{output}/", seed=7, shards=2 * nodes, memory="1GB", engine="ray")

    def shuffle_by_data(inputs: Path, output: Path) -> None:
        ray.data.DataContext.get_current().enable_progress_bars = False
        files = sorted(map(str, inputs.iterdir()))
        if format_name == "parquet":
            rows = ray.data.read_parquet(files).random_shuffle(seed=7)
            rows.write_parquet(str(output), compression="snappy")
        else:
            ray.data.read_json(files).random_shuffle(seed=7).write_json(str(output))

    return {"recshuf": shuffle_by_tasks, "Ray Data": shuffle_by_data}


def count_rows(folder: Path) -> int:
    """Return the number of rows in all files of a folder."""
    return sum(
        pq.read_metadata(path).num_rows if path.suffix == ".parquet" else count_lines(path)
        for path in folder.iterdir()
    )


def count_lines(path: Path) -> int:
    """Return the number of line ends in a file."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(_READ_BYTES), b""))


def measure(meter: CpuMeter, shuffle: Callable[[Path, Path], None], inputs: Path, output: Path) -> Cost:
    """Run a shuffle, check that no row is lost, and delete what it wrote."""
    cpu, started = meter.read(), time.perf_counter()
    shuffle(inputs, output)
    cost = Cost(time.perf_counter() - started, meter.read() - cpu)
    if count_rows(output) != count_rows(inputs):
        raise RuntimeError(f"{output}: rows are missing")
    shutil.rmtree(output)
    return cost


@click.command()
@click.argument("folder", type=click.Path(file_okay=False), required=False)
@click.option("--size", default="2GB", help="Size of the records. Default: 2GB.")
@click.option(
    "--format", "format_name", type=click.Choice(list(_KINDS)), default="parquet", show_default=True
)
@click.option("--rounds", default=3, help="Rounds of each. Default: 3.")
@click.option("--nodes", default=2, help="Nodes of one core each. Default: 2.")
@click.option(
    "--store", help="Memory of each node for Ray's objects. Default: a share of 30 % of what is free."
)
def main(folder: str | None, size: str, format_name: str, rounds: int, nodes: int, store: str | None) -> None:
    """Print the figures as JSON."""
    share = int(_STORE_SHARE * psutil.virtual_memory().available / nodes)
    store_bytes = share if store is None else parse_size(store)
    if folder is not None:
        Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="scale-") as work:
        found = run_rounds(Path(work), parse_size(size), format_name, rounds, nodes, store_bytes)
    print(json.dumps(found, indent=2))


def run_rounds(
    work: Path, size: int, format_name: str, rounds: int, nodes: int, store_bytes: int
) -> dict[str, Any]:
    """Return the figures of all rounds."""
    sets = {"small": work / "small", "large": work / "large"}
    for name, wanted in (("small", min(size, _SMALL_BYTES)), ("large", size)):
        make_data(_KINDS[format_name], wanted, sets[name])
    found: dict[str, list[Cost]] = {}
    meter = CpuMeter()
    with open_cluster(nodes, store_bytes):
        shuffles = make_shuffles(format_name, nodes)
        for one in shuffles.values():
            measure(meter, one, sets["small"], work / "warm")
        for _ in range(rounds):
            for name, one in shuffles.items():
                found.setdefault(name, []).append(measure(meter, one, sets["large"], work / "out"))
                print(name, found[name][-1], flush=True)
    meter.close()
    return summarise(found, sum(path.stat().st_size for path in sets["large"].iterdir()))


def summarise(found: dict[str, list[Cost]], byte_count: int) -> dict[str, Any]:
    """Return medians, and the ratios of Ray Data to recshuf."""
    middle = {
        name: Cost(median(one.seconds for one in costs), median(one.cpu_seconds for one in costs))
        for name, costs in found.items()
    }
    ours, theirs = middle["recshuf"], middle["Ray Data"]
    return {
        "input": format_size(byte_count),
        "medians": {name: cost._asdict() for name, cost in middle.items()},
        "rounds": {name: [cost._asdict() for cost in costs] for name, costs in found.items()},
        "wall ratio": theirs.seconds / ours.seconds,
        "CPU ratio": theirs.cpu_seconds / ours.cpu_seconds,
    }


if __name__ == "__main__":
    main()
