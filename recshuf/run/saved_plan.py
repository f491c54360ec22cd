"""A run whose tasks are commands: its plan as a file, and what runs a task of it."""

from __future__ import annotations

import secrets
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from recshuf.errors import (
    AlreadyCompleteError,
    ForeignFileError,
    OutputError,
    OutputExistsError,
    PileError,
    UnfinishedOutputError,
    UsageError,
)
from recshuf.job.parts import STAGES
from recshuf.output.entries import find_sets
from recshuf.output.manifest import Manifest, manifest_path
from recshuf.output.run_log import is_sealed, name_result, read_results, seal
from recshuf.run.driver import run_job
from recshuf.run.features import settle_parts
from recshuf.run.header import (
    Header,
    check_format,
    check_sets,
    choose_sets,
    damaged_plan,
    divide_job,
    make_header,
)
from recshuf.run.open_run import find_results, join, open_task_store, read_header
from recshuf.run.resolve import Run, find_destination, resolve_job
from recshuf.run.scatter_pass import check_set
from recshuf.run.task import do_work
from recshuf.storage import StorageOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.job.job import Job
    from recshuf.job.plan import Plan
    from recshuf.job.report import Progress, ShuffleReport
    from recshuf.output import Destination


_REMOVE = "remove it and run this task again"


def save_plan(job: Job, progress: Progress) -> tuple[Plan, dict[str, Any]]:
    """Return the plan of a job that uses tasks, and its run as JSON values."""
    destination = find_destination(job, progress)
    if destination is not None:
        destination.check(overwrite=job.options["overwrite"])
    check_sets(job)
    if job.quarantine is not None:  # its path must not depend on the folder of the commit
        path = job.quarantine.absolute()
        job = replace(job, quarantine=path, options=job.options | {"on_bad_record": f"quarantine:{path}"})
    run = resolve_job(job, destination, progress)
    seed, work = job.options["seed"], find_results(destination).private
    run = settle_parts(replace(run, seed=secrets.randbits(128) if seed is None else seed), None)
    tasks = divide_job(run)
    header = make_header(run, choose_sets(job, None if work is None else work.parent), tasks)
    replaced = None if destination is None else _find_version(destination)
    values = header.to_json() | {"replaces": replaced, "storage": asdict(job.storage)}
    return tasks.fit(run.plan), seal(values)


def _find_version(destination: Destination) -> list[object] | None:
    """Return JSON values that change when a run puts the output in place; None if there is no output."""
    path = destination.local_path
    if path is None:
        return _find_token(destination)
    try:
        found = (manifest_path(path) if destination.is_directory else path).stat()
    except OSError:
        return None
    return [found.st_size, found.st_mtime_ns]


def _find_token(destination: Destination) -> list[object] | None:
    """Return the key of an object of an output, and what a run has marked it with."""
    from recshuf.output.objects import ObjectDestination  # most runs use no object store

    if not isinstance(destination, ObjectDestination):
        return None
    key = min(destination.place.look().etags, default=None)
    return None if key is None else [key, destination.bucket.find_token(key)]


def _load_header(values: dict[str, Any]) -> Header:
    check_format(values, is_plan=True)
    if not is_sealed(values):
        raise damaged_plan()
    return Header.from_json(values, _parse_storage(values.get("storage")), is_plan=True)


def _parse_storage(values: Any) -> StorageOptions:
    """Return storage options, which users may have changed."""
    match values:
        case {"endpoint_url": None | str() as url, "options": dict(options)} if len(values) == 2:
            if all(isinstance(one, str) for one in options.values()):
                return StorageOptions(url, options)
    raise damaged_plan()


def list_stage(values: dict[str, Any], stage: str) -> range:
    """Return the numbers of the tasks of a stage, one of `STAGES`; none of them needs another."""
    tasks = _load_header(values).division
    last = range(tasks.commit, tasks.commit + 1)
    return dict(zip(STAGES, (range(tasks.scatter.start), tasks.scatter, tasks.gather, last), strict=True))[
        stage
    ]


