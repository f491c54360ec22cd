"""What a run has decided: the first entry of its journal, and the file from which other machines resolve the same job."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from recshuf.errors import InputError, UsageError
from recshuf.formats import load_format
from recshuf.formats.stored import pack, unpack
from recshuf.interfaces import Stamp
from recshuf.job.arguments import make_job
from recshuf.job.options import LOCAL, Options, describe_options, refuse_unknown
from recshuf.job.parts import TaskPlan, divide, find_large_inputs
from recshuf.output.run_log import list_pile_folders
from recshuf.output.stage import WrittenBytes
from recshuf.piles.layout import PileLayout
from recshuf.records.digests import Digest
from recshuf.records.keys import ORDER_VERSION
from recshuf.run.address import RunAddress
from recshuf.run.set_folders import choose_sets
from recshuf.storage.urls import is_url
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.interfaces import InputFile
    from recshuf.job.job import Job
    from recshuf.output.run_log import Entry, Journal, TaskFolder
    from recshuf.output.stage import Destination, FinishedShard, Transaction
    from recshuf.run.resolve import ResolvedJob
    from recshuf.storage.settings import StorageOptions


_FORMATS = ("--format", "--to")


@dataclass(frozen=True, slots=True)
class WrittenShard:
    """A finished shard in the journal."""

    name: str
    digest: Digest
    schema: str | None
    """Checksum of the table schema; None if records were not converted."""
    entry: Entry
    """Its journal entry."""


@dataclass(frozen=True, slots=True)
class Earlier:
    """The finished parts of an earlier run, from its journal; or none, and what a saved plan says of its run."""

    header: Entry
    sets: list[int]
    """Numbers of the sealed pile sets."""
    shards: dict[int, WrittenShard]
    is_plan: bool = False
    """Whether it is a plan, which users know by that name and make again."""
    pile_folders: tuple[Path, ...] = ()
    """Where its attempts kept pile sets, the last one last."""

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> Earlier | None:
        """Parse the entries of a journal; None if there are none."""
        if not entries:
            return None
        sets = {entry["set"] for entry in entries if "set" in entry}
        shards = {
            entry["shard"]: WrittenShard(entry["name"], Digest(*entry["digest"]), entry["schema"], entry)
            for entry in entries
            if "shard" in entry
        }
        folders = tuple(map(Path, list_pile_folders(entries)))
        return cls(entries[0], sorted(sets), shards, pile_folders=folders)

    @classmethod
    def of_plan(cls, header: Entry) -> Earlier:
        """Return what a saved plan says, given `describe_job` of its run."""
        return cls(header, [], {}, is_plan=True)

    @property
    def piles(self) -> PileLayout:
        """The pile layout."""
        header = self.header
        # Older journals lack it: in their runs no piles shared a region.
        region_piles = header.get("region_piles", 1)
        return PileLayout(header["pile_count"], region_piles, tuple(header["set_of_input"]))

    @property
    def seed(self) -> int:
        """Seed of the order."""
        return int(self.header["options"]["--seed"])

    def check_given(self, job: Job) -> None:
        """Check that options are those of the earlier run as far as they do not follow from the inputs, before these are read."""
        formats = {option: job.options.get(option.removeprefix("--")) for option in _FORMATS}
        given = {option: name for option, name in formats.items() if name is not None}
        for option, is_now in (given | describe_options(job)).items():
            self._compare_option(option, self.header["options"].get(option), is_now)

    def check(self, header: Entry) -> None:
        """Check that a job is the same as in the earlier run."""
        before, now = {**self.header, **self.header["libraries"]}, {**header, **header["libraries"]}
        for name, word in (("order", "version of the order"), ("recshuf", "version of recshuf")):
            self._compare(word, before[name], now[name])
        # Other formats need other libraries, and have other defaults.
        for option in sorted(
            {*before["options"], *now["options"]}, key=lambda name: (name not in _FORMATS, name)
        ):
            self._compare_option(option, before["options"].get(option), now["options"].get(option))
        for name in header["libraries"]:
            self._compare(f"version of {name}", before.get(name), now[name])
        self._compare(
            "list of inputs", [one[0] for one in before["inputs"]], [one[0] for one in now["inputs"]]
        )
        for old, new in zip(before["inputs"], now["inputs"], strict=True):
            change = _unpack(new).find_change(_unpack(old))
            if change:
                since = "the plan was made" if self.is_plan else "the unfinished run"
                remedy = "make the plan again" if self.is_plan else "restore it, or start anew"
                raise InputError(new[0], f"has changed since {since}: {change}", remedy=remedy)

    def _compare_option(self, option: str, was: object, is_now: object) -> None:
        if option == "--engine" and was is not None and is_now is None:
            raise UsageError(
                f"--resume: the engine was {was} in the unfinished run; continue it with --engine ray, or run the tasks "
                "that are left"
            )
        self._compare(option, was, is_now)

    def _compare(self, what: str, before: object, now: object) -> None:
        if before == now:
            return
        was, is_now = _show(before), _show(now)
        if self.is_plan:
            raise UsageError(
                f"the {what} was {was} when the plan was made and is {is_now}; give it as before, or make the plan again"
            )
        raise UsageError(
            f"--resume: the {what} was {was} in the unfinished run and is {is_now}; give it as before, or start anew"
        )

    def find_shards(
        self, bounds: Sequence[int], names: Sequence[str], schema: pa.Schema | None, work: Transaction
    ) -> tuple[dict[int, Digest], list[str]]:
        """Return the digests of unchanged shards, and the names of changed ones.

        Shards of another schema are in neither: a later record required this schema.

        Parameters
        ----------
        names
            Name of each shard.
        """
        schema_sum = _sum_schema(schema)
        planned = {
            (number, name, stop - start)
            for number, (name, (start, stop)) in enumerate(zip(names, pairwise(bounds), strict=True))
        }
        known = {number: shard for number, shard in self.shards.items() if shard.schema == schema_sum}
        fitting = {
            number: shard
            for number, shard in known.items()
            if (number, shard.name, shard.digest.records) in planned
        }
        unchanged = work.find_unchanged(shard.entry for shard in fitting.values())
        good = {number: shard.digest for number, shard in fitting.items() if shard.name in unchanged}
        return good, [shard.name for number, shard in known.items() if number not in good]


def describe_job(resolved: ResolvedJob, seed: int, piles: Path | None) -> Entry:
    """Return the first entry of the journal: everything that the output depends on."""
    job, write, cut = resolved.job, resolved.output.write, resolved.output.cut
    options = {
        "--format": resolved.inputs.format,
        "--to": resolved.output.format,
        "--seed": str(seed),
        "--compression": write.compression,
        "compression level": write.compression_level,
        "--shards": cut.shards,
        "--shard-records": cut.shard_records,
        "--shard-bytes": cut.shard_bytes,
        "--head-count": job.options["head_count"],
    } | describe_options(job)
    if job.epoch is not None:
        options |= {"--epoch": job.epoch.number, "--reshuffle": job.epoch.reshuffle, "--mix": job.epoch.mix}
    formats = [load_format(name).traits for name in (resolved.inputs.format, resolved.output.format)]
    names = {name for traits in formats for name in traits.libraries}
    return {
        "recshuf": __version__,
        "order": ORDER_VERSION,
        "libraries": {name: import_module(name).__version__ for name in sorted(names)},
        "options": options,
        "inputs": [_describe_input(file) for file in resolved.inputs.files],
        "pile_count": resolved.plan.pile_count,
        "region_piles": resolved.plan.region_piles,
        "set_of_input": list(resolved.plan.set_of_input),
        "piles": None if piles is None else str(piles),
    }


def _describe_input(file: InputFile) -> list[object]:
    """Return name, size, time and, if it has one, ETag of an input."""
    size, modified_ns, _, etag = file.stamp or Stamp()
    return [file.name, size, modified_ns, *filter(None, [etag])]


def _unpack(entry: list[Any]) -> Stamp:
    size, modified_ns, *etag = entry[1:]
    return Stamp(size, modified_ns, 0, *etag)


def describe_shard(shard: FinishedShard) -> Entry:
    """Return the entry of a finished shard, whose file still exists, if it was one."""
    written = shard.written or WrittenBytes.of(shard.path)
    return {
        "shard": shard.number,
        "name": shard.path.name,
        "bytes": written.byte_count,
        "xxh3": written.checksum,
        "digest": _pack(shard.digest),
        "schema": _sum_schema(shard.schema),
        **shard.place,
    }


def read_checksums(journal: Journal) -> dict[str, str]:
    """Return the checksum of each shard that a journal names."""
    return {entry["name"]: entry["xxh3"] for entry in journal.read() if "shard" in entry}


def _sum_schema(schema: pa.Schema | None) -> str | None:
    return None if schema is None else f"{xxhash.xxh3_64_intdigest(schema.serialize()):016x}"


def _pack(digest: Digest) -> list[int]:
    return [digest.records, digest.byte_count, digest.fingerprint]


def _show(value: object) -> object:
    if isinstance(value, str):
        return value.replace("\n", ", ")  # a schema has a line for each field
    return "not given" if value is None else value


_FORMAT = 3
_LEFT_OUT = ("stdin", "stdout", "resume", "ray_address", "endpoint_url", "storage_options")
"""Options that tasks do not need, and those of `storage`."""


def damaged_plan() -> UsageError:
    """Return the error for a plan that is not as recshuf has made it."""
    return UsageError("the plan is damaged; make it again")


def check_format(values: Any) -> None:
    """Refuse what `SharedRun.to_json` of another version of recshuf has returned."""
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        raise UsageError("the plan is of another version of recshuf; make it again")


@dataclass(frozen=True, slots=True)
class SharedRun:
    """What all tasks of a run have in common."""

    id: str
    """Tells it from other runs with the same output."""
    inputs: tuple[str, ...]
    output: str
    options: str
    """Of `make_job`, as JSON, without those of `storage`."""
    folder: str
    """Folder that relative paths start from."""
    piles: str
    """Where the pile sets are; see `choose_sets`."""
    tasks: TaskPlan
    storage: StorageOptions

    @classmethod
    def of(cls, resolved: ResolvedJob, seed: int, piles: str | None = None) -> SharedRun:
        """Return the run of a job.

        Parameters
        ----------
        piles
            Where the pile sets are. Default: as the job says.
        """
        job, tasks = resolved.job, find_tasks(resolved.output.destination).private
        work = None if tasks is None else tasks.parent
        return cls(
            secrets.token_hex(8),
            job.inputs,
            job.output or "",
            _pack_options(job, seed),
            str(Path.cwd()),
            piles or choose_sets(job, work),
            divide_job(resolved),
            job.storage,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the run as JSON values, without the storage options, which may be secrets."""
        return {
            "format": _FORMAT,
            "id": self.id,
            "inputs": self.inputs,
            "output": self.output,
            "options": json.loads(self.options),
            "folder": self.folder,
            "piles": self.piles,
            "tasks": self.tasks.to_json(),
        }

    @classmethod
    def from_json(cls, values: Any, storage: StorageOptions) -> SharedRun:
        """Return the run that `to_json` returned, with storage options."""
        check_format(values)
        return cls(
            values["id"],
            tuple(values["inputs"]),
            values["output"],
            json.dumps(values["options"]),
            values["folder"],
            values["piles"],
            TaskPlan.from_json(values["tasks"]),
            storage,
        )

    def find_address(self, tasks: TaskFolder) -> RunAddress:
        """Return where tasks find the run, whose task folder this is."""
        memory_bytes = json.loads(self.options)["memory"]
        options = tuple(self.storage.options.items())
        return RunAddress(
            tasks.address, self.output, self.id, memory_bytes, self.storage.endpoint_url, options
        )

    def make_job(self) -> Job:
        """Return the job, and make this process use the folder that its paths start from."""
        if not all(is_url(path) or os.path.isabs(path) for path in (*self.inputs, self.output)):  # noqa: PTH117 - texts
            try:
                os.chdir(self.folder)
            except OSError as error:
                raise UsageError(
                    f"{self.folder}: {error.strerror}; run tasks where this folder is shared, or give absolute paths"
                ) from error
        try:
            options = {name: unpack(value, ()) for name, value in json.loads(self.options).items()}
            refuse_unknown(options, Options)
        except (LookupError, TypeError, AttributeError, StopIteration) as error:
            raise damaged_plan() from error
        options |= {"endpoint_url": self.storage.endpoint_url, "storage_options": self.storage.options}
        return make_job(self.inputs, self.output, options)  # type: ignore[arg-type] # they are its own


