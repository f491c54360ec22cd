"""Measures what a loader takes beside its epochs, each beside its bar: to the first batch, to open a store, in memory.

    python -m benchmarks.loader_costs [FOLDER] [--size 300MB] [--piles 50000] [--mix 1] [--rounds 5]

makes two stores in FOLDER, and removes them afterwards: one of so many bytes in piles of 8 MiB, and one of so many small
piles, each in two sets. Each round is a process of its own, page cache warm, after a first batch of another loader. Times are
medians. Memory is the highest peak above what the process held before, in a loop that waits 0.5 ms for each batch, as for a
model that trains: then threads load ahead. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import click
import numpy as np
import pyarrow as pa

import recshuf
from benchmarks.markdown import format_table
from benchmarks.option_types import SIZE
from benchmarks.stores import MOST_IN_MEMORY, make_batches, write_store
from recshuf.piles.kept.stored import StoredPiles
from recshuf.records.keys import MAX_PILES, sort_by_key

if TYPE_CHECKING:
    from collections.abc import Callable

BATCH = 256
RECORDS_OF_PILE = 4
FIRST_BATCH_SECONDS = 0.05
"""How much longer than one pile the first batch may take, with opening the store."""
OPENING_SECONDS = 0.1
AWAY_SECONDS = 0.0005
BESIDE_PILES = 30 * 10**6
"""Memory beside two piles for each that is mixed, and two more."""


class Round(NamedTuple):
    """What one process has measured."""

    first_seconds: float
    """From the call of `PileLoader` to the first batch."""
    pile_seconds: float
    """To read and order the first pile."""
    opening_seconds: float
    """Of the store of many piles."""
    peak_bytes: int
    largest_bytes: int
    """Of the largest pile."""


def write_piles(path: Path, count: int) -> None:
    """Write a store of so many piles in two sets."""
    for name in ("first", "second"):
        with recshuf.PileWriter(path, name, seed=1, piles=count) as writer:
            numbers = np.arange(count * RECORDS_OF_PILE)
            writer.write({"id": numbers, "text": pa.array(numbers).cast(pa.string())})


def measure_here(store: Path, many: Path, mix: int) -> Round:
    """Measure everything once in this process."""
    next(iter(recshuf.PileLoader(store, BATCH, mix=mix)))  # imports, and what is made on first use
    first = measure(lambda: next(iter(recshuf.PileLoader(store, BATCH))))
    piles = StoredPiles(store)
    pile = measure(lambda: load_pile(piles, 0))
    largest = int(piles.byte_counts.sum(axis=0).max())
    piles.close()
    opening = measure(lambda: recshuf.PileLoader(many, BATCH))
    return Round(first, pile, opening, measure_peak(store, mix), largest)


def measure(job: Callable[[], object]) -> float:
    """Run a job, and return the seconds that it took."""
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def load_pile(piles: StoredPiles, number: int) -> None:
    """Read a pile from all sets, check it and put it in order."""
    records = piles.load([(index, number) for index in range(len(piles.names))])
    if records is not None:
        records.take(sort_by_key(records.keys))


def measure_peak(store: Path, mix: int) -> int:
    """Load an epoch, and return the peak memory above what was held before."""
    loader = recshuf.PileLoader(store, BATCH, mix=mix)
    pa.default_memory_pool().release_unused()  # what the loaders before have left
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = read_status("VmRSS")
    for _ in loader:
        time.sleep(AWAY_SECONDS)
    return read_status("VmHWM") - before


def read_status(name: str) -> int:
    """Return bytes that the system tells about this process."""
    return int(Path("/proc/self/status").read_text().partition(f"{name}:")[2].split()[0]) * 1024


def measure_apart(store: Path, many: Path, mix: int) -> Round:
    """Measure everything once in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loader_costs", str(store), "--many", str(many)]
    done = subprocess.run([*command, "--mix", str(mix)], check=True, stdout=subprocess.PIPE, text=True)
    return Round(*json.loads(done.stdout))


def compare(rounds: list[Round], piles: int, mix: int) -> list[tuple[str, float, float, str]]:
    """Return name, figure, bar and unit of each cost."""
    pile, first, opening = (
        1000 * median(getattr(one, name) for one in rounds)
        for name in ("pile_seconds", "first_seconds", "opening_seconds")
    )
    peak, largest = (max(getattr(one, name) for one in rounds) for name in ("peak_bytes", "largest_bytes"))
    bar = 2 * largest * (mix + 1) + BESIDE_PILES
    return [
        (
            f"first batch, with opening; one pile takes {pile:.0f} ms",
            first,
            pile + 1000 * FIRST_BATCH_SECONDS,
            "ms",
        ),
        (f"opening a store of {piles:,} piles in two sets", opening, 1000 * OPENING_SECONDS, "ms"),
        (f"peak memory, mix={mix}, piles of {largest / 1e6:.1f} MB", peak / 1e6, bar / 1e6, "MB"),
    ]


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path), default=Path("build/benchmarks"))
@click.option("--size", type=SIZE, default="300MB", show_default=True, help="Bytes of the store.")
@click.option(
    "--piles",
    type=click.IntRange(1, MAX_PILES),
    default=50_000,
    show_default=True,
    help="Piles of the store that is only opened.",
)
@click.option("--mix", default=1, show_default=True, help="Piles that are mixed, for the memory.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Number of processes.")
@click.option("--many", type=click.Path(path_type=Path), hidden=True)
def main(folder: Path, size: int, piles: int, mix: int, rounds: int, many: Path | None) -> None:
    """Print the costs and their bars."""
    if many is not None:
        click.echo(json.dumps(measure_here(folder, many, mix)))
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="loader-costs-", dir=folder) as work:
        store, many = Path(work) / "store", Path(work) / "many"
        write_store(store, make_batches(min(size, MOST_IN_MEMORY)), size)
        write_piles(many, piles)
        found = compare([measure_apart(store, many, mix) for _ in range(rounds)], piles, mix)
    rows = [(name, f"{figure:.1f} {unit}", f"{bar:.1f} {unit}") for name, figure, bar, unit in found]
    click.echo(format_table(["cost", "measured", "at most"], rows))
    if any(figure > bar for _, figure, bar, _ in found):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
