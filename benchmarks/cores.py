"""Threads against processes on 1, 2, 4 and more cores; and, with --model, on more cores than this machine has.

    python -m benchmarks.cores [FOLDER] [--size 1GB] [--workers 16] [--case NAME]... [--model | --lock]

Without these two it prints seconds and CPU seconds of `--engine local` and `--engine processes`. It begins no run after
`--seconds`. All runs write to shards, as one file is written by one process.

The model needs one worker only. Two figures limit threads on n cores, in seconds per GB of data before compression:

- the CPU seconds of all threads, over n;
- the CPU seconds in which a thread held the interpreter's lock, which only one can: the share of the samples of running
  threads in which it did. This does not depend on what else the machine does.

Processes are limited by the CPU seconds of all of them, measured with two, over n. The start of the program is measured with
little data, and left out. The model knows nothing of disks, memory bandwidth and work that one thread does alone: it is an
upper bound. Samples are taken by `py-spy`, which the extra `bench` installs.

`--lock` prints, for each number of workers, the seconds in which a thread held the lock, and their share of all seconds. At 1,
all others wait for it.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from benchmarks.cases import LINES, PACKED_LINES, TABLES, Data, name_module
from benchmarks.markdown import format_table
from benchmarks.option_types import SIZE
from benchmarks.suite import prepare_data, warm_up

if TYPE_CHECKING:
    from collections.abc import Iterator


CORES = (1, 2, 4, 8, 16)
SHARDS = 32
SAMPLES_PER_SECOND = 200
_LITTLE_BYTES = 4_000_000


class Case(NamedTuple):
    """Inputs, and what is done with them."""

    data: Data
    options: tuple[str, ...] = ()
    files: int = 1
    """How many inputs there are, links to one; compressed lines are read from their start."""


CASES = {
    "lines": Case(LINES),
    "Parquet": Case(TABLES, ("--format", "parquet")),
    "HDF5 gzip": Case(Data("hdf5", codec="gzip"), ("--format", "hdf5")),
    "JSONL.zst to Parquet": Case(PACKED_LINES, ("--to", "parquet", "--compression", "snappy"), SHARDS),
}


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs of one case on data of one size."""

    case: Case
    folder: Path
    size: int
    memory: str

    @contextmanager
    def begin(self, engine: str, workers: int) -> Iterator[subprocess.Popen[bytes]]:
        """Give a run that has begun, and wait for its end."""
        given = prepare_data(self.case.data, self.folder, self.size // self.case.files)
        warm_up(given)
        with tempfile.TemporaryDirectory(dir=self.folder) as work:
            inputs = [Path(work, f"{number}-{given.name}") for number in range(self.case.files)]
            for link in inputs if self.case.files > 1 else ():
                link.hardlink_to(given)
            names = [str(given)] if self.case.files == 1 else map(str, inputs)
            own = f"-o {work}/out/ --shards {SHARDS} -q --seed 7 --engine {engine} --workers {workers} --memory {self.memory}"
            command = [*name_module("recshuf", *names), *own.split(), *self.case.options]
            with subprocess.Popen(command) as process:
                yield process
            if process.returncode:
                raise click.ClickException(f"{engine} with {workers} workers: exit code {process.returncode}")

    def time(self, engine: str, workers: int) -> tuple[float, float]:
        """Return the seconds of a run, and the CPU seconds of all its processes."""
        with self.begin(engine, workers):
            begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.perf_counter() - begun, count_seconds(before)

    def watch(self, workers: int = 1) -> Watched:
        """Return what a run by threads does."""
        with tempfile.TemporaryDirectory() as kept:
            held, running = Path(kept, "held"), Path(kept, "running")
            with self.begin("local", workers) as process:
                begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
                samplers = [sample(process.pid, held, "--gil"), sample(process.pid, running)]
            seconds, cpu = time.perf_counter() - begun, count_seconds(before)
            for sampler in samplers:
                sampler.wait()
            return Watched(seconds, cpu, cpu * count_samples(held) / count_samples(running))

    def find_limits(self) -> Limits:
        """Return what limits the speed on more cores."""
        runs = [self, replace(self, size=_LITTLE_BYTES)]
        alone = [one.watch() for one in runs]
        cpu, lock = [one.cpu for one in alone], [one.lock for one in alone]
        divided = [one.time("processes", 2)[1] for one in runs]
        gigabytes = (self.size - _LITTLE_BYTES) / 1e9
        return Limits(*((whole - start) / gigabytes for whole, start in (cpu, lock, divided)))


class Watched(NamedTuple):
    """Seconds of a run, CPU seconds of its threads, and those in which one of them held the lock."""

    seconds: float
    cpu: float
    lock: float


class Limits(NamedTuple):
    """What limits a run, in seconds per GB."""

    cpu: float
    lock: float
    divided: float
    """CPU seconds of processes."""

    def find_speeds(self, cores: int) -> tuple[float, float]:
        """Return GB per second of threads and of processes."""
        return 1 / max(self.cpu / cores, self.lock), cores / self.divided


def count_seconds(before: resource.struct_rusage) -> float:
    """Return the CPU seconds of processes that have ended since."""
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def sample(process: int, samples: Path, *options: str) -> subprocess.Popen[bytes]:
    """Begin to write what running threads do, until the process ends."""
    command = ["py-spy", "record", "--pid", str(process), "--nonblocking", "--format", "raw", *options]
    command += ["--rate", str(SAMPLES_PER_SECOND), "--duration", "unlimited", "--output", str(samples)]
    executable = str(Path(sys.executable).with_name(command[0]))
    return subprocess.Popen([executable, *command[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def count_samples(path: Path) -> int:
    """Return how many samples `sample` has written."""
    return sum(int(line.rpartition(" ")[2]) for line in path.read_text().splitlines())


def compare(runs: dict[str, Runs], workers: int, until: float) -> str:
    """Return a table of threads and processes, with 1, 2, 4 and so on to so many workers."""
    lines = []
    for name, one in runs.items():
        for count in (cores for cores in CORES if cores <= workers and time.perf_counter() < until):
            figures = one.time("local", count), one.time("processes", count)
            ratio = figures[0][0] / figures[1][0]
            lines.append(
                [name, f"{count}", *(f"{value:.2f}" for pair in figures for value in pair), f"{ratio:.2f}"]
            )
            click.echo(" ".join(lines[-1]), err=True)
    head = ["case", "workers", "threads, s", "CPU s", "processes, s", "CPU s", "threads over processes"]
    return format_table(head, lines)


def watch_locks(runs: dict[str, Runs], workers: int, until: float) -> str:
    """Return a table of how long a thread holds the lock, with 1, 2, 4 and so on to so many workers."""
    lines = []
    for name, one in runs.items():
        for count in (cores for cores in CORES if cores <= workers and time.perf_counter() < until):
            seconds, cpu, lock = one.watch(count)
            lines.append(
                [
                    name,
                    f"{count}",
                    f"{seconds:.2f}",
                    f"{cpu:.2f}",
                    f"{cpu / seconds:.2f}",
                    f"{lock / seconds:.2f}",
                ]
            )
            click.echo(" ".join(lines[-1]), err=True)
    return format_table(["case", "workers", "s", "CPU s", "lock s", "lock held"], lines)


def format_models(found: dict[str, Limits]) -> str:
    """Return a table of the limits and of the speeds that follow from them."""
    head = ["case", "CPU", "lock", "CPU of processes", *(f"on {cores}" for cores in CORES)]
    lines = [
        [
            name,
            *(f"{value:.2f}" for value in one),
            *(" / ".join(f"{speed:.2f}" for speed in one.find_speeds(cores)) for cores in CORES),
        ]
        for name, one in found.items()
    ]
    return format_table(head, lines)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path), default=Path("build/cores"))
@click.option("--size", type=SIZE, default="1GB", show_default=True, help="Bytes before compression.")
@click.option("--memory", default="8GB", show_default=True, help="Limit of each run.")
@click.option("--workers", default=CORES[-1], show_default=True, help="Most workers.")
@click.option("--seconds", default=420, show_default=True, help="When to begin no further run.")
@click.option("--case", "names", type=click.Choice(list(CASES)), multiple=True, help="Default: all.")
@click.option("--model", "models", is_flag=True, help="Compute the speed on more cores.")
@click.option(
    "--lock", "locks", is_flag=True, help="Print the share of time in which a thread holds the lock."
)
def main(
    folder: Path,
    size: int,
    memory: str,
    workers: int,
    seconds: int,
    names: tuple[str, ...],
    models: bool,
    locks: bool,
) -> None:
    """Run the cases, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    until = time.perf_counter() + seconds
    runs = {name: Runs(CASES[name], folder, size, memory) for name in names or CASES}
    if locks:
        click.echo(watch_locks(runs, workers, until))
    elif models:
        found = {}
        for name, one in runs.items():
            found[name] = one.find_limits()
            click.echo(f"{name}: {found[name]}", err=True)
        click.echo(format_models(found))
    else:
        click.echo(compare(runs, workers, until))


if __name__ == "__main__":
    main()
