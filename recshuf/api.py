"""The functions that Python programs call: `shuffle`, `plan`, `verify`, `check` and `picture`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict, Unpack, cast

from recshuf.errors import UsageError
from recshuf.interfaces import ReadOptions, WriteOptions
from recshuf.job import Job
from recshuf.memory import choose_allocators, parse_size
from recshuf.plans import Cut
from recshuf.progress import SilentProgress

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from recshuf.checking import CheckReport
    from recshuf.plans import Plan
    from recshuf.progress import Progress
    from recshuf.report import ShuffleReport
    from recshuf.verification import VerifyReport

Paths = str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None
Names = str | Iterable[str]
Size = int | str


class Options(TypedDict, total=False):
    """Options of `shuffle` and `plan`, named like those of the command; a size is a number or ``"300MB"``."""

    format: str | None
    """Format of the inputs: ``jsonl``, ``text``, ``parquet`` or ``hdf5``; None to detect it."""
    to: str | None
    """Format of the output; None for that of the output's suffix, else of the inputs."""
    compression: str | None
    """Of the output, with or without a level: ``"zstd:9"``; None for that of the inputs."""
    shards: int | None
    """Number of shards, whose record counts differ by at most one."""
    shard_records: int | None
    """Records in each shard but the last."""
    shard_bytes: Size | None
    """About how large a shard should be."""
    seed: int | None
    """0 to 2**128 - 1; None draws one, which the report names."""
    memory: Size | None
    """Limit of what the run holds beside the interpreter and its libraries; None for half of what is free."""
    workers: int | None
    """Threads; None for the usable cores. The output does not depend on it."""
    temp_dir: str | os.PathLike[str] | None
    """Where piles spill; None for beside the output."""
    spill_compression: str
    """Of what is spilled: ``"none"``, the default, ``"lz4"`` or ``"zstd"``. The output does not depend on it."""
    head_count: int | None
    """Write only so many records: a uniform sample without replacement, in random order."""
    header: int
    """Lines at the top of each text input that are kept once, at the top of each shard."""
    zero_terminated: bool
    """Text records end with a zero byte."""
    separator: str | bytes | None
    """What ends a text record; None for a newline."""
    max_record_bytes: Size
    """Longest text record accepted, by default 1 GiB."""
    datasets: Names | None
    """HDF5 datasets that are the record; a string is split at commas."""
    columns: Names | None
    """Parquet columns to keep; a string is split at commas."""
    schema: pa.Schema | str | os.PathLike[str] | None
    """Types for a conversion from JSONL or text: a schema, or the path of a schema file."""
    on_bad_record: str
    """In a conversion from lines, what to do with those that do not parse: ``"fail"``, the default, or
    ``"quarantine:FILE"`` to set them aside."""
    piles: int | None
    """Number of piles; None for what the plan finds best."""
    nan_as_null: bool
    """Write NaN and infinities as JSON null instead of refusing them."""
    provenance: bool
    """Add the columns ``source_file`` and ``source_row``, which say where each record was read."""
    overwrite: bool
    """Replace an output that exists."""
    resume: bool
    """Go on from what an earlier run with the same arguments has finished; memory and workers may differ."""
    verify: bool
    """Compare the shards with the inputs, record by record, before they are put in place."""
    no_space_check: bool
    """Start even if the disk seems to have no room for the run."""
    stdin: BinaryIO | None
    """What to read when the input is ``-``; None for standard input."""
    stdout: BinaryIO | None
    """What to write when the output is ``-``; None for standard output."""


class VerifyOptions(TypedDict, total=False):
    """Options of `verify`: those of the `shuffle` that wrote the output, as far as they say what its records are."""

    format: str | None
    to: str | None
    header: int
    zero_terminated: bool
    separator: str | bytes | None
    max_record_bytes: Size
    datasets: Names | None
    columns: Names | None
    schema: pa.Schema | str | os.PathLike[str] | None
    head_count: int | None
    """Of how many records the output is a sample."""
    provenance: bool
    """The output has the columns ``source_file`` and ``source_row``, which are not compared; its manifest says so, too."""
    memory: Size | None
    workers: int | None
    temp_dir: str | os.PathLike[str] | None
    """Where hashes spill if much differs; None for `$TMPDIR`, else /var/tmp."""


