"""Shuffles tables of very many columns, and reads and writes them with pyarrow, in turn; prints CPU seconds.

    python -m benchmarks.wide [--rounds 3] [--small] [CASE...]

Both are whole processes, so the start of the interpreter is in the figures. JSONL is written by the module json.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq

from benchmarks.markdown import format_table
from benchmarks.measure import measure

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LIMIT_SECONDS = 600.0
HEADS = ["case", "columns", "rows", "recshuf s", "pyarrow s", "recshuf / pyarrow", "bar"]
PARQUET = "import sys, pyarrow.parquet as p; p.write_table(p.read_table(sys.argv[1]), sys.argv[2])"
CSV = "import sys, pyarrow.csv as c; c.write_csv(c.read_csv(sys.argv[1]), sys.argv[2])"
CSV_TABLE = (
    "import sys, pyarrow.csv as c, pyarrow.parquet as p; p.write_table(c.read_csv(sys.argv[1]), sys.argv[2])"
)
JSONL = """import json, sys, pyarrow.json as j
with open(sys.argv[2], "w") as out: out.writelines(json.dumps(row) + "\\n" for row in j.read_json(sys.argv[1]).to_pylist())"""
JSONL_TABLE = "import sys, pyarrow.json as j, pyarrow.parquet as p; p.write_table(j.read_json(sys.argv[1]), sys.argv[2])"


@dataclass(frozen=True, slots=True)
class Case:
    """A table of a format, and how it is copied."""

    columns: int
    rows: int
    suffix: str
    write: Callable[[pa.Table, Path], object]
    copy: str
    """A program that gets the paths of input and output."""
    bar: float
    """Most times the CPU of the copy that a shuffle should take."""
    target: str = ""
    """Suffix of the output, if it is another one."""


def make_table(columns: int, rows: int) -> pa.Table:
    """Return numbers, text of few values and booleans, in turn."""
    chance = np.random.default_rng(0)
    kinds: list[Callable[[], Any]] = [
        lambda: chance.integers(0, 1000, rows),
        lambda: chance.random(rows),
        lambda: pa.array([f"text {value}" for value in chance.integers(0, 50, rows)]),
        lambda: chance.random(rows) < 0.5,
    ]
    return pa.table({f"column_{index}": kinds[index % 4]() for index in range(columns)})


def write_json(table: pa.Table, path: Path) -> None:
    """Write an object a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


CASES = {
    "parquet": Case(5_000, 200, ".parquet", pq.write_table, PARQUET, 3),
    "parquet, wider": Case(10_000, 50, ".parquet", pq.write_table, PARQUET, 3),
    "csv": Case(5_000, 200, ".csv", pc.write_csv, CSV, 3),
    "csv to parquet": Case(5_000, 200, ".csv", pc.write_csv, CSV_TABLE, 3, ".parquet"),
    "jsonl": Case(2_000, 100, ".jsonl", write_json, JSONL, 2),
    "jsonl to parquet": Case(2_000, 100, ".jsonl", write_json, JSONL_TABLE, 2, ".parquet"),
}
"""The tables, by name."""


def time_in_turn(commands: Sequence[Sequence[str]], out: Path, rounds: int) -> list[float]:
    """Return the median of the CPU seconds of each command, which writes a file anew."""
    seconds: list[list[float]] = [[] for _ in commands]
    for _ in range(rounds + 1):
        for each, command in zip(seconds, commands, strict=True):
            out.unlink(missing_ok=True)
            usage = measure(command, log=out.with_suffix(".log"), limit_seconds=LIMIT_SECONDS)
            each.append(usage.cpu_seconds)
    return [median(each[1:]) for each in seconds]  # the first round compiles modules


def run(name: str, case: Case, folder: Path, rounds: int) -> list[str]:
    """Return the row of a case."""
    path, out = folder / f"in{case.suffix}", folder / f"out{case.target or case.suffix}"
    case.write(make_table(case.columns, case.rows), path)
    shuffle = [sys.executable, "-m", "recshuf", str(path), "-o", str(out), "--seed", "1", "-q"]
    ours, theirs = time_in_turn(
        [shuffle, [sys.executable, "-c", case.copy, str(path), str(out)]], out, rounds
    )
    shown = [name, f"{case.columns:,}", f"{case.rows:,}", f"{ours:.2f}", f"{theirs:.2f}"]
    return [*shown, f"{ours / theirs:.2f}", f"{case.bar:g}"]


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("names", nargs=-1, metavar="[CASE]...")
@click.option("--rounds", default=3, metavar="N", show_default=True, help="Rounds; the median counts.")
@click.option("--small", is_flag=True, help="One round, of a fiftieth of the columns.")
def main(names: tuple[str, ...], rounds: int, small: bool) -> None:
    """Print a table."""
    shown: list[list[str]] = []
    for name in names or CASES:
        if name not in CASES:
            raise click.BadParameter(f"{name}: choose among {', '.join(CASES)}")
        case = CASES[name]
        if small:
            case, rounds = replace(case, columns=case.columns // 50), 1
        with tempfile.TemporaryDirectory() as folder:
            shown.append(run(name, case, Path(folder), rounds))
    print(format_table(HEADS, shown))


if __name__ == "__main__":
    main()
