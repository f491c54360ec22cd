"""A job: the validated request of a user."""

from __future__ import annotations

import sys
from dataclasses import replace
from fractions import Fraction
from math import floor
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from recshuf.dataclass import dataclass
from recshuf.errors import UsageError
from recshuf.interfaces import ReadOptions, TableName, WriteOptions
from recshuf.job.features import Feature, GroupBy, Mixture, SplitFiles, name_of
from recshuf.job.options import LOCAL, OPTIONS, PROCESSES, Options, check_engine
from recshuf.job.plan import MAX_SHARDS
from recshuf.job.sizing import count_whole
from recshuf.piles.layout import SPILL_COMPRESSIONS
from recshuf.records.keys import MAX_PILES, MAX_SEED
from recshuf.storage import Url, is_url
from recshuf.system.memory import BASE_BYTES
from recshuf.system.units import format_size, parse_exact

if TYPE_CHECKING:
    from pathlib import Path

    from recshuf.job.plan import Cut
    from recshuf.storage import StorageOptions


SMALLEST_MEMORY = 12 * 10**6
"""Least memory limit, in bytes; enough for lines."""
USUAL_MEMORY = 64 * 10**6
"""Enough for all formats, with columns and records of usual sizes."""


class Epoch(NamedTuple):
    """The order in which a pile store is read."""

    number: int = 0
    reshuffle: str = "rotate"
    mix: int = 1

    @property
    def is_first(self) -> bool:
        return self.number == 0 and self.mix == 1


