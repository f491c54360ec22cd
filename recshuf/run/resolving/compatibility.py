"""Checks that the options of a job fit its formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.errors import UsageError
from recshuf.formats import load_format
from recshuf.job.options import OPTIONS, flag_of

if TYPE_CHECKING:
    from recshuf.job.job import Job


def check_options(job: Job, source_name: str, target_name: str) -> None:
    """Refuse options that would have no effect.

    Raises
    ------
    UsageError
        Names the option and its formats.
    """
    check_sides(job, source_name, target_name)
    if job.quarantine is not None and (
        source_name == target_name or not load_format(source_name).names.is_lines
    ):
        raise UsageError("--on-bad-record: for a conversion of jsonl, csv or text only; leave it out")
    if job.options["provenance"] and target_name == "text":
        raise UsageError("--provenance: text has no columns; give --to parquet or --to jsonl")
    if job.options["provenance"] and source_name == target_name == "hdf5":
        raise UsageError("--provenance: not possible from hdf5 to hdf5; give --to parquet")
    if job.read.keeps_others and not source_name == target_name == "hdf5":
        formats = f"{source_name} to {target_name}"
        raise UsageError(f"--keep-others: for hdf5 to hdf5 only; here: {formats}; leave it out")
    if job.read.schema is not None and source_name == target_name:
        raise UsageError(f"--schema: {source_name} to {target_name} is no conversion; leave it out")
    if job.write.nan_as_null and source_name == target_name:
        raise UsageError(f"--nan-as-null: {source_name} to {target_name} is no conversion; leave it out")


def check_sides(job: Job, source_name: str, target_name: str) -> None:
    """Refuse options of formats that are not read or written.

    Raises
    ------
    UsageError
        Names the option and its formats.
    """
    names = {"records": (source_name, target_name), "inputs": (source_name,), "output": (target_name,)}
    for side, concerned in names.items():
        for name, option in OPTIONS.items():
            if option.side == side and job.is_given(name) and not {*concerned} & {*option.formats}:
                flags, formats = option.flags or flag_of(name), " or ".join(option.formats)
                raise UsageError(f"{flags}: for {side} of {formats} only; here: {concerned[0]}")


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
        if streams and not load_format(name).names.is_lines:
            raise UsageError(f"{name} cannot be {what}, which cannot seek; {remedy}")
