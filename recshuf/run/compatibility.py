"""Whether the options of a job fit its formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from recshuf.job.job import Job


def check_options(job: Job, source_name: str, target_name: str) -> None:
    """Refuse options that would have no effect: the user means something by them.

    Raises
    ------
    UsageError
        Naming the option and what it is for.
    """
    read = job.read
    for option, is_given, what, names, fitting in (
        ("--separator and -z", read.separator != b"\n", "records", (source_name, target_name), ("text",)),
        ("--header", read.header_lines > 0, "inputs", (source_name,), ("text",)),
        ("--datasets", read.datasets is not None, "inputs", (source_name,), ("hdf5",)),
        ("--columns", read.columns is not None, "inputs", (source_name,), ("parquet",)),
        ("--schema", read.schema is not None, "inputs", (source_name,), ("jsonl", "text")),
        ("--nan-as-null", job.write.nan_as_null, "output", (target_name,), ("jsonl",)),
    ):
        if is_given and not set(names) & set(fitting):
            raise UsageError(f"{option}: for {what} of {' or '.join(fitting)} only; here: {names[0]}")
    if job.quarantine is not None and (source_name == target_name or source_name not in ("jsonl", "text")):
        raise UsageError(
            "--on-bad-record: for a conversion of jsonl or text only, since nothing else is parsed; leave it out"
        )
    if job.provenance and target_name == "text":
        raise UsageError(
            "--provenance: text has no columns for where a record was read; give --to parquet or --to jsonl"
        )
    if job.provenance and source_name == target_name == "hdf5":
        raise UsageError(
            "--provenance: from hdf5 to hdf5, datasets are kept as they are and none is added; give --to parquet"
        )
    if read.schema is not None and source_name == target_name:
        raise UsageError(f"--schema: nothing is converted from {source_name} to {target_name}; leave it out")


def check_streams(job: Job, source_name: str, target_name: str, *, to_stream: bool) -> None:
    """Refuse formats that cannot be read from or written to a stream."""
    for streams, name, what, remedy in (
        (job.reads_stdin, source_name, "read from standard input", "give its path"),
        (
            to_stream,
            target_name,
            "written to standard output or a device",
            "give a file or directory with -o",
        ),
    ):
        if streams and name not in ("text", "jsonl"):
            raise UsageError(f"{name} cannot be {what}, which cannot seek; {remedy}")
