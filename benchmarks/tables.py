"""Shuffles a table in memory with `recshuf.stream` and with what people use instead, in turn; prints CPU seconds.

    python -m benchmarks.tables [--rows 1000000] [--rounds 7] [--datasets]

The table has whole numbers, floats, small numbers and short strings. `take` gets a permutation that is drawn before. Hugging
Face is slow, and takes part once if it is asked for.
"""

from __future__ import annotations

import gc
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa

import recshuf
from benchmarks.markdown import format_table

if TYPE_CHECKING:
    from collections.abc import Callable


def make_table(rows: int) -> pa.Table:
    """Return the table."""
    chance = np.random.default_rng(0)
    return pa.table(
        {
            "number": chance.integers(0, 1 << 40, rows),
            "float": chance.random(rows),
            "small": chance.integers(0, 100, rows),
            "text": pa.array([f"row {row}" for row in range(rows)]),
        }
    )


def choose_shufflers(table: pa.Table) -> dict[str, Callable[[], object]]:
    """Return what shuffles the table once, by name; only what is installed."""
    order = pa.array(np.random.default_rng(1).permutation(len(table)))
    shufflers: dict[str, Callable[[], object]] = {
        "table.take(permutation)": lambda: table.take(order),
        "recshuf.stream": lambda: sum(batch.num_rows for batch in recshuf.stream(table, seed=1)),
    }
    try:
        import polars
    except ImportError:
        return shufflers
    frame: Any = polars.from_arrow(table)
    return shufflers | {"polars, sample": lambda: frame.sample(fraction=1, shuffle=True)}


def measure(shuffle: Callable[[], object]) -> float:
    """Return the CPU seconds of one shuffle, in all threads."""
    gc.collect()
    begin = time.process_time()
    shuffle()
    return time.process_time() - begin


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.option("--rows", default=1_000_000, show_default=True, help="Rows of the table.")
@click.option("--rounds", default=7, show_default=True, help="Rounds; the least counts.")
@click.option("--datasets", is_flag=True, help="Also shuffle and flatten a data set of Hugging Face, once.")
def main(rows: int, rounds: int, datasets: bool) -> None:
    """Print a line for each shuffler."""
    table, seconds = make_table(rows), defaultdict[str, list[float]](list)
    shufflers = choose_shufflers(table)
    for _ in range(rounds):
        for name, shuffle in shufflers.items():
            seconds[name].append(measure(shuffle))
    if datasets:
        from datasets import Dataset

        held = Dataset(table)
        seconds["datasets, shuffle and flatten_indices"].append(
            measure(lambda: held.shuffle(seed=1).flatten_indices(keep_in_memory=True))
        )
    least = {name: min(each) for name, each in seconds.items()}
    base = least["table.take(permutation)"]
    rows_shown = [[name, f"{each:.3f}", f"{each / base:.2f}"] for name, each in least.items()]
    print(format_table(["", "CPU seconds", "of take"], rows_shown))


if __name__ == "__main__":
    main()
