"""Measures recshuf against others that do the same jobs, in turn and in one run, and saves tables and a chart.

    python -m benchmarks [FOLDER] [--size 1GB] [--rounds 5] [--case NAME]... [--rival NAME]...

makes the data in FOLDER where it is missing. Rivals from Python come with `pip install -e '.[bench]'`; terashuf is used if
it is on the PATH.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.cases import CASES, FLOOR, OURSELVES
from benchmarks.markdown import format_report
from benchmarks.report import make_report, save_report
from benchmarks.suite import Settings, run_case
from recshuf.system.units import parse_size

if TYPE_CHECKING:
    from benchmarks.cases import Case, Contender

NAMES = {case.name: case for case in CASES}
RIVALS = sorted({contender.name for case in CASES for contender in case.contenders} - {OURSELVES, FLOOR})


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path), default=Path("build/benchmarks"))
@click.option(
    "--size", type=parse_size, default="1GB", show_default=True, help="Of data, before compression."
)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--case", "cases", type=click.Choice(list(NAMES)), multiple=True, help="Only these.")
@click.option(
    "--rival", "rivals", type=click.Choice(RIVALS), multiple=True, help="Only these, and the floor."
)
@click.option("--memory", type=parse_size, help="Limit of the cases that have one, in place of theirs.")
@click.option("--limit", default=900.0, show_default=True, help="Seconds after which a run is ended.")
@click.option("--patience", default=60.0, show_default=True, help="Who takes longer runs one round only.")
@click.option(
    "--touch",
    type=parse_size,
    default="0",
    help="Memory to touch and give back before each run: a host takes what is free from a virtual machine.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Where the results go; else into FOLDER.")
def main(
    folder: Path,
    size: int,
    rounds: int,
    cases: tuple[str, ...],
    rivals: tuple[str, ...],
    memory: int | None,
    limit: float,
    patience: float,
    touch: int,
    out: Path | None,
) -> None:
    """Run the cases and save what was found after each."""
    workers = len(os.sched_getaffinity(0))
    settings = Settings(folder.resolve(), size, rounds, limit, patience, workers, touch)
    found = []
    for name in cases or NAMES:
        case = limit_memory(NAMES[name], memory)
        found.append(run_case(case, settings, say, choose(case.contenders, rivals)))
        report = make_report(found, describe_command(), size)
        save_report(report, format_report(report), "benchmarks", out or folder, say)
    click.echo(format_report(make_report(found, describe_command(), size)))


def say(line: str) -> None:
    """Show how far the run is."""
    click.echo(line, err=True)


def describe_command() -> str:
    """Return the command as one types it, the folder left out."""
    options = [part for part in sys.argv[1:] if "/" not in part]
    return " ".join(["python -m benchmarks", *options])


def limit_memory(case: Case, memory: int | None) -> Case:
    """Return the case with another limit, if it has one."""
    return replace(case, memory=memory) if memory and case.memory else case


def choose(contenders: tuple[Contender, ...], rivals: tuple[str, ...]) -> tuple[Contender, ...]:
    """Return recshuf, the floor and the rivals that are asked for, all of them if none is."""
    chosen = {OURSELVES, FLOOR, *(rivals or RIVALS)}
    return tuple(contender for contender in contenders if contender.name in chosen)


if __name__ == "__main__":
    main()
