"""The arguments of the functions that Python programs call, and the job that they stand for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypedDict

from recshuf.errors import UsageError
from recshuf.interfaces import ReadOptions, WriteOptions
from recshuf.job.job import Job
from recshuf.job.plan import Cut
from recshuf.system.units import parse_size

if TYPE_CHECKING:
    import pyarrow as pa

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


def list_paths(paths: Paths) -> list[str | os.PathLike[str]]:
    """Return the paths, one by one."""
    if paths is None:
        return []
    return [paths] if isinstance(paths, str | os.PathLike) else list(paths)


def make_job(inputs: Paths, output: str | os.PathLike[str] | None, options: Options) -> Job:
    """Return the job that arguments stand for.

    Raises
    ------
    TypeError
        When there is no option of that name.
    UsageError
        When options are out of range or contradict each other.
    """
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
            datasets=split_names("--datasets", options.get("datasets")),
            columns=split_names("--columns", options.get("columns")),
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


def split_names(option: str, names: Names | None) -> tuple[str, ...] | None:
    """Return the names that an option lists; None for none.

    Raises
    ------
    UsageError
        When one is empty.
    """
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
    from recshuf.job.schema_file import read_schema

    return read_schema(Path(schema))


def _count_cores(options: Options) -> int:
    if options.get("workers") == 0:
        return 0  # refused with the limits of the option named
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
