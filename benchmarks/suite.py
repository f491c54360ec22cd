"""Runs the contenders of a case in turn, and checks what they write before a time of theirs counts."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.cases import fill_in, make_job
from benchmarks.data import count_rows
from benchmarks.measure import PROJECT, CommandError, Usage, measure, summarise
from benchmarks.memory_group import drop_pages, open_group

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.cases import Case, Contender, Data


@dataclass(frozen=True, slots=True)
class Settings:
    """How a case is run."""

    folder: Path
    """Where data and outputs go."""
    size: int
    """Bytes of data before compression."""
    rounds: int
    limit_seconds: float
    """A contender that takes longer is ended."""
    patience_seconds: float
    """A contender that takes longer runs in the first round alone."""
    workers: int
    """Cores that each tool may use."""
    touched_bytes: int = 0
    """Memory that is touched, and free again, before each run."""
    group_bytes: int = 0
    """Memory of the group in which each tool runs, on inputs that are not in the page cache; 0 for none."""


@dataclass(slots=True)
class Result:
    """What was found of a contender in a case."""

    name: str
    problem: str = ""
    """Why its figures do not count; nothing if they do."""
    note: str = ""
    """What one must know of its figures."""
    rounds: list[Usage] = field(default_factory=list)
    output_bytes: int = 0

    @property
    def counts(self) -> bool:
        """Whether there are figures."""
        return not self.problem and bool(self.rounds)

    @property
    def median(self) -> Usage:
        """Return the median of each figure; the peak is the highest."""
        return summarise(self.rounds)


@dataclass(frozen=True, slots=True)
class CaseResult:
    """What was found in a case; the results are in the order of its contenders, recshuf first."""

    case: Case
    input_bytes: int
    records: int
    memory: int
    results: list[Result]


class WrongOutputError(Exception):
    """An output does not hold the records of the input."""


class Trial:
    """A case and its contenders, measured round by round.

    Parameters
    ----------
    say
        Takes a line for each run.
    contenders
        Only these of the case's.
    """

    def __init__(
        self,
        case: Case,
        settings: Settings,
        say: Callable[[str], object],
        contenders: Sequence[Contender] | None = None,
    ) -> None:
        settings.folder.mkdir(parents=True, exist_ok=True)
        self._case = case
        self._settings = settings
        self._say = say
        self._given = prepare_data(case.data, settings.folder, settings.size)
        self._runs = [(contender, Result(contender.name)) for contender in contenders or case.contenders]
        for contender, result in self._runs:
            result.problem = contender.find_lack()
        self._expected = find_digest(case, self._given) if case.records else ""
        warm_up(self._given)

    def run(self, number: int) -> None:
        """Let each contender run once, in every other round in reverse."""
        for contender, result in self._runs if number % 2 == 0 else reversed(self._runs):
            if result.problem or (number and result.rounds[0].seconds > self._settings.patience_seconds):
                continue
            run_once(self._case, contender, result, self._given, self._expected, self._settings)
            self._say(f"{self._case.name}, round {number + 1}, {describe_last(result)}")

    def summarise(self) -> CaseResult:
        """Return what was found."""
        case, size = self._case, self._settings.size
        return CaseResult(
            case,
            count_bytes(self._given),
            count_rows(case.data.kind, size),
            case.find_memory(size),
            [result for _, result in self._runs],
        )


def run_in_turn(trials: Sequence[Trial], rounds: int) -> list[CaseResult]:
    """Run trials that are compared with each other round after round, every other round in reverse."""
    for number in range(rounds):
        for trial in trials if number % 2 == 0 else reversed(trials):
            trial.run(number)
    return [trial.summarise() for trial in trials]


def run_case(
    case: Case,
    settings: Settings,
    say: Callable[[str], object],
    contenders: Sequence[Contender] | None = None,
) -> CaseResult:
    """Run the contenders of a case in turn; the parameters are those of `Trial`."""
    return run_in_turn([Trial(case, settings, say, contenders)], settings.rounds)[0]


def describe_last(result: Result) -> str:
    """Return the outcome of a contender's last run in some words."""
    if not result.counts:
        return f"{result.name}: {result.problem}"
    usage = result.rounds[-1]
    return f"{result.name}: {usage.seconds:.2f} s, {usage.cpu_seconds:.2f} CPU s, {usage.peak_bytes / 1e6:.0f} MB"


