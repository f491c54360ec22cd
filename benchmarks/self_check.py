"""Measures what the checks of a run cost: whole runs in turn, with all of them, without one kind, and without any.

    python -m benchmarks.self_check FOLDER [--size 1GB] [--rounds 5] [--case NAME]...

makes the inputs in FOLDER where they are missing, and prints medians and ratios of the wall times of each case's runs.
What is left out is left out by this program; the command itself has no option for it.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click

from benchmarks.out_of_core import run_module

INPUTS = {"text": ("lines.jsonl", "lines140"), "parquet": ("parquet", "parquet")}
MEMORY = {"in memory": "6GB", "out of core": "300MB"}
CASES = {f"{name}, {place}": (name, place) for name in INPUTS for place in MEMORY}
WITHOUT = ("nothing", "digests", "checksums", "syncs", "digests,checksums", "digests,checksums,syncs")
"""What a run is measured without; the first is the run as it is."""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--size", default="1GB", show_default=True, help="Bytes of each input.")
@click.option("--rounds", default=5, show_default=True)
@click.option("--case", "names", type=click.Choice(list(CASES)), multiple=True, help="Only these.")
@click.option("--without", "left", type=click.Choice(WITHOUT), multiple=True, help="Only with all and these.")
def main(folder: Path, size: str, rounds: int, names: tuple[str, ...], left: tuple[str, ...]) -> None:
    """Run every case in turn and print a Markdown table."""
    chosen = [WITHOUT[0], *(left or WITHOUT[1:])]
    folder.mkdir(parents=True, exist_ok=True)
    for name, kind in INPUTS.values():
        if not (folder / name).exists():
            run_module("benchmarks.data", kind, size, folder / name)
    click.echo("| case | without | median s | CPU s | s with all / without | CPU s with all / without |")
    click.echo("| --- | --- | --- | --- | --- | --- |")
    for case in names or CASES:
        seconds: dict[str, list[tuple[float, float]]] = {left_out: [] for left_out in chosen}
        for number in range(rounds):
            # Forth and back: where every second run is faster, whatever it is, none must always be the second.
            for left_out in chosen[:: -1 if number % 2 else 1]:
                seconds[left_out].append(measure(folder, *CASES[case], left_out))
        whole = find_medians(seconds[chosen[0]])
        for left_out, found in seconds.items():
            wall, cpu = find_medians(found)
            ratios = f"{whole[0] / wall:.3f} | {whole[1] / cpu:.3f}"
            click.echo(f"| {case} | {left_out} | {wall:.2f} | {cpu:.2f} | {ratios} |")


def find_medians(seconds: list[tuple[float, float]]) -> tuple[float, float]:
    """Return the median of the wall times and that of the CPU times."""
    walls, cpus = zip(*seconds, strict=True)
    return statistics.median(walls), statistics.median(cpus)


def measure(folder: Path, name: str, place: str, left_out: str) -> tuple[float, float]:
    """Return the wall and the CPU time of a run in a process of its own."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        command = [sys.executable, "-m", "benchmarks.self_check_run", left_out, str(folder / INPUTS[name][0])]
        options = ["--memory", MEMORY[place], "-q", "--seed", "7", "--shards", "4", "-o", f"{work}/out/"]
        os.sync()  # what the run before left to write would slow this one
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.perf_counter()
        subprocess.run([*command, *options], check=True)
        wall = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    main()
