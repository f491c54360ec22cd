"""What `recshuf verify` and `--verify` take beside the shuffle of the same data: CPU, ratio and peak memory, in turn.

    python -m benchmarks.verify FOLDER [--size 300MB] [--rounds 3] [--memory 1GB] [--case NAME]...

makes the data in FOLDER where they are missing. Each run is a process of its own.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.data import PARQUET_GROUP_ROWS, Rows, count_rows, cut_rows, make_data, make_table
from benchmarks.markdown import format_table
from benchmarks.measure import measure, summarise
from benchmarks.option_types import SIZE

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.measure import Usage

_HEADS = ["data", "shuffle CPU s", "verify", "ratio", "shuffle --verify adds", "ratio", "peak MB", "verify"]
_LIMIT_SECONDS = 900.0


def make_table_of_four(path: Path, size: int) -> None:
    """Write rows of an integer, a label, a float and a text."""
    rows = Rows(0, count_rows("parquet", size))
    names = ["id", "label", "value", "text"]
    with pq.ParquetWriter(path, make_table(rows, 0, 1).select(names).schema) as writer:
        for start, count in cut_rows(rows.row_count, PARQUET_GROUP_ROWS):
            writer.write_table(make_table(rows, start, count).select(names))


def make_texts(path: Path, _: int) -> None:
    """Write 10,000 rows of 1,000 texts, none of them twice in a column."""
    numbers = pa.array(np.arange(10_000_000) * 7919).cast(pa.string())
    pq.write_table(
        pa.table({f"c{column}": numbers[column::1000] for column in range(1000)}), path, row_group_size=2500
    )


def make_floats(path: Path, _: int) -> None:
    """Write 50 rows of 10,000 numbers."""
    numbers = np.random.default_rng(0).random((10_000, 50))
    pq.write_table(pa.table({f"c{column}": row for column, row in enumerate(numbers)}), path)


CASES: dict[str, tuple[str, Callable[[Path, int], object]]] = {
    "lines": (".jsonl", lambda path, size: make_data("lines140", size, path)),
    "documents": (".jsonl", lambda path, size: make_data("documents", size, path)),
    "parquet, 4 columns": (".parquet", make_table_of_four),
    "parquet, 1,000 texts": (".parquet", make_texts),
    "parquet, 10,000 floats": (".parquet", make_floats),
}


def run(folder: Path, *arguments: str | Path) -> Usage:
    command = [sys.executable, "-m", "recshuf", *map(str, arguments), "-q"]
    return measure(command, log=folder / "log", limit_seconds=_LIMIT_SECONDS)


def run_case(name: str, folder: Path, size: int, rounds: int, memory: int) -> list[str]:
    """Measure a case and return its row of the table."""
    suffix, make = CASES[name]
    data = folder / f"{name.replace(' ', '-').replace(',', '')}-{size}{suffix}"
    if not data.exists():
        make(data, size)
    options = ["--memory", str(memory), "--seed", "1", "--overwrite", "-o"]
    output = folder / f"shuffled{suffix}"
    taken: tuple[list[Usage], ...] = ([], [], [])
    for _ in range(rounds):
        taken[0].append(run(folder, data, *options, output))
        taken[1].append(run(folder, "verify", data, output, "--memory", str(memory)))
        taken[2].append(run(folder, data, *options, output, "--verify"))
    plain, verify, both = map(summarise, taken)
    base, added = plain.cpu_seconds, both.cpu_seconds - plain.cpu_seconds
    figures = base, verify.cpu_seconds, verify.cpu_seconds / base, added, added / base
    peaks = [f"{usage.peak_bytes / 1e6:.0f}" for usage in (plain, verify)]
    return [name, *(f"{figure:.2f}" for figure in figures), *peaks]


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path), default=Path("build/benchmarks/verify"))
@click.option("--size", type=SIZE, default="300MB", show_default=True, help="Data of the first three cases.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds per case.")
@click.option("--memory", type=SIZE, default="1GB", show_default=True, help="Memory limit.")
@click.option(
    "--case",
    "names",
    type=click.Choice(list(CASES)),
    multiple=True,
    help="Run this case only; repeatable. Default: all.",
)
def main(folder: Path, size: int, rounds: int, memory: int, names: tuple[str, ...]) -> None:
    """Print a row for each case."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name in names or CASES:
        rows.append(run_case(name, folder.resolve(), size, rounds, memory))
        print(*rows[-1], sep=" | ", flush=True)
    for path in folder.glob("shuffled*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    print(format_table(_HEADS, rows))


if __name__ == "__main__":
    main()
