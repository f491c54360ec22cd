"""Measures recshuf over data sizes, cores, and numbers of files, shards, piles and row groups; writes a table and a chart.

    python -m benchmarks.growth [FOLDER] [--most 16GB] [--size 1GB] [--rounds 3] [--part NAME]...

makes the data in FOLDER, which needs up to four times the largest size, and removes it afterwards. Figures are medians, in
seconds per GB of data before compression. It writes growth.json, growth.png and growth-figures.md.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmarks.cases import (
    CASES,
    CAT,
    HDF5,
    LINES,
    PARQUET,
    REWRITE,
    TERASHUF,
    TEXT,
    Case,
    Contender,
    Data,
    name_recshuf,
)
from benchmarks.data import FILE_BYTES, count_rows
from benchmarks.markdown import format_circumstances, format_ratio, format_table
from benchmarks.option_types import SIZE
from benchmarks.report import make_contender, make_head, save_report
from benchmarks.suite import Settings, Trial, run_in_turn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.suite import CaseResult

NAMED = {case.name: case for case in CASES}
LINES_CASE, TABLE_CASE = NAMED["lines at 256 MB"], NAMED["Parquet at 512 MB"]
CORE_CASES = {
    "lines in memory": TEXT,
    "lines at 256 MB": TEXT,
    "Parquet at 512 MB": PARQUET,
    "HDF5 gzip at 512 MB": HDF5,
}
SIZES = (10**8, 250 * 10**6, 500 * 10**6, *(10**9 << power for power in range(10)))
DATA_TO_MEMORY = 16
LEAST_MEMORY = 64_000_000
FILES, SHARDS, PILES = 10_000, 1000, 4096
LARGE_GROUP_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Step:
    """A point of a series."""

    part: str
    series: str
    name: str
    place: float
    """Position on the axis: bytes or cores."""
    case: Case
    contenders: tuple[Contender, ...]
    size: int
    cores: int


def plan_sizes(series: str, case: Case, contenders: tuple[Contender, ...], most: int) -> Iterator[Step]:
    """Yield a step for each size; memory is a fixed share of it, but at least `LEAST_MEMORY`."""
    for size in (size for size in SIZES if size <= most):
        memory = max(LEAST_MEMORY, size // DATA_TO_MEMORY)
        limited = replace(case, memory=memory)
        name = f"{size / 1e9:g} GB at {memory / 1e6:.0f} MB"
        yield Step("sizes", series, name, size, limited, contenders, size, len(os.sched_getaffinity(0)))


def plan_cores(size: int) -> Iterator[Step]:
    """Yield a step for each number of cores, up to all."""
    for series, contender in CORE_CASES.items():
        for cores in range(1, len(os.sched_getaffinity(0)) + 1):
            yield Step("cores", series, f"{cores}", cores, NAMED[series], (contender,), size, cores)


def plan_shapes(size: int, groups: int) -> Iterator[Step]:
    """Yield a step for each shape of input, output and plan; the first of a series is its reference."""
    cores = len(os.sched_getaffinity(0))
    small_files = ("--file-bytes", str(size // FILES))
    files = Data(LINES.kind, options=small_files)
    rows = max(1, count_rows("parquet", size) // groups)
    many, large = (
        replace(TABLE_CASE.data, options=("--group-rows", str(count))) for count in (rows, LARGE_GROUP_ROWS)
    )
    shards = -(-size // FILE_BYTES)
    shapes = [
        ("one file into one", LINES_CASE, TEXT),
        (f"{FILES:,} files into one", replace(LINES_CASE, data=files), name_recshuf("--format", "jsonl")),
        (
            f"into {SHARDS:,} shards",
            replace(LINES_CASE, output="out/"),
            name_recshuf("--shards", str(SHARDS)),
        ),
        (f"{PILES:,} piles", LINES_CASE, name_recshuf("--piles", str(PILES))),
        ("row groups of 50,000", TABLE_CASE, PARQUET),
        (f"{groups:,} row groups", replace(TABLE_CASE, data=many), PARQUET),
        (f"row groups of {LARGE_GROUP_ROWS:,}", replace(TABLE_CASE, data=large), PARQUET),
        (
            f"{FILES:,} files into {shards}",
            replace(TABLE_CASE, data=replace(TABLE_CASE.data, options=small_files)),
            name_recshuf("--format", "parquet", "--shards", str(shards)),
        ),
    ]
    for name, case, contender in shapes:
        yield Step("shapes", case.name, name, 0, case, (contender,), size, cores)


def plan(parts: tuple[str, ...], most: int, size: int, groups: int) -> list[Step]:
    """Return all steps of the parts."""
    steps = {
        "lines": lambda: plan_sizes("lines", LINES_CASE, (TEXT, CAT, TERASHUF), most),
        "tables": lambda: plan_sizes("Parquet", TABLE_CASE, (PARQUET, REWRITE), most),
        "cores": lambda: plan_cores(size),
        "shapes": lambda: plan_shapes(size, groups),
    }
    return [step for part in parts or steps for step in steps[part]()]


def group_steps(steps: list[Step]) -> Iterator[list[Step]]:
    """Yield groups of steps to measure in turn: a series of one size is a group, so that drift hits all its steps alike."""
    for _, alike in groupby(steps, key=lambda step: (step.part, step.series)):
        group = list(alike)
        is_of_one_size = len({step.size for step in group}) == 1
        yield from [group] if is_of_one_size else ([step] for step in group)


def measure_steps(steps: list[Step], folder: Path, rounds: int, limit: float) -> list[dict[str, Any]]:
    """Measure steps in turn on temporary data, and return the points."""
    with tempfile.TemporaryDirectory(prefix="growth-", dir=folder) as work:
        trials = [
            Trial(
                step.case,
                Settings(Path(work), step.size, rounds, limit, limit, step.cores),
                partial(say_of, step),
                step.contenders,
            )
            for step in steps
        ]
        found = run_in_turn(trials, rounds)
    return [make_point(step, one) for step, one in zip(steps, found, strict=True)]


def make_point(step: Step, found: CaseResult) -> dict[str, Any]:
    """Return a point as JSON types."""
    return {
        "part": step.part,
        "series": step.series,
        "name": step.name,
        "place": step.place,
        "size_bytes": step.size,
        "memory_limit_bytes": found.memory,
        "cores": step.cores,
        "contenders": [make_contender(result) for result in found.results],
    }


def say_of(step: Step, line: str) -> None:
    """Print a line about a step."""
    say(f"{step.part}, {step.name}: {line}")


def say(line: str) -> None:
    """Print a line about progress."""
    click.echo(line, err=True)


def format_growth(report: dict[str, Any]) -> str:
    """Return the report as Markdown."""
    heads = (
        "series",
        "point",
        "tool",
        "s per GB",
        "times the reference",
        "CPU s per GB",
        "peak MB",
        "limit MB",
    )
    rows = [row for point in report["points"] for row in format_point(report, point)]
    notes = "The reference of a series is its point at 1 GB, else its first point."
    return f"# Growth: figures\n\n{format_circumstances(report)}\n\n{notes}\n\n{format_table(heads, rows)}\n"


def format_point(report: dict[str, Any], point: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield a row for each tool at a point."""
    for contender in point["contenders"]:
        who = (f"{point['part']}: {point['series']}", point["name"], contender["name"])
        median = contender["median"]
        if median is None:
            yield (*who, contender["problem"])
            continue
        size = point["size_bytes"] / 1e9
        first = find_first(report, point, contender["name"])
        seconds = median["seconds"] / size
        yield (
            *who,
            f"{seconds:.2f}",
            format_ratio(seconds / first) if first else "-",
            f"{median['cpu_seconds'] / size:.2f}",
            f"{median['peak_bytes'] / 1e6:.0f}",
            f"{point['memory_limit_bytes'] / 1e6:.0f}",
        )


