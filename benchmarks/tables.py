"""Shuffles tables in memory with `recshuf.stream` and with what people use instead, in turn; prints CPU seconds.

    python -m benchmarks.tables [--size 200MB] [--rounds 5] [--datasets]

One table has whole numbers, floats and small numbers, another short strings besides. `take` gets a permutation that is drawn
before. Hugging Face is slow, and takes part once if it is asked for.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa

import recshuf
from benchmarks.formats import has
from benchmarks.markdown import format_table
from recshuf.system.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable

TAKE = "table.take(permutation)"


def make_table(rows: int, *, with_text: bool = True) -> pa.Table:
    """Return a table, of about 24 or 38 bytes a row."""
    chance = np.random.default_rng(0)
    numbers = {
        "number": chance.integers(0, 1 << 40, rows),
        "float": chance.random(rows),
        "small": chance.integers(0, 100, rows),
    }
    return pa.table(numbers | ({"text": [f"row {row}" for row in range(rows)]} if with_text else {}))


def choose_shufflers(table: pa.Table) -> dict[str, Callable[[], object]]:
    """Return what shuffles the table once, by name; only what is installed."""
    order = pa.array(np.random.default_rng(1).permutation(len(table)))
    shufflers: dict[str, Callable[[], object]] = {
        TAKE: lambda: table.take(order),
        "recshuf.stream": lambda: sum(batch.num_rows for batch in recshuf.stream(table, seed=1)),
    }
    if not has("polars"):
        click.echo("polars is not installed", err=True)
        return shufflers
    frame: Any = import_module("polars").from_arrow(table)
    return shufflers | {"polars, sample": lambda: frame.sample(fraction=1, shuffle=True)}


def measure(shuffle: Callable[[], object]) -> float:
    """Return the CPU seconds of one shuffle, in all threads."""
    gc.collect()
    begin = time.process_time()
    shuffle()
    return time.process_time() - begin


def run(name: str, table: pa.Table, rounds: int, *, datasets: bool) -> list[list[str]]:
    """Return a row for each shuffler of a table."""
    shufflers, seconds = choose_shufflers(table), defaultdict[str, list[float]](list)
    for _ in range(rounds):
        for by, shuffle in shufflers.items():
            seconds[by].append(measure(shuffle))
    if datasets:
        held = import_module("datasets").Dataset(table)
        flatten = lambda: held.shuffle(seed=1).flatten_indices(keep_in_memory=True)  # noqa: E731
        seconds["datasets, shuffle and flatten_indices"].append(measure(flatten))
    least = {by: min(each) for by, each in seconds.items()}
    rows, size = f"{len(table):,}", f"{table.nbytes / 1e6:.1f}"
    return [[name, rows, size, by, f"{each:.3f}", f"{each / least[TAKE]:.2f}"] for by, each in least.items()]


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--size", default="200MB", metavar="SIZE", show_default=True, help="Size of each table.")
@click.option("--rounds", default=5, metavar="N", show_default=True, help="Rounds; the least counts.")
@click.option("--datasets", is_flag=True, help="Also shuffle and flatten a data set of Hugging Face, once.")
def main(size: str, rounds: int, datasets: bool) -> None:
    """Print a table."""
    shown = []
    for name, row_bytes in (("numbers", 24), ("numbers and text", 38)):
        table = make_table(parse_size(size) // row_bytes, with_text=row_bytes > 24)
        shown += run(name, table, rounds, datasets=datasets)
    print(format_table(["columns", "records", "MB", "shuffled by", "CPU seconds", "of take"], shown))


if __name__ == "__main__":
    main()
