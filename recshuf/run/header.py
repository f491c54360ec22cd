"""What a run has decided: the first entry of its log, the file from which tasks resolve the same job, and a saved plan."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recshuf.dataclass import dataclass
from recshuf.errors import InputError, UsageError
from recshuf.formats.stored import unpack
from recshuf.interfaces import Stamp
from recshuf.job.arguments import make_job
from recshuf.job.options import Options, describe_options, refuse_unknown
from recshuf.job.parts import TaskPlan
from recshuf.piles.layout import PileLayout
from recshuf.run.address import RunAddress
from recshuf.storage.urls import is_url

if TYPE_CHECKING:
    from recshuf.job.job import Job
    from recshuf.output.run_log import Entry, TaskResults
    from recshuf.storage.settings import StorageOptions


_FORMATS = ("--format", "--to")
_FORMAT = 4


def damaged_plan() -> UsageError:
    """Return the error for a plan that is not as recshuf has made it."""
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
    """Folder of the pile sets, or URL of their prefix; None if they are not kept."""
    tasks: TaskPlan | None
    """None if this process does all the work."""
    storage: StorageOptions
    """How object stores are reached. Not written: they may be secrets."""
    is_plan: bool = False
    """Whether it is a saved plan, which users know by that name and make again."""

    def to_json(self) -> Entry:
        """Return it as JSON values."""
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
        """Return the header that `to_json` returned."""
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
            layout = PileLayout(job["pile_count"], job["region_piles"], tuple(job["set_of_input"]))
        else:
            layout = self.tasks.piles
        return replace(layout, record_counts=None if counts is None else tuple(counts))

    @property
    def seed(self) -> int:
        """Seed of the order."""
        return int(self.job["options"]["--seed"])

    @property
    def sets_of_tasks(self) -> str:
        """Folder or URL of the pile sets of its tasks."""
        if self.sets is None:
            raise damaged_plan()
        return self.sets

    @property
    def division(self) -> TaskPlan:
        """Its tasks, which it has."""
        if self.tasks is None:
            raise damaged_plan()
        return self.tasks

    def find_address(self, results: TaskResults, job: Job) -> RunAddress:
        """Return where tasks find the run, whose results are in this folder, and what each may use."""
        share = job.memory_bytes, job.workers, job.processes
        options = tuple(self.storage.options.items())
        return RunAddress(results.address, self.output, self.id, *share, self.storage.endpoint_url, options)

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
        self._compare("list of inputs", [name for name, *_ in olds], [name for name, *_ in news])
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
        if self.is_plan:
            raise UsageError(
                f"the {what} was {was} when the plan was made and is {is_now}; give it as before, or make the plan again"
            )
        raise UsageError(
            f"--resume: the {what} was {was} in the unfinished run and is {is_now}; give it as before, or start anew"
        )


def _unpack(entry: list[Any]) -> Stamp:
    size, modified_ns, *etag = entry[1:]
    return Stamp(size, modified_ns, 0, *etag)


def _show(value: object) -> object:
    if isinstance(value, str):
        return value.replace("\n", ", ")  # a schema has a line for each field
    return "not given" if value is None else value