class CheckOptions(TypedDict, total=False):
    """Options of `check` that say what the records are, as for `verify`."""

    format: str | None
    to: str | None
    header: int
    zero_terminated: bool
    separator: str | bytes | None
    max_record_bytes: Size
    datasets: Names | None
    columns: Names | None
    schema: pa.Schema | str | os.PathLike[str] | None
    memory: Size | None
    workers: int | None


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
    job = _make_job(inputs, output, options)
    choose_allocators(job.memory_bytes)
    from recshuf.pipeline import run_job

    with _listening(progress) as listener:
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

    return plan_job(_make_job(inputs, output, options), SilentProgress())


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
    job = _make_job(inputs, output, cast("Options", options))
    choose_allocators(job.memory_bytes)
    from recshuf.verification import verify_job

    with _listening(progress) as listener:
        return verify_job(job, listener)


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
    column = _choose_column(column, provenance or bool(_list_paths(against)), options)
    jobs = _make_check_jobs(data, against, column, provenance, id_column, options)
    from recshuf.checking import check_against, check_places, check_values

    with _listening(progress) as listener:
        if column is not None:
            return check_values(jobs[0], listener, column)
        if provenance:
            return check_places(jobs, listener)
        return check_against(jobs, listener, id_column)


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
    column = _choose_column(column, provenance or bool(_list_paths(against)), options)
    jobs = _make_check_jobs(data, against, column, provenance, id_column, options)
    from recshuf.reporting import report_check

    with _listening(progress) as listener:
        names = [os.fspath(path) for path in _list_paths(data)]
        return report_check(jobs, listener, column, id_column, names, by_places=provenance)


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

    with _listening(progress) as listener:
        return report_run(done, _make_job(inputs, output, options), listener)


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
    _refuse_unknown(options)
    paths = _list_paths(data)
    column = _choose_column(column, provenance or bool(_list_paths(against)), options)
    if column is None and not _list_paths(against) and not provenance:
        raise UsageError(
            "give --column NAME, --against INPUT... or --provenance, which tell what the colours are"
        )
    if provenance and (column is not None or _list_paths(against)):
        raise UsageError("--provenance and --against or --column contradict each other; give one of them")
    if provenance and len(paths) > 1:
        raise UsageError("--provenance draws one shuffle; name one file or directory")
    job = _make_order_job(data, against, id_column, options)
    heading = title or ", ".join(os.fspath(path) for path in paths[:2]) + (", ..." if len(paths) > 2 else "")
    from recshuf.picturing import picture_origins, picture_values

    with _listening(progress) as listener:
        if column is None:
            return picture_origins(job, listener, id_column, heading, by_places=provenance)
        before = [job] if against else []
        after = _make_job(data, None, cast("Options", _options_of_output(options) if against else options))
        return picture_values([*before, after], listener, column, heading)


def _choose_column(column: str | None, is_told: bool, options: CheckOptions) -> str | None:
    """Return by which column an order is told, if not by something else.

    One that is chosen as all there is to a record need not be named again.
    """
    if column is not None or is_told:
        return column
    names = [
        *(_split_names("--datasets", options.get("datasets")) or ()),
        *(_split_names("--columns", options.get("columns")) or ()),
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
    _refuse_unknown(options)
    inputs = _list_paths(against)
    if bool(inputs) + (column is not None) + provenance != 1:
        raise UsageError(
            "give either --against INPUT..., --column NAME or --provenance, by which the order is tested"
        )
    if provenance:
        return [_make_order_job(output, None, id_column, options) for output in _list_paths(data)]
    if not inputs:
        return [_make_order_job(data, None, id_column, options)]
    return [_make_order_job(output, inputs, id_column, options) for output in _list_paths(data)]


def _options_of_output(options: CheckOptions) -> CheckOptions:
    """Return the options by which data are read that were made from others."""
    return cast("CheckOptions", {**options, "format": options.get("to"), "to": None})


def _refuse_unknown(options: CheckOptions) -> None:
    if unknown := set(options) - CheckOptions.__annotations__.keys():
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}")


def _make_order_job(data: Paths, against: Paths, id_column: str | None, options: CheckOptions) -> Job:
    """Return the job whose output is the data and whose inputs are what it was made from, or the data alone."""
    given, inputs = _list_paths(data), _list_paths(against)
    if inputs and len(given) > 1:
        raise UsageError(
            "--against compares one output with its inputs; name one file or directory before it"
        )
    if id_column is not None and not inputs:
        raise UsageError("--id tells which records are the same with --against only")
    job = _make_job(inputs or given, given[0] if inputs else None, cast("Options", options))
    choose_allocators(job.memory_bytes)
    return job


@contextmanager
def _listening(progress: Progress | None) -> Iterator[Progress]:
    """Give who hears of a run, nobody if need be, and tell it of the end."""
    listener = progress or SilentProgress()
    try:
        yield listener
    finally:
        listener.stop()


