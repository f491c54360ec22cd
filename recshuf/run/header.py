"""What a run has decided: the first entry of its log, the file from which tasks resolve the same job, and a saved plan.

The pile sets of tasks lie in a folder that all machines share, or in an object store.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recshuf.dataclass import dataclass
from recshuf.errors import InputError, UsageError
from recshuf.formats import find_packages, find_versions
from recshuf.formats.stored import pack, unpack
from recshuf.interfaces import InputFile, Stamp
from recshuf.job.arguments import make_job
from recshuf.job.options import LOCAL, Options, describe_options, refuse_unknown
from recshuf.job.parts import TaskPlan, divide, find_large_inputs
from recshuf.output.run_log import PILES_PREFIX
from recshuf.piles.layout import PileLayout
from recshuf.piles.set_folder import SetFolder
from recshuf.records.keys import ORDER_VERSION
from recshuf.storage import Url, is_url
from recshuf.storage.reading.objects import count_read_bytes
from recshuf.system.paths import choose_temp_dir, real_path
from recshuf.version import __version__

if TYPE_CHECKING:
    from recshuf.job.job import Job
    from recshuf.output.run_log import Entry
    from recshuf.run.resolve import Run
    from recshuf.storage import StorageOptions


_FORMATS = ("--format", "--to")
_FORMAT = 4


def damaged_plan() -> UsageError:
    return UsageError("the plan is damaged; make it again")


def check_format(values: Any, *, is_plan: bool) -> None:
    """Refuse what another version of recshuf has written."""
    if not isinstance(values, dict) or values.get("format") != _FORMAT:
        what, remedy = ("plan", "make it again") if is_plan else ("unfinished run", "start anew")
        raise UsageError(f"the {what} is of another version of recshuf; {remedy}")


@dataclass(frozen=True, slots=True)
class Header:
    """All that a run has decided before it reads records."""

    id: str
    """Tells it from other runs with the same output."""
    job: Entry
    """Everything that the output depends on: versions, options, inputs with their stamps, how records are divided."""
    inputs: tuple[str, ...]
    """As the user gave them."""
    output: str
    options: str
    """Of `make_job`, as JSON, without those of `storage`; none if there are no tasks."""
    folder: str
    """Folder that relative paths start from."""
    sets: str | None
    """Folder of the pile sets, or URL of their prefix; None if they are not kept, and never with tasks."""
    tasks: TaskPlan | None
    """None if this process does all the work."""
    storage: StorageOptions
    """How object stores are reached. Not written: they may be secrets."""
    is_plan: bool = False
    """Whether it is a saved plan, which users know by that name and make again."""

    def to_json(self) -> Entry:
        return {
            "format": _FORMAT,
            "id": self.id,
            "job": self.job,
            "inputs": self.inputs,
            "output": self.output,
            "options": json.loads(self.options),
            "folder": self.folder,
            "piles": self.sets,
            "tasks": None if self.tasks is None else self.tasks.to_json(),
        }

    @classmethod
    def from_json(cls, values: Any, storage: StorageOptions, *, is_plan: bool = False) -> Header:
        check_format(values, is_plan=is_plan)
        return cls(
            values["id"],
            values["job"],
            tuple(values["inputs"]),
            values["output"],
            json.dumps(values["options"]),
            values["folder"],
            values["piles"],
            values["tasks"] and TaskPlan.from_json(values["tasks"]),
            storage,
            is_plan,
        )

    @property
    def layout(self) -> PileLayout:
        """How records are divided."""
        job, counts = self.job, self.job.get("record_counts")
        if self.tasks is None:
            layout = PileLayout(job["pile_count"], tuple(job["set_of_input"]))
        else:
            layout = self.tasks.piles
        return replace(layout, record_counts=None if counts is None else tuple(counts))

    @property
    def seed(self) -> int:
        return int(self.job["options"]["--seed"])

    @property
    def division(self) -> TaskPlan:
        if self.tasks is None:
            raise damaged_plan()
        return self.tasks

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

    def check_given(self, job: Job) -> None:
        """Compare options with those of a job as far as they do not follow from the inputs, before these are read."""
        formats = {option: job.options.get(option.removeprefix("--")) for option in _FORMATS}
        given = {option: name for option, name in formats.items() if name is not None}
        for option, is_now in (given | describe_options(job)).items():
            self._compare_option(option, self.job["options"].get(option), is_now)

    def check(self, now: Header) -> None:
        """Refuse a run that differs from this one in what the output depends on; the first difference is named."""
        before, after = self.job, now.job
        for name, word in (("order", "version of the order"), ("recshuf", "version of recshuf")):
            self._compare(word, before[name], after[name])
        # Other formats need other libraries, and have other defaults.
        for option in sorted(
            {*before["options"], *after["options"]}, key=lambda name: (name not in _FORMATS, name)
        ):
            self._compare_option(option, before["options"].get(option), after["options"].get(option))
        for kind, word in (("libraries", "version of"), ("packages", "version of the package")):
            for name, version in after.get(kind, {}).items():
                self._compare(f"{word} {name}", before.get(kind, {}).get(name), version)
        olds, news = ([*one["inputs"], *one.get("companions", ())] for one in (before, after))
        names = zip_longest(*([name for name, *_ in one] for one in (olds, news)))
        for number, (was, is_now) in enumerate(names, 1):
            self._compare(f"input {number:,}", was, is_now)
        for old, new in zip(olds, news, strict=True):
            change = _unpack(new).find_change(_unpack(old))
            if change:
                since = "the plan was made" if self.is_plan else "the unfinished run"
                remedy = "make the plan again" if self.is_plan else "restore it, or start anew"
                raise InputError(new[0], f"has changed since {since}: {change}", remedy=remedy)

    def _compare_option(self, option: str, was: object, is_now: object) -> None:
        if option == "--engine" and was is not None and is_now is None:
            raise UsageError(
                f"--resume: the engine was {was} in the unfinished run; continue it with --engine processes "
                "or ray, or run the tasks that are left"
            )
        self._compare(option, was, is_now)

    def _compare(self, what: str, before: object, now: object) -> None:
        if before == now:
            return
        was, is_now = _show(before), _show(now)
        option, since, anew = "--resume: ", "in the unfinished run", "start anew"
        if self.is_plan:
            option, since, anew = "", "when the plan was made", "make the plan again"
        raise UsageError(
            f"{option}the {what} was {was} {since} and is {is_now}; give it as before, or {anew}"
        )


def _unpack(entry: list[Any]) -> Stamp:
    size, modified_ns, *etag = entry[1:]
    return Stamp(size, modified_ns, 0, *etag)


def _show(value: object) -> object:
    if isinstance(value, str):
        return value.replace("\n", ", ")  # a schema has a line for each field
    return "not given" if value is None else value


def make_header(run: Run, sets: str | None = None, tasks: TaskPlan | None = None) -> Header:
    """Return the header of a run, given the folder of its pile sets, or the URL of their prefix, if they are kept."""
    job = run.job
    return Header(
        secrets.token_hex(8),
        _describe_job(run),
        job.inputs,
        job.output or "",
        "{}" if tasks is None else _pack_options(job, run.seed),
        str(Path.cwd()),
        sets,
        tasks,
        job.storage,
    )


def _describe_job(run: Run) -> Entry:
    """Return everything that the output depends on."""
    job, write, cut = run.job, run.output.write, run.output.cut
    options = {
        "--format": run.inputs.format,
        "--to": run.output.format,
        "--seed": str(run.seed),
        "--compression": write.compression,
        "compression level": write.compression_level,
        "--shards": cut.shards,
        "--shard-records": cut.shard_records,
        "--shard-bytes": cut.shard_bytes,
        "--head-count": job.options["head_count"],
    } | describe_options(job)
    if job.epoch is not None:
        options |= {"--epoch": job.epoch.number, "--reshuffle": job.epoch.reshuffle, "--mix": job.epoch.mix}
    formats = (run.inputs.format, run.output.format)
    packages = find_packages(formats)
    companions = [_describe_input(one) for file in run.inputs.files for one in file.companions]
    decided = {
        "packages": packages or None,
        "companions": companions or None,
        "processes": job.processes or None,
        "record_counts": run.inputs.counts,
        "part_bounds": None if run.split is None else run.split.to_json(),
    }
    return {
        "recshuf": __version__,
        "order": ORDER_VERSION,
        "libraries": find_versions(formats),
        "options": options,
        "inputs": [_describe_input(file) for file in run.inputs.files],
        "pile_count": run.plan.pile_count,
        "set_of_input": list(run.plan.set_of_input),
    } | {key: value for key, value in decided.items() if value is not None}


def _describe_input(file: InputFile) -> list[object]:
    """Return name, size, time and, if it has one, ETag of an input."""
    size, modified_ns, _, etag = file.stamp or Stamp()
    return [file.name, size, modified_ns, *filter(None, [etag])]


_LEFT_OUT = ("stdin", "stdout", "resume", "ray_address", "endpoint_url", "storage_options")
"""Options that tasks do not need, and those of `storage`."""


def _pack_options(job: Job, seed: int) -> str:
    """Return the options of a job as JSON; those that depend on the machine or the working folder are fixed."""
    given = {name: value for name, value in job.options.items() if name not in _LEFT_OUT}
    temp_dir = job.options["temp_dir"] if job.temp_dir is None else job.temp_dir.absolute()
    parsed = {
        "seed": seed,
        "engine": LOCAL if job.options["engine"] in (None, LOCAL) else "tasks",
        "memory": job.memory_bytes,
        "workers": job.workers,
        "columns": job.read.columns,
        "schema": job.read.schema,
        "temp_dir": None if temp_dir is None else os.fspath(temp_dir),
    }
    return json.dumps({name: pack(value) for name, value in (given | parsed).items()})


def divide_job(run: Run) -> TaskPlan:
    """Return the tasks of a run; large inputs that can be read in parts are."""
    plan, source = run.plan, run.inputs.source
    byte_counts = run.inputs.sizes.byte_counts.tolist()
    fragments = {
        index: [one.record_count for one in source.fragments(index, plan.block_bytes, plan.max_record_bytes)]
        for index in find_large_inputs(plan, byte_counts)
        if source.skips_fragments(index)
    }
    return divide(plan, byte_counts, fragments)


def check_sets(job: Job) -> None:
    """Refuse a prefix for pile sets that cannot be listed, before anything is written that names it."""
    if job.temp_url is not None:
        url = job.temp_url.join(PILES_PREFIX)
        from recshuf.storage.writing import open_bucket  # most runs write to no bucket

        next(open_bucket(url, job.storage, url.key).list(url.key), None)


def choose_sets(job: Job, work: Path | None) -> str:
    """Return where the pile sets of a new run go: a folder, or the URL of a prefix. `work` is the work folder, if there is one."""
    name = f"{PILES_PREFIX}{secrets.token_hex(8)}"
    if job.temp_url is not None:
        return str(job.temp_url.join(f"{name}/"))
    if work is not None and (job.temp_dir is None or real_path(job.temp_dir) == work.parent):
        return str(work / "piles")
    return str(real_path(choose_temp_dir(job.temp_dir)) / name)


def open_sets(job: Job, place: str, needed_bytes: int = 0) -> SetFolder:
    """Return the folder of pile sets at a place that `choose_sets` returned; `needed_bytes` are for messages."""
    if not is_url(place):
        return SetFolder(Path(place).parent, Path(place), needed_bytes=needed_bytes)
    from recshuf.piles.object_sets import ObjectSets  # most runs write to no bucket

    # Memory for ranges of sets of a task, of which each worker runs one.
    most_bytes = count_read_bytes(job.memory_bytes, job.workers) * 3 // 4 // job.workers
    return ObjectSets(Url.parse(place), job.storage, most_bytes, needed_bytes=needed_bytes)
