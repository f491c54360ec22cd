"""What a job means: its inputs and formats, whether its options fit, and its plan."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from recshuf.census import take_census
from recshuf.disk import real_path
from recshuf.errors import UsageError
from recshuf.formats import detect_format, load_format, name_by_suffix, suffix_compression
from recshuf.inputs import Stamp, expand_inputs, real_names, take_stamp
from recshuf.interfaces import InputFile, SupportsTrust
from recshuf.plans import Costs, Cut, InputSize, Limits, PileLayout, Plan, make_plan
from recshuf.shards import Destination

if TYPE_CHECKING:
    import pyarrow as pa

    from recshuf.interfaces import Decoder, Format, Source, Target, WriteOptions
    from recshuf.job import Job
    from recshuf.progress import Progress

CONVERSION_FACTOR = 1.5
"""Memory of a batch in table form, as a multiple of its native size: offsets and validity come on top."""
_CLOSELY_BYTES = 16 << 20  # of records that a decoder looks at before it may take the others on trust


@dataclass(frozen=True, slots=True)
class Opened:
    """A job whose inputs have been looked at."""

    job: Job
    source: Source
    source_name: str
    target_name: str
    target_format: Format
    write: WriteOptions
    decoder: Decoder | None
    destination: Destination | None
    """None for standard output."""
    cut: Cut
    files: list[InputFile]
    stamps: tuple[Stamp, ...]
    """What the inputs looked like before they were read."""
    sizes: list[InputSize]
    plan: Plan
    is_trusting: bool
    """Whether the decoder judges all records by the first ones."""

    @property
    def keeps_size(self) -> bool:
        """Whether the output's files will be about as large as those of the inputs."""
        return self.decoder is None and self.write.compression in (None, self.source.compression)

    def open_target(self) -> Target:
        """Return the target, once every record has been observed."""
        schema = self.find_table_schema()
        if schema is None:
            return self.target_format.open_target(self.source.schema, self.source.layout, self.write)
        return self.target_format.open_target(schema, None, self.write)

    def find_table_schema(self) -> pa.Schema | None:
        """Return the schema of the table form, once every record has been observed; None where nothing is converted."""
        return None if self.decoder is None else self.decoder.finish()

    def distrust(self) -> Opened:
        """Return the same job with a decoder that has to observe every record."""
        return replace(self, decoder=self.source.decoder(), is_trusting=False)


def find_destination(job: Job) -> Destination | None:
    """Return where the output goes; None for standard output.

    Raises
    ------
    UsageError
        When shards are asked of a stream.
    """
    destination = None
    if not job.writes_stdout:
        destination = Destination.of(job.output or "", wants_shards=job.cut is not None)
    if job.cut is not None and (destination is None or destination.is_stream):
        raise UsageError("shards cannot go to standard output or a device; give a directory with -o")
    return destination


def open_job(
    job: Job, destination: Destination | None, progress: Progress, piles: PileLayout | None = None
) -> Opened:
    """Look at the inputs, and plan.

    Parameters
    ----------
    piles
        The piles of an earlier run of the same job that is continued.

    Raises
    ------
    RecshufError
        When the job cannot be run.
    """
    files = _leave_out_output(job, destination, _list_inputs(job, progress), progress)
    stamps = tuple(take_stamp(file) for file in files)
    source_name = job.format or detect_format(files)
    target_name = job.to or _name_target(job, destination) or source_name
    source_format, target_format = load_format(source_name), load_format(target_name)
    _check_options(job, source_name, target_name)
    _check_streams(job, source_name, target_name, to_stream=destination is None or destination.is_stream)
    source = source_format.open_source(files, job.read)
    decoder = source.decoder() if source_name != target_name else None
    write = _complete_write_options(job, destination, source, target_format, converts=decoder is not None)
    cut = job.cut or Cut(shards=len(files) if destination is not None and destination.is_directory else 1)
    sizes = take_census(source.inputs)
    costs = Costs(
        reading_bytes=source.reading_bytes,
        sink_bytes=_preview_target(source, decoder, target_format, write).sink_bytes,
        decoding_factor=1.0 if decoder is None else CONVERSION_FACTOR,
    )
    limits = Limits(
        job.memory_bytes, job.workers, job.read.max_record_bytes, job.pile_count, job.spill_compression
    )
    plan = make_plan(sizes, limits, costs, cut, job.head_count, piles)
    return Opened(
        job,
        source,
        source_name,
        target_name,
        target_format,
        write,
        decoder,
        destination,
        cut,
        files,
        stamps,
        sizes,
        plan,
        decoder is not None and _trust_first_records(job, destination, source, decoder),
    )


