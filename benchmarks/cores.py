"""Models the speed on more cores than this machine has, from what of a run is serial.

    python -m benchmarks.cores [FOLDER] [--size 1GB] [--workers 16] [--case NAME]...

Three figures limit a run on n cores, in seconds per GB of data before compression:

- the CPU seconds of all threads of a run with one worker, over n;
- the CPU seconds of the busiest thread, whose work is not divided, in a run with as many workers as the largest modelled
  machine has cores;
- the seconds in which a thread of the run with one worker held the interpreter's lock, which only one can; the machine
  must be idle, so that it has a core meanwhile.

The model takes the largest of the three. It knows nothing of disks and memory bandwidth: it is an upper bound. Samples
are taken by `py-spy`, which the extra `bench` installs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmarks.cases import CASES, fill_in, make_job
from benchmarks.markdown import format_table
from benchmarks.option_types import SIZE
from benchmarks.suite import prepare_data, warm_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.cases import Case

NAMES = (
    "lines in memory",
    "lines at 256 MB",
    "Parquet in memory",
    "Parquet at 512 MB",
    "HDF5 gzip in memory",
    "HDF5 gzip at 512 MB",
    "JSONL.zst to Parquet in memory",
    "JSONL.zst to Parquet at 512 MB",
)
CORES = (1, 2, 4, 8, 16)
SAMPLES_PER_SECOND = 200
_TICK = os.sysconf("SC_CLK_TCK")
_PAUSE = 0.02
_ENDED = "Z"
"""State of a thread that has ended: the first one then has the times of all."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What limits a run, in seconds per GB."""

    cpu: float
    lock: float
    busiest: float

    def find_speed(self, cores: int) -> float:
        """Return GB per second."""
        return 1 / max(self.cpu / cores, self.lock, self.busiest)

    def name_limit(self, cores: int) -> str:
        """Return what limits the speed."""
        found = {self.cpu / cores: "cores", self.lock: "interpreter's lock", self.busiest: "one thread"}
        return found[max(found)]


def measure(case: Case, folder: Path, size: int, workers: int) -> Limits:
    """Run a case twice, and return its limits."""
    threads, _ = run(case, folder, size, workers)
    alone, lock = run(case, folder, size, 1)
    gigabytes = size / 1e9
    return Limits(sum(alone.values()) / gigabytes, lock / gigabytes, max(threads.values()) / gigabytes)


def run(case: Case, folder: Path, size: int, workers: int) -> tuple[dict[str, float], float]:
    """Run a case; return the CPU seconds of each thread, and the seconds in which one held the lock."""
    given = prepare_data(case.data, folder, size)
    warm_up(given)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        output, temp = Path(work) / case.output.rstrip("/"), Path(work) / "temp"
        temp.mkdir()
        job = make_job(case, given, output, temp, case.find_memory(size), workers)
        command = [*fill_in(case.contenders[0], given, job).command, "--workers", str(workers)]
        samples = Path(work) / "samples"
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            sampler = sample_lock(process.pid, samples)
            threads = dict(watch_threads(process))
            sampler.wait()
        if process.returncode:
            raise click.ClickException(f"{case.name}: exit code {process.returncode}")
        held = sum(int(line.rpartition(" ")[2]) for line in samples.read_text().splitlines())
    return threads, held / SAMPLES_PER_SECOND


def sample_lock(process: int, samples: Path) -> subprocess.Popen[bytes]:
    """Begin to write what the thread does that holds the lock, until the process ends."""
    command = ["py-spy", "record", "--pid", str(process), "--gil", "--nonblocking", "--format", "raw"]
    command += ["--rate", str(SAMPLES_PER_SECOND), "--duration", "unlimited", "--output", str(samples)]
    executable = str(Path(sys.executable).with_name(command[0]))
    return subprocess.Popen([executable, *command[1:]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def watch_threads(process: subprocess.Popen[bytes]) -> Iterator[tuple[str, float]]:
    """Yield each thread and its CPU seconds until now, again and again until the process ends."""
    tasks = Path(f"/proc/{process.pid}/task")
    while process.poll() is None:
        for path in list(tasks.iterdir()) if tasks.exists() else []:
            try:
                fields = (path / "stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] != _ENDED:
                yield path.name, (int(fields[11]) + int(fields[12])) / _TICK
        time.sleep(_PAUSE)


def format_models(found: dict[str, Limits]) -> str:
    """Return a table of the limits and of the speeds that follow from them."""
    head = ["case", "CPU", "lock", "busiest thread", *(f"{cores} cores" for cores in CORES), "limit at 16"]
    lines = [
        [
            name,
            *(f"{value:.2f}" for value in (one.cpu, one.lock, one.busiest)),
            *(f"{one.find_speed(cores):.2f}" for cores in CORES),
            one.name_limit(CORES[-1]),
        ]
        for name, one in found.items()
    ]
    return format_table(head, lines)


@click.command(help=(__doc__ or "").partition("\n")[0])
@click.argument("folder", type=click.Path(path_type=Path), default=Path("build/cores"))
@click.option("--size", type=SIZE, default="1GB", show_default=True, help="Bytes before compression.")
@click.option("--workers", default=CORES[-1], show_default=True, help="Threads of each run.")
@click.option("--case", "names", type=click.Choice(NAMES), multiple=True, help="Default: all.")
def main(folder: Path, size: int, workers: int, names: tuple[str, ...]) -> None:
    """Run the cases, and print the table."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = {case.name: case for case in CASES}
    found = {name: measure(cases[name], folder, size, workers) for name in names or NAMES}
    click.echo(format_models(found))


if __name__ == "__main__":
    main()
