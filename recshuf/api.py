"""The public functions, from arguments to jobs, and from jobs to runs."""

from __future__ import annotations

import os  # noqa: TC003 - `typing.get_type_hints` needs it, as it does the names below
import sys
from collections.abc import Mapping  # noqa: TC003 - for typing.get_type_hints
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime  # noqa: TC003 - for typing.get_type_hints
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, cast

# Return types are named by the package, which imports them when they are asked for; some import pyarrow.
import recshuf  # noqa: TC001
from recshuf.errors import RecshufError, UsageError
from recshuf.job.arguments import list_paths, make_job, parse_path
from recshuf.job.job import Epoch
from recshuf.job.options import (
    GatherOptions,
    Options,
    OrderOptions,
    Paths,
    ScatterOptions,
    Size,
    VerifyOptions,
    refuse_unknown,
    to_keywords,
)
from recshuf.job.order_jobs import OrderJobs
from recshuf.job.progress import Progress, SilentProgress
from recshuf.job.shares import check_shares
from recshuf.piles.order.epochs import MAX_EPOCH
from recshuf.records.keys import MAX_PILES
from recshuf.system.memory import choose_allocators
from recshuf.system.numbers import check_number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


P = ParamSpec("P")
R = TypeVar("R")


def shuffle(
    inputs: Paths,
    output: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | bool | None = None,
    **options: Unpack[Options],
) -> recshuf.ShuffleReport:
    """Write the records of all inputs in a uniformly random order.

    Parameters
    ----------
    inputs
        Files, directories (searched at any depth) and globs; ``"-"`` means standard input.
    output
        A directory of shards if it ends in ``/``, is an existing directory, or an option asks for shards; else
        one file. ``"-"`` means standard output. It must be given: None, the default, is a `UsageError`.
    progress
        True for a display on standard error, or an object that gets passes, record counts and warnings
        (`recshuf.Progress`). Default: none.
    **options
        The options of the command line, see `recshuf.Options`.

    Returns
    -------
    ShuffleReport
        Figures of the run; `to_json` returns what ``--report`` writes.

    Raises
    ------
    UsageError
        When an option is out of range or contradicts another.
    InputError
        When an input cannot be read or does not fit the others.
    ConversionError
        When the output format cannot hold a field or value.
    OutputError
        When the output exists or cannot be written; `DiskFullError` when there is no space, `AlreadyCompleteError` when
        `resume` finds the output complete.
    MemoryLimitError
        When the run cannot fit the memory limit.

    After an exception the output is as it was, unless `verify` has compared one in an object store, which is in place by
    then. A work folder for ``resume`` may be left beside it.
    """
    if output is None:
        raise UsageError('no output; name a file or directory, or give "-" for standard output')
    job = make_job(inputs, output, options)
    if job.options["engine"] == "tasks":
        raise UsageError(
            "--engine tasks: run recshuf task FILE with each number of the plan that is written by "
            "recshuf INPUT... -o OUTPUT --engine tasks --plan --report FILE"
        )
    choose_allocators(job.memory_bytes)
    from recshuf.run.pipeline import run_job

    with _listen(progress) as listener:
        return run_job(job, listener)


def scatter(
    inputs: Paths,
    store: str | os.PathLike[str],
    *,
    split: Mapping[str, float | str] | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[ScatterOptions],
) -> recshuf.ScatterReport:
    """Write the records of all inputs into a new pile store, from which `gather` writes shuffled files.

    Parameters
    ----------
    inputs
        As for `shuffle`.
    store
        Folder of the store; it must not exist.
    split
        Shares of the records by name, numbers or text such as ``"1/3"``, which add up to 1. Each becomes a store of this name
        in the folder `store`. Counts are exact, and every choice of so many records is equally likely. Inputs whose files
        do not tell how many records they hold are read twice. Default: one store.
    progress
        As for `shuffle`.
    **options
        See `recshuf.ScatterOptions`.

    Returns
    -------
    ScatterReport
        Figures of the scatter.

    Raises
    ------
    RecshufError
        As `shuffle` does. After an exception there is no store.
    """
    refuse_unknown(options, ScatterOptions)
    job = make_job(inputs, None, cast("Options", options))
    path, shares = Path(parse_path("store", store)), None if split is None else check_shares(split)
    choose_allocators(job.memory_bytes)
    from recshuf.run.stores.scatter_store import scatter_store
    from recshuf.run.stores.split_store import scatter_split

    with _listen(progress) as listener:
        if shares is not None:
            return scatter_split(job, path, shares, listener)
        return scatter_store(job, path, listener)