def _trust_first_records(job: Job, destination: Destination | None, source: Source, decoder: Decoder) -> bool:
    """Tell a decoder to judge all records by the first ones, if that can be and another way is open; return whether."""
    is_once_only = (
        any(one.file_bytes is None for one in source.inputs) or destination is None or destination.is_stream
    )
    # Of a sample every record has to be good, also those left out; and what a run before has finished must agree.
    must_see_all = job.quarantine is not None or job.head_count is not None or job.resume
    if is_once_only or must_see_all or decoder.schema is not None or not isinstance(decoder, SupportsTrust):
        return False
    ends = accumulate(one.native_bytes or 0 for one in source.inputs)
    large = next((index for index, end in enumerate(ends) if end > _CLOSELY_BYTES), None)
    if large is not None:
        decoder.trust_after(large)
    return large is not None


def _list_inputs(job: Job, progress: Progress) -> list[InputFile]:
    if job.reads_stdin:
        if job.stdin is None and sys.stdin is None:
            raise UsageError("standard input is closed; name the inputs")
        return [InputFile("standard input", None, job.stdin or sys.stdin.buffer)]
    if job.format is None:
        return expand_inputs(job.inputs, lambda path: name_by_suffix(path) is not None, progress.warn)
    return expand_inputs(job.inputs, lambda path: name_by_suffix(path) == job.format, progress.warn)


def _leave_out_output(
    job: Job, destination: Destination | None, files: list[InputFile], progress: Progress
) -> list[InputFile]:
    """Drop what an earlier run put into a folder of inputs, unless it was named as an input itself."""
    if destination is None or job.reads_stdin:
        return files
    output = str(real_path(destination.path))
    named = set(real_names(job.inputs))
    below = os.path.join(output, "")  # noqa: PTH118 - ends with a slash, also if it is the root
    own = [
        name not in named and (name == output or name.startswith(below))
        for name in real_names(file.name for file in files)
    ]
    if output in named or not any(own) or all(own):
        return files
    progress.warn(f"{destination.path}: passed over {sum(own)} of the inputs found, since this is the output")
    return [file for file, is_own in zip(files, own, strict=True) if not is_own]


def _name_target(job: Job, destination: Destination | None) -> str | None:
    if destination is None or destination.is_directory:
        return None
    return name_by_suffix(job.output or "")


def _check_options(job: Job, source_name: str, target_name: str) -> None:
    """Refuse options that would be without effect: the user means something by them."""
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
    if read.schema is not None and source_name == target_name:
        raise UsageError(f"--schema: nothing is converted from {source_name} to {target_name}; leave it out")


def _check_streams(job: Job, source_name: str, target_name: str, *, to_stream: bool) -> None:
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


def _complete_write_options(
    job: Job, destination: Destination | None, source: Source, target: Format, *, converts: bool
) -> WriteOptions:
    """Fill in the compression: as asked, else by the output's suffix, else that of the inputs."""
    names = target.names
    write = job.write
    if write.compression is not None and write.compression not in names.compressions:
        raise UsageError(
            f"--compression {write.compression} is not possible for {names.name}; choose one of "
            f"{', '.join(names.compressions)}"
        )
    if write.compression is not None:
        return write
    compression = None
    if destination is not None and not destination.is_directory:
        compression = suffix_compression(str(destination.path), names)
    inherited = source.compression if converts and source.compression != "none" else None
    if compression is None and inherited in names.compressions:
        compression = inherited
    return replace(write, compression=compression)


def _preview_target(source: Source, decoder: Decoder | None, target: Format, write: WriteOptions) -> Target:
    """Return a target as early as possible, so that what it cannot hold is found before anything is read."""
    if decoder is None:
        return target.open_target(source.schema, source.layout, write)
    if decoder.schema is not None:
        return target.open_target(decoder.schema, None, write)
    import pyarrow as pa

    return target.open_target(pa.schema([("text", pa.string())]), None, write)