@dataclass(frozen=True, slots=True)
class Job:
    """A shuffle, a comparison or a check to run. Options out of range, or that contradict each other, are a `UsageError`."""

    inputs: tuple[str, ...]
    """Files, directories, globs; ``-`` means standard input; each `TableName` is a table that the caller holds."""
    output: str | None
    """File or directory; ``-`` or None means standard output."""
    options: Options
    """All options, with defaults. Other fields hold the parsed values of some."""
    cut: Cut | None
    """Default: one shard for each input in a directory, one in a file."""
    memory_bytes: int
    """Of this process, or of each that works for it."""
    workers: int
    """Threads of this process, or of each that works for it."""
    temp_dir: Path | None
    temp_url: Url | None
    """Prefix in an object store for pile sets. None for local ones."""
    feature: Feature | None
    """What it does besides the order; None for a plain shuffle."""
    quarantine: Path | None
    """File for lines that do not parse; None if they are errors."""
    read: ReadOptions
    write: WriteOptions
    storage: StorageOptions
    epoch: Epoch | None = None
    """The only input is a pile store, and this its order; None if records are read from files."""

    streams: bool = False
    """Whether the caller gets the output as batches."""
    processes: int = 0
    """Most processes of this machine that work for this one; 0 if it works itself, or has others of an engine do so."""

    def __post_init__(self) -> None:
        _check("--seed", self.options["seed"], 0, MAX_SEED)
        _check_memory(self.memory_bytes, self.options["memory"])
        _check("--workers", self.workers, 1, 1024)
        if isinstance(count := self.options["head_count"], str):
            parse_percent(count)
        else:
            _check("--head-count", count, 0, None)
        _check("--piles", self.options["piles"], 1, MAX_PILES)
        _check("--max-record-bytes", self.read.max_record_bytes, 1, 2**32 - 1)
        if self.cut is not None:
            _check("--shards", self.cut.shards, 1, MAX_SHARDS)
            _check("--shard-records", self.cut.shard_records, 1, None)
            _check("--shard-bytes", self.cut.shard_bytes, 1, None)
        if self.options["spill_compression"] not in (None, *SPILL_COMPRESSIONS):
            raise UsageError(
                f"--spill-compression {self.options['spill_compression']} is not possible; choose one of "
                f"{', '.join(SPILL_COMPRESSIONS)}"
            )
        if "-" in self.inputs and len(self.inputs) > 1:
            raise UsageError("standard input (-) cannot be mixed with other inputs; give it alone")
        self._check_tables()
        if self.options["resume"] and (self.reads_stdin or self.writes_stdout):
            raise UsageError(
                "--resume: a run can be continued between files only, not from standard input or to standard output"
            )
        if self.options["verify"] and (self.reads_stdin or self.writes_stdout):
            raise UsageError(
                "--verify reads inputs and output again, which standard input and output do not allow; name files"
            )
        if self.options["verify"] and self.quarantine is not None:
            raise UsageError("--verify and --on-bad-record quarantine: exclude each other; give one of them")
        self._check_mixture()
        self._check_engine()
        self._check_temp_url()

    def _check_tables(self) -> None:
        """Refuse what needs inputs that stay as they are for another process, or for a second reading."""
        table = next((name for name in self.inputs if isinstance(name, TableName)), None)
        if table is None:
            return
        if self.options["resume"]:
            raise UsageError(
                f"--resume: {table} is held by this program, and nothing tells whether it is the one of the run that died; "
                "write it to a file first"
            )
        if self.uses_tasks:
            option = "--temp-dir at a URL" if self.options["engine"] in (None, LOCAL) else "--engine"
            raise UsageError(
                f"{option}: other processes cannot read {table}, which this program holds; write it to a file"
            )
        if self.options["verify"]:
            self.require_rereading("--verify")

    def require_rereading(self, what: str) -> None:
        """Refuse inputs that are read once, for an option or a function that reads them again."""
        once = next(
            (name for name in self.inputs if isinstance(name, TableName) and name.table.is_once), None
        )
        if once is not None:
            raise UsageError(
                f"{what}: reads inputs again, and {once} can be read once; read it into a table, or write it to a file"
            )

    def _check_mixture(self) -> None:
        mixture = self.feature
        if not isinstance(mixture, Mixture):
            return
        flag, count = mixture.flag, len(mixture.weights or mixture.copies)
        if count != len(self.inputs):
            raise UsageError(f"{flag}: {count} for {len(self.inputs)} inputs; give one for each INPUT")
        if mixture.weights and self.options["head_count"] is None:
            raise UsageError(
                "--weights: give --head-count with the number of records to take, or --copies instead"
            )
        if mixture.copies and self.options["head_count"] is not None:
            raise UsageError(
                "--copies and --head-count contradict each other; give --weights with --head-count"
            )
        if isinstance(self.options["head_count"], str):
            raise UsageError("--weights: give --head-count as a number of records, not as a share")
        if self.quarantine is not None:
            raise UsageError(
                f"{flag} and --on-bad-record quarantine: exclude each other; leave one of them out"
            )
        if mixture.counts_records:
            self.require_rereading(flag)

    def _check_engine(self) -> None:
        engine, address = self.options["engine"], self.options["ray_address"]
        check_engine(engine)
        if address is not None and engine != "ray":
            raise UsageError(f"--ray-address {address}: is used with --engine ray only; give that, too")
        if self.uses_tasks and (self.reads_stdin or self.writes_stdout):
            option = "--temp-dir at a URL" if engine in (None, LOCAL) else "--engine"
            raise UsageError(f"{option}: other processes cannot use standard input and output; name files")
        has_place = self.temp_dir is not None or self.temp_url is not None
        if engine not in (None, LOCAL, PROCESSES) and is_url(self.output or "") and not has_place:
            raise UsageError(
                f"--engine: the machines of a run into {self.output} need a place for what waits between the passes; "
                "give a folder that they share, or a URL, as --temp-dir"
            )

    def _check_temp_url(self) -> None:
        if self.temp_url is None or not is_url(self.output or ""):
            return
        output = Url.parse(self.output or "")
        is_same = (self.temp_url.scheme, self.temp_url.bucket) == (output.scheme, output.bucket)
        if is_same and self.temp_url.key.startswith(f"{output.key.rstrip('/')}/"):
            raise UsageError(
                f"--temp-dir {self.temp_url}: lies in the output {self.output}, which holds shards only; give a prefix "
                "outside of it"
            )

    def divide(self) -> Job:
        """Return the job for processes of this machine: one for each worker that has enough memory, with a share of all."""
        least = count_whole(USUAL_MEMORY, 1)
        count = min(self.workers, self.memory_bytes // least)
        if not count:
            raise UsageError(
                f"--engine processes: a process takes {format_size(BASE_BYTES)} of --memory, and needs {format_size(USUAL_MEMORY)} "
                f"for records; give --memory {format_size(least).replace(' ', '')} or more, or --engine local"
            )
        return replace(
            self,
            processes=count,
            workers=self.workers // count,
            memory_bytes=self.memory_bytes // count - BASE_BYTES,
            options=self.options | {"engine": PROCESSES},
        )

    def share(self, tasks: int) -> Job:
        """Return the job as each of so many tasks has it: if there are fewer than processes, these share what they have."""
        count = min(self.processes, tasks)
        if count == self.processes:
            return self
        memory_bytes = self.processes * (self.memory_bytes + BASE_BYTES) // count - BASE_BYTES
        return replace(
            self,
            processes=count,
            workers=self.processes * self.workers // count,
            memory_bytes=memory_bytes,
        )

    def is_given(self, name: str) -> bool:
        return cast("dict[str, object]", self.options)[name] != OPTIONS[name].default

    @property
    def uses_tasks(self) -> bool:
        return self.options["engine"] not in (None, LOCAL) or self.temp_url is not None

    @property
    def key_words(self) -> int:
        return 1 if self.feature is None else self.feature.word_count

    def count_sample(self, record_count: int | None) -> int | None:
        """Return the number of records of a sample of so many; None if there is no sample, or if it depends on a number unknown."""
        count = self.options["head_count"]
        if isinstance(self.feature, Mixture):
            return None
        if not isinstance(count, str):
            return count
        return None if record_count is None else floor(parse_percent(count) * record_count + Fraction(1, 2))

    @property
    def shares(self) -> tuple[Fraction, ...]:
        return tuple(self.feature.shares.values()) if isinstance(self.feature, SplitFiles) else ()

    @property
    def features(self) -> dict[str, Any]:
        """What it does besides the order, as in a manifest, without figures."""
        if isinstance(self.feature, Mixture):
            sources = zip(self.inputs, self.feature.list_numbers(), strict=True)
            return {"sources": [{"input": name} | number for name, number in sources]}
        return {} if self.feature is None else {name_of(self.feature.flag): self.feature.to_json()}

    @property
    def part_names(self) -> tuple[str, ...]:
        return tuple(self.feature.shares) if isinstance(self.feature, SplitFiles) else ()

    @property
    def keeps_keys_together(self) -> bool:
        return isinstance(self.feature, GroupBy)

    @property
    def holds_tables(self) -> bool:
        return any(isinstance(name, TableName) for name in self.inputs)

    @property
    def reads_stdin(self) -> bool:
        return self.inputs == ("-",)

    @property
    def writes_stdout(self) -> bool:
        return self.output in (None, "-") and not self.streams


def parse_percent(text: str) -> Fraction:
    """Return a share of records, exactly.

    >>> parse_percent("12.5%")
    Fraction(1, 8)
    """
    try:
        share = parse_exact(text.removesuffix("%")) / 100 if text.endswith("%") else Fraction(-1)
    except ValueError:
        share = Fraction(-1)
    if not 0 <= share <= 1:
        raise UsageError(
            f"--head-count {text!r} is out of range; give a whole number, or a share from 0% to 100%"
        )
    return share


def _check_memory(memory_bytes: int, given: object) -> None:
    """Refuse too little memory; for a number without a unit propose the one that was meant."""
    if memory_bytes > sys.maxsize:
        raise UsageError(
            f"--memory {given!s:.50} is out of range; it must be at most {format_size(sys.maxsize)}"
        )
    if memory_bytes >= SMALLEST_MEMORY:
        return
    limit = f"it must be at least {format_size(SMALLEST_MEMORY)}"
    if not 1 <= memory_bytes < 10**5 or not str(given).isdecimal():
        raise UsageError(f"--memory {given} is out of range; {limit}")
    unit = "MB" if memory_bytes * 10**6 >= USUAL_MEMORY else "GB"
    raise UsageError(
        f"--memory {given} is out of range, as a number without a unit is bytes; {limit}: give --memory {given}{unit}"
    )


def _check(option: str, value: int | None, least: int, most: int | None) -> None:
    if value is None:
        return
    limits = f"at least {least}" if most is None else f"from {least} to {most}"
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{option} {value!r} is not a whole number; give one, {limits}")
    if value < least or (most is not None and value > most):
        raise UsageError(f"{option} {value} is out of range; it must be {limits}")