def cache_store(
    inputs: Paths,
    cache: str | os.PathLike[str],
    *,
    progress: Progress | bool | None = None,
    **options: Unpack[ScatterOptions],
) -> Path:
    """Return the path of the store of some inputs in a cache folder; see `PileLoader.from_files`.

    Raises
    ------
    RecshufError
        As `scatter` does.
    """
    refuse_unknown(options, ScatterOptions)
    job = make_job(inputs, None, cast("Options", options))
    choose_allocators(job.memory_bytes)
    from recshuf.run.stores.cached_store import find_or_scatter

    with _listen(progress) as listener:
        return find_or_scatter(job, Path(parse_path("cache", cache)), listener)


def gather(
    store: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    epoch: int = 0,
    reshuffle: str = "rotate",
    mix: int = 1,
    progress: Progress | bool | None = None,
    **options: Unpack[GatherOptions],
) -> recshuf.ShuffleReport:
    """Write the records of a pile store in random order, by default the bytes that `shuffle` writes from its inputs.

    Parameters
    ----------
    store
        Folder that `scatter` made.
    output
        As for `shuffle`.
    epoch, reshuffle, mix
        The order: that of a `PileLoader` with the same arguments. Default: that of `shuffle` with the store's seed.
    progress
        As for `shuffle`.
    **options
        See `recshuf.GatherOptions`.

    Returns
    -------
    ShuffleReport
        Figures of the run.

    Raises
    ------
    UsageError
        When there is no such store.
    PileError
        When it is damaged.
    RecshufError
        As `shuffle` does.
    """
    refuse_unknown(options, GatherOptions)
    order = Epoch(
        check_number("--epoch", epoch, MAX_EPOCH),
        reshuffle,
        check_number("--mix", mix, MAX_PILES, least=1),
    )
    job = make_job(parse_path("store", store), output, cast("Options", options))
    job.require_local_scratch()
    choose_allocators(job.memory_bytes)
    from recshuf.run.pipeline import run_job

    with _listen(progress) as listener:
        return run_job(replace(job, epoch=order), listener)


def window(
    store: str | os.PathLike[str],
    append: Paths = (),
    *,
    time: float | str | datetime | None = None,
    expire_before: float | str | datetime | None = None,
    keep_records: int | None = None,
    keep_bytes: Size | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[ScatterOptions],
) -> recshuf.PileStore:
    """Append inputs to a pile store as a time slice, and remove old slices, in one step.

    Parameters
    ----------
    store
        Folder of the store; it must exist.
    append
        Inputs, as for `scatter`. Default: none.
    time
        Time of the slice: seconds since 1970, a datetime, or text such as ``2026-01-31``; UTC. Default: now.
    expire_before, keep_records, keep_bytes
        Remove slices that are older than a time, given as `time` is. Keep the newest slices that together hold at most so
        many records or bytes. Default: keep all. A slice is removed as a whole. Records of `scatter` and `PileWriter` have no
        time, and count as older than all others.
    progress
        As for `shuffle`.
    **options
        See `recshuf.ScatterOptions`.

    Returns
    -------
    PileStore
        The store at its new snapshot.

    Raises
    ------
    RecshufError
        As `scatter` does. After an exception the store is as it was.
    """
    paths = list_paths("append", append)
    from recshuf.run.stores.pile_store import PileStore

    refuse_unknown(options, ScatterOptions)
    if not paths and expire_before is None and keep_records is None and keep_bytes is None:
        raise UsageError("nothing to do; give append, expire_before, keep_records or keep_bytes")
    if keep_records is not None:
        keep_records = check_number("--keep-records", keep_records, sys.maxsize)
    found = PileStore(parse_path("store", store))
    with _listen(progress) as listener, found.update(listener) as update:
        update.expire(before=expire_before, records=keep_records, bytes=keep_bytes)
        if paths:
            update.append(paths, time=time, **options)
    return found


def compact(
    store: str | os.PathLike[str], *, sets: int = 16, progress: Progress | bool | None = None
) -> recshuf.PileStore:
    """Write the records of a pile store to fewer sets, which load faster than many small ones.

    Slices of a window that follow each other are joined, and then leave it together. The order of epoch 0 stays the same.
    Later epochs change.

    Parameters
    ----------
    store
        Folder of the store.
    sets
        Number of sets at most. A store that has no more stays as it is.
    progress
        As for `shuffle`.

    Returns
    -------
    PileStore
        The store at its newest snapshot.

    Raises
    ------
    UsageError
        When there is no such store.
    PileError
        When it is damaged.
    OutputError
        When it cannot be written, or another process removes records meanwhile.
    """
    from recshuf.piles.store.compaction import compact_store
    from recshuf.run.stores.pile_store import PileStore

    sets = check_number("--sets", sets, MAX_PILES, least=1)
    found = PileStore(parse_path("store", store))
    with _listen(progress) as listener:
        listener.start("compact", found.num_records, found.num_bytes)
        compact_store(found.path, sets, listener.advance)
    return PileStore(found.path)