def find_tasks(destination: Destination | None) -> TaskFolder:
    """Return the folder of the tasks of a run, which is beside its output."""
    if destination is None or destination.is_stream:
        raise UsageError("--engine: other processes cannot write a stream; give a file or directory with -o")
    return destination.tasks


def _pack_options(job: Job, seed: int) -> str:
    """Return the options of a job as JSON; those that depend on the machine or the working folder are fixed."""
    given = {name: value for name, value in job.options.items() if name not in _LEFT_OUT}
    temp_dir = job.options["temp_dir"] if job.temp_dir is None else job.temp_dir.absolute()
    parsed = {
        "seed": seed,
        "engine": LOCAL if job.options["engine"] == LOCAL else "tasks",
        "memory": job.memory_bytes,
        "workers": job.workers,
        "datasets": job.read.datasets,
        "columns": job.read.columns,
        "schema": job.read.schema,
        "temp_dir": None if temp_dir is None else os.fspath(temp_dir),
        # The job has derived it from --zero-terminated, beside which it may not be given.
        "separator": None if job.options["zero_terminated"] else job.options["separator"],
    }
    return json.dumps({name: pack(value) for name, value in (given | parsed).items()})


def divide_job(resolved: ResolvedJob) -> TaskPlan:
    """Return the tasks of a job; large inputs that can be read in parts are."""
    plan, source = resolved.plan, resolved.inputs.source
    byte_counts = resolved.inputs.sizes.byte_counts.tolist()
    fragments = {
        index: [one.record_count for one in source.fragments(index, plan.block_bytes, plan.max_record_bytes)]
        for index in find_large_inputs(plan, byte_counts)
        if source.skips_fragments(index)
    }
    return divide(plan, byte_counts, fragments)


def fit_plan(resolved: ResolvedJob, tasks: TaskPlan) -> ResolvedJob:
    """Return a job that cuts inputs into fragments as the tasks of its run do."""
    return replace(resolved, plan=replace(resolved.plan, block_bytes=tasks.block_bytes))
