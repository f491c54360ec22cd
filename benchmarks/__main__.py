"""Measures recshuf and other tools at the same jobs, and writes tables and a chart.

    python -m benchmarks [FOLDER] [--size 1GB] [--rounds 5] [--case NAME]... [--rival NAME]...

makes missing data in FOLDER. `pip install -e '.[bench]'` installs the Python rivals. GNU shuf and terashuf take part if
they are on the PATH.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.cases import CASES, FLOOR, GROUP_CASES, OURSELVES
from benchmarks.markdown import format_report
from benchmarks.memory_group import open_group
from benchmarks.option_types import SIZE
from benchmarks.report import make_report, save_report
from benchmarks.suite import Settings, run_case

if TYPE_CHECKING:
    from benchmarks.cases import Case, Contender

NAMES = {case.name: case for case in CASES}
IN_GROUPS = {case.name: case for case in GROUP_CASES}
RIVALS = sorted(
    {contender.name for case in (*CASES, *GROUP_CASES) for contender in case.contenders} - {OURSELVES, FLOOR}
)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path), default=Path("build/benchmarks"))
@click.option(
    "--size", type=SIZE, help="Data per case, before compression. Default: 1GB, with --group four times it."
)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Rounds per case.")
@click.option(
    "--case",
    "cases",
    type=click.Choice([*NAMES, *IN_GROUPS]),
    multiple=True,
    help="Run this case only; repeatable. Default: all.",
)
@click.option(
    "--rival",
    "rivals",
    type=click.Choice(RIVALS),
    multiple=True,
    help="Run this tool only, beside recshuf and the floor; repeatable. Default: all.",
)
@click.option(
    "--memory",
    type=SIZE,
    help="Memory limit of the cases that have one. Default: that of the case, with --group half of it.",
)
@click.option(
    "--group",
    type=SIZE,
    default="0",
    help="Run each tool in a memory group (cgroup) of so many bytes, page cache included, on inputs that are not in the "
    "page cache, with cases of their own. Default: none.",
)
@click.option("--limit", default=900.0, show_default=True, help="Seconds after which a run is killed.")
@click.option(
    "--patience", default=60.0, show_default=True, help="Seconds after which a tool runs one round only."
)
@click.option(
    "--touch",
    type=SIZE,
    default="0",
    help="Memory to touch and free before each run, on a virtual machine whose host reclaims free memory. Default: none.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the results. Default: FOLDER.")
def main(
    folder: Path,
    size: int | None,
    rounds: int,
    cases: tuple[str, ...],
    rivals: tuple[str, ...],
    memory: int | None,
    group: int,
    limit: float,
    patience: float,
    touch: int,
    out: Path | None,
) -> None:
    """Run the cases, and save the results after each."""
    workers = len(os.sched_getaffinity(0))
    if group:
        size, memory = size or 4 * group, memory or group // 2
        try:
            with open_group(group):
                pass
        except OSError as error:
            raise click.ClickException(f"no memory group can be made: {error}") from error
    size = size or 10**9
    settings = Settings(folder.resolve(), size, rounds, limit, patience, workers, touch, group)
    names = IN_GROUPS if group else NAMES
    if missing := sorted({*cases} - {*names}):
        raise click.UsageError(f"{missing[0]!r} is a case {'without' if group else 'with'} --group")
    found = []
    for name in cases or names:
        case = limit_memory(names[name], memory)
        found.append(run_case(case, settings, say, choose(case.contenders, rivals)))
        report = make_report(found, describe_command(), size)
        save_report(report, "benchmarks", out or folder, say)
        Path(out or folder, "benchmarks.md").write_text(format_report(report))
    click.echo(format_report(make_report(found, describe_command(), size)))


def say(line: str) -> None:
    """Print a line about progress."""
    click.echo(line, err=True)


def describe_command() -> str:
    """Return the command line without folders."""
    options = [part for part in sys.argv[1:] if "/" not in part and part != "--out"]
    return " ".join(["python -m benchmarks", *options])


def limit_memory(case: Case, memory: int | None) -> Case:
    """Return the case with another memory limit, if it has one."""
    return replace(case, memory=memory) if memory and case.memory else case


def choose(contenders: tuple[Contender, ...], rivals: tuple[str, ...]) -> tuple[Contender, ...]:
    """Return recshuf, the floor and the chosen rivals; without a choice, all rivals."""
    chosen = {OURSELVES, FLOOR, *(rivals or RIVALS)}
    return tuple(contender for contender in contenders if contender.name in chosen)


if __name__ == "__main__":
    main()