def _list_paths(paths: Paths) -> list[str | os.PathLike[str]]:
    if paths is None:
        return []
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def _make_job(inputs: Paths, output: str | os.PathLike[str] | None, options: Options) -> Job:
    unknown = set(options) - Options.__annotations__.keys()
    if unknown:
        raise TypeError(f"unknown option {sorted(unknown)[0]!r}")
    if inputs is None:
        inputs = ()
    if isinstance(inputs, bytes) or not isinstance(inputs, str | os.PathLike | Iterable):
        raise UsageError(f"inputs {inputs!r}: give a path or several; what is no text has no name to show")
    paths = [inputs] if isinstance(inputs, str | os.PathLike) else list(inputs)
    compression, level = _parse_compression(options.get("compression"))
    separator = _choose_separator(options)
    temp_dir = options.get("temp_dir")
    quarantine = _parse_bad_record(options.get("on_bad_record", "fail"))
    given: dict[str, Any] = {}
    if (seed := options.get("seed")) is not None:
        given["seed"] = seed
    if (memory := options.get("memory")) is not None:
        given["memory_bytes"] = _parse(memory)
    return Job(
        inputs=tuple(os.fspath(path) for path in paths),
        output=None if output is None else os.fspath(output),
        format=options.get("format"),
        to=options.get("to"),
        cut=_make_cut(options),
        workers=options.get("workers") or _count_cores(options),
        temp_dir=None if temp_dir is None else Path(temp_dir),
        spill_compression=options.get("spill_compression", "none"),
        head_count=options.get("head_count"),
        pile_count=options.get("piles"),
        overwrite=options.get("overwrite", False),
        quarantine=quarantine,
        resume=options.get("resume", False),
        verify=options.get("verify", False),
        provenance=options.get("provenance", False),
        check_space=not options.get("no_space_check", False),
        read=ReadOptions(
            separator=separator,
            header_lines=options.get("header", 0),
            max_record_bytes=_parse(options.get("max_record_bytes", 1 << 30)),
            datasets=_split_names("--datasets", options.get("datasets")),
            columns=_split_names("--columns", options.get("columns")),
            schema=_load_schema(options.get("schema")),
            sets_bad_aside=quarantine is not None,
        ),
        write=WriteOptions(compression, level, separator, options.get("nan_as_null", False)),
        stdin=options.get("stdin"),
        stdout=options.get("stdout"),
        **given,
    )


def _make_cut(options: Options) -> Cut | None:
    shard_bytes = options.get("shard_bytes")
    cut = Cut(
        options.get("shards"),
        options.get("shard_records"),
        None if shard_bytes is None else _parse(shard_bytes),
    )
    asked = [cut.shards, cut.shard_records, cut.shard_bytes]
    if sum(one is not None for one in asked) > 1:
        raise UsageError(
            "--shards, --shard-records and --shard-bytes contradict each other; give one of them"
        )
    return None if asked == [None, None, None] else cut


def _choose_separator(options: Options) -> bytes:
    separator = options.get("separator")
    if options.get("zero_terminated"):
        if separator is not None:
            raise UsageError("--zero-terminated and --separator contradict each other; give one of them")
        return b"\0"
    if separator is None:
        return b"\n"
    return os.fsencode(separator) if isinstance(separator, str) else separator


def _parse_compression(text: str | None) -> tuple[str | None, int | None]:
    if text is None:
        return None, None
    name, colon, level = text.partition(":")
    if not colon:
        return name, None
    try:
        return name, int(level)
    except ValueError:
        raise UsageError(f"--compression {text!r}: {level!r} is no level; write for example zstd:9") from None


def _parse_bad_record(text: str) -> Path | None:
    """Return where bad records are to go; None where they are errors."""
    word, _, name = text.partition(":")
    if text == "fail":
        return None
    if word != "quarantine" or name in ("", "-"):
        raise UsageError(f"--on-bad-record {text!r} is neither fail nor quarantine:FILE")
    return Path(name)


def _parse(size: Size) -> int:
    """Return a size in bytes; `Job` checks what is a number."""
    return parse_size(size) if isinstance(size, str) else size


def _split_names(option: str, names: Names | None) -> tuple[str, ...] | None:
    if names is None:
        return None
    split = tuple(names.split(",") if isinstance(names, str) else names)
    if not split or "" in split:
        raise UsageError(f"{option} holds an empty name; write for example {option} a,b")
    return split


def _load_schema(schema: pa.Schema | str | os.PathLike[str] | None) -> pa.Schema | None:
    if schema is None:
        return None
    if not isinstance(schema, str | os.PathLike):
        if not hasattr(schema, "names"):
            raise UsageError("--schema is neither a schema of pyarrow nor the path of a schema file")
        return schema
    from recshuf.formats._schema_file import read_schema

    return read_schema(Path(schema))


def _count_cores(options: Options) -> int:
    if options.get("workers") == 0:
        return 0  # refused with the limits of the option named
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