def find_first(report: dict[str, Any], point: dict[str, Any], name: str) -> float | None:
    """Return the seconds per GB of a tool at the reference of a series: the point at 1 GB, else the first."""
    alike = [
        each
        for each in report["points"]
        if (each["part"], each["series"]) == (point["part"], point["series"])
    ]
    reference = next((each for each in alike if each["place"] == 10**9), alike[0])
    for contender in reference["contenders"]:
        if contender["name"] == name and contender["median"]:
            return float(contender["median"]["seconds"] / reference["size_bytes"] * 1e9)
    return None


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path), default=Path("build/benchmarks"))
@click.option("--most", type=SIZE, default="16GB", show_default=True, help="Largest data size.")
@click.option("--size", type=SIZE, default="1GB", show_default=True, help="Data size for cores and shapes.")
@click.option(
    "--groups",
    type=click.IntRange(1),
    default=10_000,
    show_default=True,
    help="Number of row groups in the case of many.",
)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds per point.")
@click.option(
    "--part",
    "parts",
    type=click.Choice(["lines", "tables", "cores", "shapes"]),
    multiple=True,
    help="Run this part only; repeatable. Default: all.",
)
@click.option("--limit", default=1800.0, show_default=True, help="Seconds after which a run is killed.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the results. Default: FOLDER.")
def main(
    folder: Path,
    most: int,
    size: int,
    groups: int,
    rounds: int,
    parts: tuple[str, ...],
    limit: float,
    out: Path | None,
) -> None:
    """Run the steps, and save the results after each group."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    command = f"python -m benchmarks.growth --most {most / 1e9:g}GB --size {size / 1e9:g}GB --rounds {rounds}"
    points: list[dict[str, Any]] = []
    for steps in group_steps(plan(parts, most, size, groups)):
        say(f"{steps[0].part}: {steps[0].series}, {', '.join(step.name for step in steps)}")
        points += measure_steps(steps, folder, rounds, limit)
        report = make_head(command, size) | {"points": points}
        save_report(report, "growth", out or folder, say)
        # Not growth.md: that is the name of a page in docs/.
        Path(out or folder, "growth-figures.md").write_text(format_growth(report))
    click.echo(format_growth(make_head(command, size) | {"points": points}))


if __name__ == "__main__":
    main()