def run_once(
    case: Case, contender: Contender, result: Result, given: Path, expected: str, settings: Settings
) -> None:
    """Let a contender do the job into a new folder, and add what it took to its result."""
    with tempfile.TemporaryDirectory(prefix="work-", dir=settings.folder) as work:
        temp = Path(work, "temp")
        temp.mkdir()
        output = Path(work, case.output)
        memory = case.find_memory(settings.size)
        filled = fill_in(contender, given, make_job(case, given, output, temp, memory, settings.workers))
        os.sync()  # no run pays for earlier writes
        touch_memory(settings.touched_bytes)
        try:
            with open_group(settings.group_bytes) if settings.group_bytes else nullcontext() as group:
                for file in list_files(given) if group else ():
                    drop_pages(file)
                usage = run_filled(filled, given, output, Path(work), settings, group)
            usage = replace(usage, sync_seconds=sync_output(output))
            if contender.is_sample:
                usage, result.note = extrapolate(usage, Path(work, "stdout"))
            elif not result.rounds and case.records:
                check_output(case, output, expected)
            result.output_bytes = count_bytes(output) if output.exists() else 0
            result.rounds.append(usage)
        except (CommandError, WrongOutputError) as error:
            result.problem = str(error)


def run_filled(
    contender: Contender, given: Path, output: Path, work: Path, settings: Settings, group: Path | None
) -> Usage:
    """Return what the command of a contender took."""
    return measure(
        contender.command,
        log=work / "log",
        limit_seconds=settings.limit_seconds,
        cores=settings.workers,
        stdin=given if contender.reads_stdin else None,
        stdout=output if contender.writes_stdout else work / "stdout",
        environment=contender.environment,
        group=group,
    )


def sync_output(output: Path) -> float:
    """Have all of an output written to the disk, and return how many seconds that took."""
    started = time.perf_counter()
    for file in list_files(output) if output.exists() else ():
        with file.open("rb") as stream:
            os.fsync(stream.fileno())
    return time.perf_counter() - started


def extrapolate(usage: Usage, answer: Path) -> tuple[Usage, str]:
    """Return what the whole job would take, from what a sample's program says of its share, and a note on that."""
    told = json.loads(answer.read_text())
    scale = 1 / told["share"] - 1
    whole = replace(
        usage,
        seconds=usage.seconds + scale * told["seconds"],
        cpu_seconds=usage.cpu_seconds + scale * told["cpu_seconds"],
        read_bytes=int(usage.read_bytes / told["share"]),
        written_bytes=int(usage.written_bytes / told["share"]),
    )
    return whole, f"extrapolated from {told['share']:.2%} of the records"


# Data and outputs


def prepare_data(data: Data, folder: Path, size: int) -> Path:
    """Return the data of a kind and size, made if it is not there."""
    path = data.find_path(folder, size)
    if not path.exists():
        with tempfile.TemporaryDirectory(prefix="making-", dir=folder) as work:
            new = Path(work, path.name)
            codec = ["--codec", data.codec] if data.codec else []
            run_module("benchmarks.data", data.kind, str(size), str(new), *codec, *data.options)
            new.rename(path)
    return path


def find_digest(case: Case, given: Path) -> str:
    """Return the digest of an input, which is noted beside it."""
    note = given.with_name(f"{given.name}.{case.records}.digest")
    if not note.exists():
        note.write_text(run_module("benchmarks.digest", case.records, str(given)))
    return note.read_text()


def check_output(case: Case, output: Path, expected: str) -> None:
    """Raise if the records of an output are not those expected."""
    if not output.exists():
        raise WrongOutputError("wrong output: there is none")
    found = run_module("benchmarks.digest", case.records, str(output))
    if found != expected:
        raise WrongOutputError(f"wrong output: {found.strip()} instead of {expected.strip()}")


def run_module(*arguments: str) -> str:
    """Run a module in a process of its own and return what it prints.

    Raises
    ------
    WrongOutputError
        If it fails, which it does where it cannot read a file.
    """
    command = [sys.executable, "-m", *arguments]
    ended = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise WrongOutputError(f"unreadable: {ended.stderr.strip().splitlines()[-1]}")
    return ended.stdout


def touch_memory(byte_count: int) -> None:
    """Touch each page of so much memory, and give it back.

    The host of a virtual machine may reclaim free memory. The next process to touch it then pays for that.
    """
    if byte_count:
        memory = np.empty(byte_count, np.uint8)
        memory[:: resource.getpagesize()] = 1


def warm_up(given: Path) -> None:
    """Read an input once into the page cache."""
    with Path(os.devnull).open("wb") as nowhere:
        for file in list_files(given):
            with file.open("rb") as stream:
                shutil.copyfileobj(stream, nowhere, 1 << 20)


def list_files(path: Path) -> list[Path]:
    """Return a file, or all files in a folder."""
    return [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]


def count_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in list_files(path))