def run_saved(values: dict[str, Any], number: int, progress: Progress) -> ShuffleReport | None:
    """Run a task. The last one puts the output in place, and returns the report of the run; others return None."""
    header = _load_header(values)
    last = header.division.commit
    if number not in range(last + 1):
        raise UsageError(f"there is no task {number}; the plan has tasks 0 to {last}")
    job = header.make_job()
    destination = find_destination(job, progress)
    if destination is None:
        raise damaged_plan()
    destination.complete_removal()
    results = find_results(destination)
    has_begun, version = read_header(results, header) is not None, _find_version(destination)
    if not has_begun and version != values["replaces"]:
        if number != last or not _is_own(destination, header, job):
            raise _written_since(destination, "make the plan again")
        if destination.local_path is None:
            # It may have left what it could not delete; without --overwrite nothing else is done.
            job = replace(job, options=job.options | {"overwrite": False, "resume": True})
            with _refuse_written(destination, last), suppress(AlreadyCompleteError):
                return run_job(job, progress, header)
        raise AlreadyCompleteError(f"{destination.name}: complete; this task has put it in place before")
    if not has_begun and destination.has_log():
        with results.share(header.output):
            raise _left_beside(destination)
    if version not in (None, values["replaces"]) and not destination.has_log():  # else a commit has begun
        raise _written_since(destination, _REMOVE)
    with _refuse_written(destination, last):
        if number == last:
            read_results(results, header.id, range(last))
            return run_job(replace(job, options=job.options | {"resume": True}), progress, header)
        destination.check(overwrite=job.options["overwrite"])
    with results.share(header.output):
        run = join(header, job, destination)
        if not _is_done(run, number):
            do_work(run, number)
    return None


def _is_done(run: Run, number: int) -> bool:
    """Tell whether a task has a result, which is deleted if its pile set or bad records are missing or damaged."""
    assert run.results is not None  # noqa: S101 - it is a task
    name = name_result(run.header.id, number)
    result = run.results.read(name)
    if result is None or number not in run.tasks.scatter:
        return result is not None
    with open_task_store(run) as store:
        try:
            for entry in find_sets(result["entries"]):
                check_set(run, store, entry)
        except PileError:
            run.results.remove(name)
            return False
    return True


def _is_own(destination: Destination, header: Header, job: Job) -> bool:
    """Tell whether the commit of a plan has written an output.

    Its objects have the run's mark. A local folder has a manifest with all that the plan decides and a manifest holds,
    and a local file has nothing that tells.
    """
    path = destination.local_path
    if path is None:
        found = _find_token(destination)
        return found is not None and found[1] == header.id
    if not (destination.is_directory and destination.is_complete()):
        return False
    from recshuf.run.verify import find_difference  # most tasks find no output

    decided = header.job["options"]
    options = job.options | {"format": decided["--format"], "to": decided["--to"]}
    job = replace(job, options=options)
    manifest = Manifest.read(path)
    return manifest is not None and find_difference(job, manifest, header.job["inputs"]) is None


def _written_since(destination: Destination, remedy: str) -> OutputExistsError:
    """Return the error for an output that is not as the plan found it; `remedy` is for one that others have written."""
    return OutputExistsError(
        f"{destination.name}: was written after this plan was made; if by its tasks, all are done; else {remedy}"
    )


def _left_beside(destination: Destination) -> OutputError:
    """Return the error for what a run that is not of this plan has left."""
    work = destination.begin()
    # Only a folder has a lock, which has told that the run is dead.
    may_live = "" if destination.local_path else "another run is writing it, or "
    return OutputError(
        f"{destination.name}: {may_live}an unfinished run left parts in {work.name}; continue it with its own command and --resume, "
        f"or {work.removal}"
    )


@contextmanager
def _refuse_written(destination: Destination, last: int) -> Iterator[None]:
    """Say of an output that exists what can be done about it here, since a task has no options; `last` is the commit."""
    try:
        yield
    except AlreadyCompleteError:
        raise
    except (ForeignFileError, UnfinishedOutputError) as error:
        problem, _, _ = str(error).rpartition(";")
        way = _REMOVE
        if isinstance(error, UnfinishedOutputError):
            way = f"run task {last} to complete it"
        raise type(error)(f"{problem}; {way}") from error
    except OutputExistsError as error:
        raise _written_since(destination, _REMOVE) from error