def plan(
    inputs: Paths, output: str | os.PathLike[str] | None = None, **options: Unpack[Options]
) -> recshuf.Plan:
    """Return what `shuffle` would do with the same arguments: piles, memory, disk, descriptors, shards.

    Reads a part of the inputs, and writes nothing.

    Raises
    ------
    RecshufError
        As `shuffle` does before it reads the inputs.
    """
    from recshuf.run.pipeline import plan_job

    return plan_job(make_job(inputs, output, options), SilentProgress())


def plan_tasks(
    inputs: Paths, output: str | os.PathLike[str] | None = None, **options: Unpack[Options]
) -> tuple[recshuf.Plan, dict[str, Any]]:
    """Return the plan of a run whose tasks `run_task` runs, and the run as JSON values.

    Raises
    ------
    RecshufError
        As `plan` does.
    """
    job = make_job(inputs, output, options | {"engine": "tasks"})
    from recshuf.run.saved_plan import save_plan

    return save_plan(job, SilentProgress())


def list_tasks(run: dict[str, Any], stage: str) -> range:
    """Return the numbers of the tasks of a stage of what `plan_tasks` returned: count, scatter, gather or commit.

    Raises
    ------
    UsageError
        When another version of recshuf has made the plan, or it is damaged.
    """
    _choose_allocators(run)
    from recshuf.run.saved_plan import list_stage

    return list_stage(run, stage)


def _choose_allocators(run: dict[str, Any]) -> None:
    """Choose allocators before the values of a plan are checked, which imports Arrow."""
    with suppress(LookupError, TypeError):
        choose_allocators(run["options"]["memory"])


def run_task(
    run: dict[str, Any], number: int, *, progress: Progress | bool | None = None
) -> recshuf.ShuffleReport | None:
    """Run one task of what `plan_tasks` returned; the last one returns the report of the run.

    Raises
    ------
    RecshufError
        When it fails, or tasks of an earlier stage are missing.
    """
    _choose_allocators(run)
    from recshuf.run.saved_plan import run_saved

    with _listen(progress) as listener:
        return run_saved(run, number, listener)


def verify(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    progress: Progress | bool | None = None,
    **options: Unpack[VerifyOptions],
) -> recshuf.VerifyReport:
    """Compare the records of an output with those of the inputs, in any order.

    Parameters
    ----------
    inputs
        As for `shuffle`; not standard input.
    output
        File or directory that `shuffle` wrote.
    progress
        True for a display on standard error, or an object that gets passes, record counts and warnings
        (`recshuf.Progress`). Default: none.
    **options
        See `recshuf.VerifyOptions`.

    Returns
    -------
    VerifyReport
        `is_equal`, and the differences; `to_json` returns what ``--report`` writes.

    Raises
    ------
    UsageError
        When options are out of range or contradict each other.
    InputError
        When an input or the output cannot be read.
    """
    refuse_unknown(options, VerifyOptions)
    job = make_job(inputs, output, cast("Options", options))
    job.require_local_scratch()
    choose_allocators(job.memory_bytes)
    from recshuf.audit.verify.verification import verify_job

    with _listen(progress) as listener:
        return verify_job(job, listener)


def write_run(
    done: recshuf.ShuffleReport,
    inputs: Paths,
    output: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | bool | None = None,
    **options: Unpack[Options],
) -> str:
    """Return an HTML page about a finished `shuffle` with the same arguments; reads the files again.

    Raises
    ------
    RecshufError
        When a file cannot be read, or Pillow or Jinja is not installed.
    """
    from recshuf.audit.reports.order_pages import report_run

    with _listen(progress) as listener:
        return report_run(done, make_job(inputs, output, options), listener)


def check(
    data: Paths, *, progress: Progress | bool | None = None, **options: Unpack[OrderOptions]
) -> recshuf.CheckReport:
    """Test whether records are in a uniformly random order.

    Parameters
    ----------
    data
        Files, directories and globs. With `against` or `provenance`, each is a shuffle with its own seed, and all
        are tested together.
    progress
        True for a display on standard error, or an object that gets passes, record counts and warnings
        (`recshuf.Progress`). Default: none.
    **options
        See `recshuf.OrderOptions`. One of `against`, `column` and `provenance` is needed.

    Returns
    -------
    CheckReport
        `is_uniform` unless there is evidence against it, and the score of every statistic.

    Raises
    ------
    UsageError
        When options contradict each other, there are fewer than 1,000 records, or a column is missing.
    InputError
        When a file cannot be read.
    """
    order = OrderJobs.of(data, options)
    jobs = order.make_check_jobs()
    from recshuf.audit.order.check import check_outputs, check_values

    with _listen(progress) as listener:
        if order.column is not None:
            return check_values(jobs[0], listener, order.column)
        return check_outputs(jobs, listener, order.id_column)


