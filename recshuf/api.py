"""The functions that Python programs call: `shuffle`, `plan`, `verify`, `check` and `picture`."""

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
    """Write the records of all inputs in a uniformly random order, and return the figures of the run.

    Parameters
    ----------
    inputs
        Files, directories (searched at any depth) and globs; ``"-"`` or none at all is standard input.
    output
        A directory of shards if it ends in ``/``, exists as one, or shards are asked for; else a file;
        ``"-"`` or None is standard output.
    progress
        Hears of passes, records and warnings; None for nobody.
    **options
        Those of the command, by the same names, each explained in `recshuf.Options`. What ``--report`` writes is
        `ShuffleReport.to_json`.

    Raises
    ------
    UsageError
        When options are out of range or contradict each other.
    InputError
        When an input cannot be read or does not fit the others.
    ConversionError
        When the output format cannot hold a field or value.
    OutputError
        When the output exists or cannot be written; `DiskFullError` when there is no space.
    MemoryLimitError
        When the run cannot fit the memory limit.

    Nothing is left under the output's name, nor in the scratch folder, when an exception is raised.
    """
    job = make_job(inputs, output, options)
    choose_allocators(job.memory_bytes)
    from recshuf.run.pipeline import run_job

    with listen_to(progress) as listener:
        return run_job(job, listener)


def plan(inputs: Paths, output: str | os.PathLike[str] | None = None, **options: Unpack[Options]) -> Plan:
    """Return what `shuffle` would do with the same arguments: piles, memory, disk, descriptors, shards.

    Inputs are looked at, and standard input is sampled; nothing is written.

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
    """Prove from the files alone that an output holds the same records as the inputs, in whatever order.

    Parameters
    ----------
    inputs
        As for `shuffle`; not standard input.
    output
        What `shuffle` wrote: a file or a directory.
    progress
        Hears of passes, records and warnings; None for nobody.
    **options
        Each explained in `recshuf.VerifyOptions`.

    Returns
    -------
    VerifyReport
        Whether they are equal (`is_equal`), and if not, in what they differ. What ``--report`` writes is its
        `to_json`.

    Raises
    ------
    UsageError
        When options are out of range or contradict each other.
    InputError
        When a file of either side cannot be read.
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
    """Return a page about what `shuffle` has done with the same arguments; the files are read again.

    Raises
    ------
    RecshufError
        When they cannot be read, or Pillow or Jinja is not installed.
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
        Files, directories and globs; with `against` or `provenance`, each is a shuffle of its own, with another
        seed: they are tested together.
    against
        What `data` was made from, by whatever program: where each record comes from is found by its content.
    column
        Without `against`: the column, dataset or field (``a.b``) by whose values the order is tested. Where `datasets` or
        `columns` names a single one, it is that.
    provenance
        Without both: where a record comes from is what the columns say that `shuffle` has added.
    id_column
        With `against`: what tells records apart; None for their whole content.
    progress
        Hears of passes, records and warnings; None for nobody.
    **options
        Each explained in `recshuf.CheckOptions`.

    Returns
    -------
    CheckReport
        Whether nothing speaks against it (`is_uniform`), and the score of every statistic.

    Raises
    ------
    UsageError
        When options contradict each other, there are fewer than 1,000 records, or a column is not there.
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
    """Do what `check` does, and return a page about the findings, too: HTML that loads nothing.

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
    """Return a PNG of the order of records, each a point on a Hilbert curve.

    Parameters
    ----------
    data
        Files, directories and globs; with `against`, one path.
    against
        What `data` was made from; it is drawn beside it.
    column
        The column, dataset or field (``a.b``) whose values are the colours; None for the places of records in
        `against`.
    provenance
        Without both: the colours are the places that the columns say that `shuffle` has added.
    id_column
        With `against` and no `column`: what tells records apart; None for their whole content.
    title
        The heading; None for the names of the data.
    progress
        Hears of passes, records and warnings; None for nobody.
    **options
        Each explained in `recshuf.CheckOptions`.

    Raises
    ------
    UsageError
        When options contradict each other, a column is not there, or Pillow is not installed.
    InputError
        When a file cannot be read.
    """
    refuse_unknown(options, CheckOptions)
    paths = list_paths(data)
    column = _choose_column(column, provenance or bool(list_paths(against)), options)
    if column is None and not list_paths(against) and not provenance:
        raise UsageError(
            "give --column NAME, --against INPUT... or --provenance, which tell what the colours are"
        )
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


def _choose_column(column: str | None, is_told: bool, options: CheckOptions) -> str | None:
    """Return by which column an order is told, if not by something else.

    One that is chosen as all there is to a record need not be named again.
    """
    if column is not None or is_told:
        return column
    names = [
        *(split_names("--datasets", options.get("datasets")) or ()),
        *(split_names("--columns", options.get("columns")) or ()),
    ]
    if len(names) > 1:
        raise UsageError(
            f"--column NAME tells by which of {', '.join(names)} the order is tested; give it, too"
        )
    return names[0] if names else None


def _make_check_jobs(
    data: Paths,
    against: Paths,
    column: str | None,
    provenance: bool,
    id_column: str | None,
    options: CheckOptions,
) -> list[Job]:
    """Return a job for each output, or one whose inputs are the data, or one for each of them."""
    refuse_unknown(options, CheckOptions)
    inputs = list_paths(against)
    if bool(inputs) + (column is not None) + provenance != 1:
        raise UsageError(
            "give either --against INPUT..., --column NAME or --provenance, by which the order is tested"
        )
    if provenance:
        return [_make_order_job(output, None, id_column, options) for output in list_paths(data)]
    if not inputs:
        return [_make_order_job(data, None, id_column, options)]
    return [_make_order_job(output, inputs, id_column, options) for output in list_paths(data)]


def _options_of_output(options: CheckOptions) -> CheckOptions:
    """Return the options by which data are read that were made from others."""
    return cast("CheckOptions", {**options, "format": options.get("to"), "to": None})


def _make_order_job(data: Paths, against: Paths, id_column: str | None, options: CheckOptions) -> Job:
    """Return the job whose output is the data and whose inputs are what it was made from, or the data alone."""
    given, inputs = list_paths(data), list_paths(against)
    if inputs and len(given) > 1:
        raise UsageError(
            "--against compares one output with its inputs; name one file or directory before it"
        )
    if id_column is not None and not inputs:
        raise UsageError("--id tells which records are the same with --against only")
    job = make_job(inputs or given, given[0] if inputs else None, cast("Options", options))
    choose_allocators(job.memory_bytes)
    return job
