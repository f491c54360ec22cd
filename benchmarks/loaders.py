"""Measures loaders for training over the same rows: rows per CPU second and per second, and their ratios to recshuf's.

    python -m benchmarks.loaders [FOLDER] [--rows 400000] [--rounds 3] [--data text]... [--loader NAME]...

makes missing data in FOLDER. With --disk 100MB, the reads of PileLoader and of Arrow IPC wait as on a disk that gives so
many bytes a second: a simulation, since page caches are warm. Loaders run one by one, each in a process of its own, in rounds; figures are medians over
one epoch of batches of 256 records, after a first batch of another iteration, page cache warm, with the start of worker
processes. `pip install -e '.[torch,bench-loaders]'` installs the rivals; those that are not installed are left out,
aloud.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from itertools import pairwise, product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from benchmarks.loading import (
    array_records,
    floors,
    hugging_face,
    lance_files,
    lit_data,
    mosaicml,
    piles,
    slow_disk,
    tar_files,
)
from benchmarks.loading.rows import KINDS, make_table
from benchmarks.markdown import format_table
from benchmarks.option_types import SIZE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import pyarrow as pa

FILES = 16


@dataclass(frozen=True, slots=True)
class Loader:
    """A loader, the folder of its data, the module it needs, and the least ratio to it that is promised."""

    load: Callable[[Path], Iterable[Any]]
    folder: str
    module: str = ""
    baseline: str = "PileLoader, NumPy"
    at_least: float | None = None
    figure: str = "cpu"


WRITERS: dict[str, Callable[[Path, list[pa.Table]], None]] = {
    "parquet": floors.write_parquet,
    "arrow": floors.write,
    "store": piles.write,
    "datasets": hugging_face.write,
    "webdataset": tar_files.write,
    "mosaicml": mosaicml.write,
    "litdata": lit_data.write,
    "grain": array_records.write,
    "lance": lance_files.write,
}
"""Write the rows to a folder of this name."""

_ON_DISK = {"PileLoader, NumPy": piles.load("numpy"), "Arrow IPC in order": slow_disk.load_ordered}
"""Loaders that a simulated disk can slow down."""
_RECORDS = "PileLoader, records()"
_IN_PROCESS = "PileDataset, 0 workers"

LOADERS = {
    "PileLoader, NumPy": Loader(piles.load("numpy"), "store"),
    "PileLoader, torch": Loader(piles.load("torch"), "store", "torch"),
    _RECORDS: Loader(piles.load_records, "store"),
    _IN_PROCESS: Loader(piles.load_dataset(0), "store", "torch"),
    "PileDataset, 2 workers": Loader(piles.load_dataset(2), "store", "torch", _IN_PROCESS, 0.4, "wall"),
    "Arrow IPC in order": Loader(floors.load_ordered, "arrow", at_least=0.5),
    "Parquet in order": Loader(floors.load_parquet, "parquet"),
    "index shuffle in RAM": Loader(floors.load_index, "arrow", at_least=1.5),
    "Hugging Face datasets, Arrow": Loader(hugging_face.load, "datasets", "datasets", at_least=3),
    "WebDataset, buffer of 10,000": Loader(tar_files.load, "webdataset", "webdataset", at_least=20),
    "MosaicML Streaming, py1e": Loader(mosaicml.load, "mosaicml", "streaming", at_least=20),
    "MosaicML Streaming, records": Loader(
        mosaicml.load_records, "mosaicml", "streaming", _RECORDS, at_least=1.5
    ),
    "Grain, ArrayRecord": Loader(array_records.load, "grain", "array_record", at_least=20),
    "LitData": Loader(lit_data.load, "litdata", "litdata"),
}


def make_data(folder: Path, kind: str, rows: int, folders: Iterable[str]) -> None:
    """Write the rows to folders of these names, as their loaders want them, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = ["parquet", *dict.fromkeys(folders)]
    missing = [name for name in dict.fromkeys(wanted) if not (folder / name).exists()]
    if missing:
        bounds = np.linspace(0, rows, FILES + 1).astype(int).tolist()
        tables = [make_table(kind, start, stop - start) for start, stop in pairwise(bounds)]
        for name in missing:
            WRITERS[name](folder / name, tables)