def check_loader(
    store: str | os.PathLike[str],
    *,
    seed: int | None = None,
    epoch: int = 1,
    reshuffle: str = "rotate",
    mix: int = 1,
    progress: Progress | bool | None = None,
) -> recshuf.CheckReport:
    """Test what a `PileLoader` yields in two epochs, `epoch` and the next one: every record once, and in random order.

    Records are told apart by their ``_id``; their values are not compared. Takes 40 bytes of memory for each record.

    Parameters
    ----------
    store
        Folder of the store.
    seed, epoch, reshuffle, mix
        As for `PileLoader`; `epoch` is the first of the two. Default of `seed`: that of the store.
    progress
        As for `shuffle`.

    Returns
    -------
    CheckReport
        As for `check`. A further statistic, ``meetings``, says how much more often than by chance two records that shared a
        group in one epoch do so in the next. It is compared with that of other seeds.

    Raises
    ------
    UsageError
        When there is no store, or it has fewer than 1,000 records.
    PileError
        When it is damaged.
    CheckError
        When a record comes twice or not at all, or the order of both epochs is the same.
    """
    mix = check_number("--mix", mix, MAX_PILES, least=1)
    epoch = check_number("--epoch", epoch, MAX_EPOCH - 1)
    path = Path(parse_path("store", store))
    from recshuf.train.check import check_epochs

    with _listen(progress) as listener:
        return check_epochs(path, seed, epoch, reshuffle, mix, listener)


def write_check(
    data: Paths, *, progress: Progress | bool | None = None, **options: Unpack[OrderOptions]
) -> tuple[recshuf.CheckReport, str]:
    """Return the result of `check` and a self-contained HTML page about it.

    Raises
    ------
    RecshufError
        As `check` does, and when Pillow or Jinja is not installed.
    """
    order = OrderJobs.of(data, options)
    jobs = order.make_check_jobs()
    from recshuf.audit.reports.order_pages import report_check

    with _listen(progress) as listener:
        return report_check(jobs, listener, order.column, order.id_column, order.data)


def picture(
    data: Paths,
    *,
    title: str | None = None,
    progress: Progress | bool | None = None,
    **options: Unpack[OrderOptions],
) -> bytes:
    """Return a PNG of the order of records, as points along a Hilbert curve.

    Parameters
    ----------
    data
        Files, directories and globs; with `against`, one path.
    title
        Heading of the picture. Default: names of the data.
    progress
        True for a display on standard error, or an object that gets passes, record counts and warnings
        (`recshuf.Progress`). Default: none.
    **options
        See `recshuf.OrderOptions`. Colours are the values of `column`, or else positions by `against` or
        `provenance`. With `against`, its records are drawn beside the data.

    Raises
    ------
    UsageError
        When options contradict each other, a column is missing, or Pillow is not installed.
    InputError
        When a file cannot be read.
    """
    order = OrderJobs.of(data, options)
    job = order.make_picture_job()
    heading = title or ", ".join(order.data[:2]) + (", ..." if len(order.data) > 2 else "")
    from recshuf.audit.reports.order_pictures import picture_matching, picture_values

    with _listen(progress) as listener:
        if order.column is None:
            return picture_matching(job, listener, order.id_column, heading)
        jobs = [job, order.make_output_job()] if order.against else [job]
        return picture_values(jobs, listener, order.column, heading)


def speak_python(function: Callable[P, R]) -> Callable[P, R]:
    """Return the function as a public one, whose errors and notes name its arguments in place of the command's flags."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            if isinstance(error, RecshufError):
                error.args = (to_keywords(str(error)),)
            if notes := getattr(error, "__notes__", None):
                notes[:] = map(to_keywords, notes)
            raise

    call.__module__ = "recshuf"  # where pickle finds it
    return call


@contextmanager
def _listen(progress: Progress | bool | None) -> Iterator[Progress]:
    """Yield a listener, by default a silent one, and stop it at the end."""
    listener: Progress
    if progress is True:
        from recshuf.audit.reports.terminal import open_terminal

        listener = open_terminal()
    elif progress is None or progress is False:
        listener = SilentProgress()
    elif isinstance(progress, Progress):
        listener = progress
    else:
        raise UsageError("progress: give True, False, or an object with start, advance, warn and stop")
    try:
        yield listener
    finally:
        listener.stop()
