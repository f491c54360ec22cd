"""Runs the command on data larger than its memory limit, a case for each format and some conversions.

    python -m benchmarks.out_of_core FOLDER [--size 2GB] [--memory 300MB] [--case NAME]...

makes the inputs in FOLDER where they are missing, and prints a row of each run's own report. A run whose peak
memory is above the limit and 150 MB ends the program with an error.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

from recshuf.system.memory import BASE_BYTES
from recshuf.system.units import parse_size

INPUTS = {
    "lines.jsonl": "lines140",
    "lines.txt.zst": "lines140",
    "documents.jsonl.zst": "documents",
    "parquet": "parquet",
    "hdf5": "hdf5",
}
CASES: dict[str, tuple[str, list[str], str]] = {
    "parquet": ("parquet", ["--format", "parquet"], "out/"),
    "jsonl": ("lines.jsonl", ["--format", "jsonl"], "out.jsonl"),
    "text.zst": ("lines.txt.zst", [], "out.txt.zst"),
    "hdf5": ("hdf5", ["--format", "hdf5"], "out/"),
    "jsonl.zst to parquet": ("documents.jsonl.zst", [], "out.parquet"),
    "parquet to jsonl": ("parquet", ["--to", "jsonl"], "out/"),
    "hdf5 to parquet": ("hdf5", ["--to", "parquet"], "out/"),
    "parquet to hdf5": ("parquet", ["--to", "hdf5", "--columns", "id,value,text"], "out/"),
}
COLUMNS = ("case", "records", "GB", "GB spilled", "s scatter", "s gather", "s", "MB predicted", "MB peak")


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--size", default="2GB", show_default=True, help="Bytes of each input before compression.")
@click.option("--memory", default="300MB", show_default=True)
@click.option("--case", "names", type=click.Choice(list(CASES)), multiple=True, help="Only these.")
def main(folder: Path, size: str, memory: str, names: tuple[str, ...]) -> None:
    """Run every case and print a Markdown table."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = {name: CASES[name] for name in names or CASES}
    for name in sorted({given for given, _, _ in cases.values()}):
        if not (folder / name).exists():
            run_module("benchmarks.data", INPUTS[name], size, folder / name)
    click.echo("| " + " | ".join(COLUMNS) + " |\n|" + " --- |" * len(COLUMNS))
    most = parse_size(memory) + BASE_BYTES
    for name, (given, options, output) in cases.items():
        report = measure(folder, folder / given, [*options, "--memory", memory], output)
        click.echo(describe(name, report))
        if report["measured_peak_bytes"] > most:
            raise click.ClickException(f"{name}: the peak is above {most / 1e6:.0f} MB")


def measure(folder: Path, given: Path, options: list[str], output: str) -> dict[str, Any]:
    """Shuffle `given` into a fresh folder and return the report of the run."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        report = Path(work) / "report.json"
        target = f"{work}/{output}"
        run_module("recshuf", given, *options, "-q", "--seed", "7", "--report", report, "-o", target)
        return json.loads(report.read_bytes())


def run_module(*arguments: str | Path) -> None:
    """Run a module in a process of its own, so that its peak memory is its own."""
    subprocess.run([sys.executable, "-m", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def describe(name: str, report: dict[str, Any]) -> str:
    """Return a row of the table."""
    scatter, gather = report["passes"][:2]
    figures = (
        f"{report['records']:,}",
        f"{report['byte_count'] / 1e9:.2f}",
        f"{report['spilled_bytes'] / 1e9:.2f}",
        f"{scatter['seconds']:.1f}",
        f"{gather['seconds']:.1f}",
        f"{report['seconds']:.1f}",
        f"{report['predicted_peak_bytes'] / 1e6:.0f}",
        f"{report['measured_peak_bytes'] / 1e6:.0f}",
    )
    return f"| {name} | " + " | ".join(figures) + " |"


if __name__ == "__main__":
    main()