def count_rows(batch: Any) -> int:
    """Return the number of records of a batch, or 1 for a record."""
    return len(batch["id"]) if hasattr(batch["id"], "__len__") else 1


def run(name: str, folder: Path, disk: int | None) -> dict[str, float]:
    """Load one epoch in this process; return its rows and seconds."""
    loader = LOADERS[name]
    load = loader.load if disk is None else _ON_DISK[name]
    if loader.module:
        importlib.import_module(loader.module)
    first = iter(load(folder / loader.folder))
    next(first)  # imports, and what is made on first use
    del first
    with slow_disk.slow_reads(disk) if disk else contextlib.nullcontext():
        rows, cpu, start = 0, read_cpu(), time.perf_counter()
        for batch in load(folder / loader.folder):
            rows += count_rows(batch)
        wall = time.perf_counter() - start
    return {"rows": rows, "wall": rows / wall, "cpu": rows / (read_cpu() - cpu)}


def read_cpu() -> float:
    """Return the CPU seconds of this process and of those that it has waited for."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(name: str, folder: Path, rows: int, disk: int | None) -> dict[str, float]:
    """Return the figures of one epoch in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loaders", str(folder), "--run", name]
    command += [] if disk is None else ["--disk", str(disk)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if found["rows"] != rows:
        raise click.ClickException(f"{name}: {found['rows']} rows of {rows}")
    return found


def format_figures(figures: dict[str, dict[str, float]]) -> str:
    """Return a table of the loaders of one kind of data."""
    lines = []
    for name, found in figures.items():
        loader = LOADERS[name]
        ratio, bar = "", ""
        if name != loader.baseline and loader.baseline in figures:
            mine, other = figures[loader.baseline][loader.figure], found[loader.figure]
            value = other / mine if loader.figure == "wall" else mine / other
            ratio = f"{value:.2f}"
            bar = "" if loader.at_least is None else f"{loader.at_least:g}"
        lines.append([name, f"{found['cpu']:,.0f}", f"{found['wall']:,.0f}", ratio, bar])
    return format_table(["loader", "rows per CPU second", "rows per second", "ratio", "at least"], lines)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path), default=Path("build/loaders"))
@click.option("--rows", default=400_000, show_default=True, help="Rows of text; images are a quarter.")
@click.option("--rounds", default=3, show_default=True, help="Epochs of each loader.")
@click.option("--data", "kinds", type=click.Choice(KINDS), multiple=True, help="Default: all.")
@click.option("--loader", "names", type=click.Choice(list(LOADERS)), multiple=True, help="Default: all.")
@click.option("--disk", type=SIZE, help="Bytes a second of a simulated disk. Default: none.")
@click.option("--run", "one", hidden=True)
def main(
    folder: Path,
    rows: int,
    rounds: int,
    kinds: tuple[str, ...],
    names: tuple[str, ...],
    disk: int | None,
    one: str | None,
) -> None:
    """Run the loaders in rounds, and print a table for each kind of data."""
    if one is not None:
        click.echo(json.dumps(run(one, folder, disk)))
        return
    chosen = [name for name in names or LOADERS if has_module(name)] if disk is None else list(_ON_DISK)
    for kind in kinds or KINDS:
        count = rows if kind == "text" else rows // 4
        data = folder / f"{kind}-{count}"
        make_data(data, kind, count, (LOADERS[name].folder for name in chosen))
        found: dict[str, list[dict[str, float]]] = {name: [] for name in chosen}
        for _, name in product(range(rounds), chosen):
            found[name].append(measure(name, data, count, disk))
        medians = {
            name: {figure: median(one[figure] for one in rounds_) for figure in ("cpu", "wall")}
            for name, rounds_ in found.items()
        }
        click.echo(f"\n{kind}: {count:,} rows\n\n{format_figures(medians)}")


def has_module(name: str) -> bool:
    """Tell whether a loader is installed, aloud if not."""
    module = LOADERS[name].module
    if not module or importlib.util.find_spec(module):
        return True
    click.echo(f"{name}: left out, no module {module}", err=True)
    return False


if __name__ == "__main__":
    main()
