"""The public functions: `shuffle`, `plan`, `verify`, `check` and `picture`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Unpack, cast

from recshuf.errors import UsageError
from recshuf.job.job import list_paths, make_job, split_names
from recshuf.job.options import CheckOptions, VerifyOptions, refuse_unknown
from recshuf.job.progress import SilentProgress, listen_to
from recshuf.system.memory import choose_allocators

if TYPE_CHECKING:
    from recshuf.audit.order.check import CheckReport
    from recshuf.audit.verify.comparison import VerifyReport
    from recshuf.job.job import Job, Paths
    from recshuf.job.options import Options
    from recshuf.job.plan import Plan
    from recshuf.job.progress import Progress
    from recshuf.job.report import ShuffleReport


def shuffle(
    inputs: Paths,
    output: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> ShuffleReport:
    """Write the records of all inputs in a uniformly random order.

    Parameters
    ----------
    inputs
        Files, directories (searched at any depth) and globs; ``"-"`` or none means standard input.
    output
        A directory of shards if it ends in ``/``, is an existing directory, or an option asks for shards; else
        one file. ``"-"`` or None means standard output.
    progress
        Gets passes, record counts and warnings. Default: none.
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
        When the output exists or cannot be written; `DiskFullError` when there is no space.
    MemoryLimitError
        When the run cannot fit the memory limit.

    After an exception the output is as it was. A work folder for ``resume`` may be left beside it.
    """
    job = make_job(inputs, output, options)
    choose_allocators(job.memory_bytes)
    from recshuf.run.pipeline import run_job

    with listen_to(progress) as listener:
        return run_job(job, listener)


def plan(inputs: Paths, output: str | os.PathLike[str] | None = None, **options: Unpack[Options]) -> Plan:
    """Return what `shuffle` would do with the same arguments: piles, memory, disk, descriptors, shards.

    Reads a part of the inputs, and writes nothing.

    Raises
    ------
    RecshufError
        As `shuffle` does before it reads the inputs.
    """
    from recshuf.run.pipeline import plan_job

    return plan_job(make_job(inputs, output, options), SilentProgress())


def verify(
    inputs: Paths,
    output: str | os.PathLike[str],
    *,
    progress: Progress | None = None,
    **options: Unpack[VerifyOptions],
) -> VerifyReport:
    """Compare the records of an output with those of the inputs, in any order.

    Parameters
    ----------
    inputs
        As for `shuffle`; not standard input.
    output
        File or directory that `shuffle` wrote.
    progress
        Gets passes, record counts and warnings. Default: none.
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
    choose_allocators(job.memory_bytes)
    from recshuf.audit.verify.comparison import verify_job

    with listen_to(progress) as listener:
        return verify_job(job, listener)


