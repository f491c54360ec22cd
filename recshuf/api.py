"""The functions that Python programs call to shuffle: `shuffle`, `plan` and `verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack, cast

from recshuf.arguments import VerifyOptions, make_job
from recshuf.memory import choose_allocators
from recshuf.progress import SilentProgress, listen_to

if TYPE_CHECKING:
    import os

    from recshuf.arguments import Options, Paths
    from recshuf.plans import Plan
    from recshuf.progress import Progress
    from recshuf.report import ShuffleReport
    from recshuf.verification import VerifyReport


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
        Those of the command, by the same names, each explained in `recshuf.Options`: format, to, compression,
        shards, shard_records, shard_bytes, seed, memory, workers, temp_dir, head_count, header, zero_terminated,
        separator, max_record_bytes, datasets, columns, schema, on_bad_record, piles, nan_as_null, provenance, overwrite. What ``--report``
        writes is `ShuffleReport.to_json`.

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
    from recshuf.pipeline import run_job

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
    from recshuf.pipeline import plan_job

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
    unknown = set(options) - VerifyOptions.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}")
    job = make_job(inputs, output, cast("Options", options))
    choose_allocators(job.memory_bytes)
    from recshuf.verification import verify_job

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
    from recshuf.reporting import report_run

    with listen_to(progress) as listener:
        return report_run(done, make_job(inputs, output, options), listener)