def write_run(
    done: ShuffleReport,
    inputs: Paths,
    output: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> str:
    """Return an HTML page about a finished `shuffle` with the same arguments; reads the files again.

    Raises
    ------
    RecshufError
        When a file cannot be read, or Pillow or Jinja is not installed.
    """
    from recshuf.audit.reports.order_pages import report_run

    with listen_to(progress) as listener:
        return report_run(done, make_job(inputs, output, options), listener)


def check(
    data: Paths,
    *,
    against: Paths = (),
    column: str | None = None,
    provenance: bool = False,
    id_column: str | None = None,
    progress: Progress | None = None,
    **options: Unpack[CheckOptions],
) -> CheckReport:
    """Test whether records are in a uniformly random order.

    Parameters
    ----------
    data
        Files, directories and globs. With `against` or `provenance`, each is a shuffle with its own seed, and all
        are tested together.
    against
        Inputs that `data` was shuffled from, by any program; records are matched by content.
    column
        Without `against`: column, dataset or field (``a.b``) whose order of values is tested. Default: the name in
        `datasets` or `columns`, if it is a single one.
    provenance
        Without both: use the columns ``source_file`` and ``source_row`` that `shuffle` added.
    id_column
        With `against`: column or field that identifies a record. Default: its whole content.
    progress
        Gets passes, record counts and warnings. Default: none.
    **options
        See `recshuf.CheckOptions`.

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
    column = _choose_column(column, provenance or bool(list_paths(against)), options)
    jobs = _make_check_jobs(data, against, column, provenance, id_column, options)
    from recshuf.audit.order.check import check_outputs, check_values

    with listen_to(progress) as listener:
        if column is not None:
            return check_values(jobs[0], listener, column)
        return check_outputs(jobs, listener, id_column)


def write_check(
    data: Paths,
    *,
    against: Paths = (),
    column: str | None = None,
    provenance: bool = False,
    id_column: str | None = None,
    progress: Progress | None = None,
    **options: Unpack[CheckOptions],
) -> tuple[CheckReport, str]:
    """Return the result of `check` and a self-contained HTML page about it.

    Raises
    ------
    RecshufError
        As `check` does, and when Pillow or Jinja is not installed.
    """
    column = _choose_column(column, provenance or bool(list_paths(against)), options)
    jobs = _make_check_jobs(data, against, column, provenance, id_column, options)
    from recshuf.audit.reports.order_pages import report_check

    with listen_to(progress) as listener:
        names = [os.fspath(path) for path in list_paths(data)]
        return report_check(jobs, listener, column, id_column, names)


def picture(
    data: Paths,
    *,
    against: Paths = (),
    column: str | None = None,
    provenance: bool = False,
    id_column: str | None = None,
    title: str | None = None,
    progress: Progress | None = None,
    **options: Unpack[CheckOptions],
) -> bytes:
    """Return a PNG of the order of records, as points along a Hilbert curve.

    Parameters
    ----------
    data
        Files, directories and globs; with `against`, one path.
    against
        Inputs that `data` was shuffled from, drawn beside it.
    column
        Column, dataset or field (``a.b``) whose values are the colours. Default: positions in `against`.
    provenance
        Without both: colours are positions by the columns ``source_file`` and ``source_row`` that `shuffle` added.
    id_column
        With `against` and no `column`: column or field that identifies a record. Default: its whole content.
    title
        Heading of the picture. Default: names of the data.
    progress
        Gets passes, record counts and warnings. Default: none.
    **options
        See `recshuf.CheckOptions`.

    Raises
    ------
    UsageError
        When options contradict each other, a column is missing, or Pillow is not installed.
    InputError
        When a file cannot be read.
    """
    refuse_unknown(options, CheckOptions)
    paths = list_paths(data)
    column = _choose_column(column, provenance or bool(list_paths(against)), options)
    if column is None and not list_paths(against) and not provenance:
        raise UsageError("no colours; give --column NAME, --against INPUT... or --provenance")
    if provenance and (column is not None or list_paths(against)):
        raise UsageError("--provenance and --against or --column contradict each other; give one of them")
    if provenance and len(paths) > 1:
        raise UsageError("--provenance draws one shuffle; name one file or directory")
    job = _make_order_job(data, against, id_column, options)
    heading = title or ", ".join(os.fspath(path) for path in paths[:2]) + (", ..." if len(paths) > 2 else "")
    from recshuf.audit.reports.order_pictures import picture_matching, picture_values

    with listen_to(progress) as listener:
        if column is None:
            return picture_matching(job, listener, id_column, heading)
        before = [job] if against else []
        after = make_job(data, None, cast("Options", _options_of_output(options) if against else options))
        return picture_values([*before, after], listener, column, heading)


def _choose_column(column: str | None, has_basis: bool, options: CheckOptions) -> str | None:
    """Return the column to test, by default the only one of the records; None if the test has another basis."""
    if column is not None or has_basis:
        return column
    names = [
        *(split_names("--datasets", options.get("datasets")) or ()),
        *(split_names("--columns", options.get("columns")) or ()),
    ]
    if len(names) > 1:
        raise UsageError(f"several columns: {', '.join(names)}; choose one with --column NAME")
    return names[0] if names else None


def _make_check_jobs(
    data: Paths,
    against: Paths,
    column: str | None,
    provenance: bool,
    id_column: str | None,
    options: CheckOptions,
) -> list[Job]:
    """Return a job for each shuffle of `data`; one job for all of it if a column is tested."""
    refuse_unknown(options, CheckOptions)
    inputs = list_paths(against)
    if bool(inputs) + (column is not None) + provenance != 1:
        raise UsageError("give either --against INPUT..., --column NAME or --provenance")
    if provenance:
        return [_make_order_job(output, None, id_column, options) for output in list_paths(data)]
    if not inputs:
        return [_make_order_job(data, None, id_column, options)]
    return [_make_order_job(output, inputs, id_column, options) for output in list_paths(data)]


def _options_of_output(options: CheckOptions) -> CheckOptions:
    """Return the options for reading the output as an input."""
    return cast("CheckOptions", {**options, "format": options.get("to"), "to": None})


def _make_order_job(data: Paths, against: Paths, id_column: str | None, options: CheckOptions) -> Job:
    """Return the job of `against` to `data`; without `against`, the job whose inputs are the data."""
    given, inputs = list_paths(data), list_paths(against)
    if inputs and len(given) > 1:
        raise UsageError("--against draws one output; name one file or directory before it")
    if id_column is not None and not inputs:
        raise UsageError("--id works with --against only")
    job = make_job(inputs or given, given[0] if inputs else None, cast("Options", options))
    choose_allocators(job.memory_bytes)
    return job
