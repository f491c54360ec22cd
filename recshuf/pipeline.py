"""A run from end to end: census, plan, scatter, gather, commit."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from recshuf import __version__
from recshuf.census import take_census
from recshuf.errors import ConversionError, OutputError, UsageError
from recshuf.formats import detect_format, load_format, name_by_suffix, suffix_compression
from recshuf.gather import Gather
from recshuf.inputs import expand_inputs
from recshuf.interfaces import InputFile, Sink, SupportsStream
from recshuf.memory import peak_bytes, resident_bytes
from recshuf.order import ORDER_VERSION
from recshuf.piles import Scratch
from recshuf.plans import Costs, Cut, InputSize, Limits, Plan, make_plan, shard_bounds
from recshuf.records import choose_codec
from recshuf.report import FileReport, PassReport, ShuffleReport
from recshuf.scatter import Scatter, ScatterCounts
from recshuf.shards import Destination, Staging, write_error
from recshuf.store import PileStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import BinaryIO

    import pyarrow as pa

    from recshuf.interfaces import Decoder, Format, Source, Target, WriteOptions
    from recshuf.job import Job
    from recshuf.progress import Progress

CONVERSION_FACTOR = 1.5
"""Memory of a batch in table form, as a multiple of its native size: offsets and validity come on top."""


@dataclass(frozen=True, slots=True)
class _Opened:
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
    sizes: list[InputSize]
    plan: Plan

    def open_target(self) -> Target:
        """Return the target, once every record has been observed."""
        if self.decoder is None:
            return self.target_format.open_target(self.source.schema, self.source.layout, self.write)
        return self.target_format.open_target(self.decoder.finish(), None, self.write)


def plan_job(job: Job, progress: Progress) -> Plan:
    """Return the plan of a job without running it.

    Raises
    ------
    RecshufError
        When the job cannot be run.
    """
    return _open(job, progress).plan


def run_job(job: Job, progress: Progress) -> ShuffleReport:
    """Run a job and return its figures; on an error nothing is left behind.

    Raises
    ------
    RecshufError
        When the job cannot be run to its end.
    """
    started = time.perf_counter()
    opened = _open(job, progress)
    base_bytes = resident_bytes()
    with ExitStack() as cleanup:
        run = _Run(opened, progress, cleanup)
        counts, scatter_pass = run.scatter()
        shard_sizes, gather_pass = run.gather(counts)
        inputs = [
            FileReport(summary.name, records, summary.file_bytes)
            for summary, records in zip(opened.source.inputs, counts.records, strict=True)
        ]
        shards, commit_pass = run.commit(inputs, shard_sizes)
    return ShuffleReport(
        version=__version__,
        order=ORDER_VERSION,
        seed=job.seed,
        format=opened.source_name,
        to=opened.target_name,
        records=sum(counts.records),
        records_written=sum(shard_sizes),
        byte_count=sum(counts.byte_counts),
        spilled_bytes=run.store.spilled_bytes,
        seconds=time.perf_counter() - started,
        passes=(scatter_pass, gather_pass, commit_pass),
        inputs=tuple(inputs),
        shards=tuple(shards),
        plan=opened.plan,
        predicted_peak_bytes=opened.plan.peak_memory_bytes,
        measured_peak_bytes=peak_bytes(),
        base_bytes=base_bytes,
    )


class _Run:
    """One run in progress: what is open, and the passes in their order.

    Parameters
    ----------
    cleanup
        Gets what must be undone at the end, however the run ends.
    """

    def __init__(self, opened: _Opened, progress: Progress, cleanup: ExitStack) -> None:
        self.opened = opened
        self._progress = progress
        self._staging: Staging | None = None
        destination = opened.destination
        self._name = "standard output" if destination is None else str(destination.path)
        self._stream: BinaryIO | None = None
        if destination is None:
            self._stream = opened.job.stdout or _find_stdout()
        elif destination.is_stream:
            self._stream = cleanup.enter_context(destination.open_stream())
        else:
            self._staging = Staging(destination)
            cleanup.callback(self._staging.remove)
        parent = _choose_scratch_parent(opened.job, self._staging)
        is_staging = self._staging is not None and parent == self._staging.folder
        scratch = Scratch(parent, parent.parent if is_staging else parent)
        cleanup.callback(scratch.remove)
        self.store = _make_store(opened, scratch)
        cleanup.callback(self.store.close)

    def scatter(self) -> tuple[ScatterCounts, PassReport]:
        """Throw all records onto piles, and return what was read."""
        started, opened = time.perf_counter(), self.opened
        plan = opened.plan
        self._progress.start("scatter", plan.record_count, plan.byte_count)
        scatter = Scatter(opened.source, plan, opened.job.seed, self.store, opened.decoder, self._progress)
        counts = scatter.run()
        seconds = time.perf_counter() - started
        return counts, PassReport("scatter", seconds, sum(counts.records), sum(counts.byte_counts))

    def gather(self, counts: ScatterCounts) -> tuple[list[int], PassReport]:
        """Write all shards, and return the number of records in each."""
        started, opened = time.perf_counter(), self.opened
        bounds = shard_bounds(opened.cut, *_measure_output(opened, counts))
        byte_count = sum(counts.byte_counts) * bounds[-1] // max(1, sum(counts.records))
        self._progress.start("gather", bounds[-1], byte_count)
        open_sink = self._sink_opener(opened.open_target())
        try:
            Gather(self.store, opened.plan, bounds, open_sink, opened.decoder, self._progress).run()
        except BrokenPipeError:
            raise  # whoever reads has had enough, which is no failure
        except OSError as error:
            folder = None if self._staging is None else self._staging.folder
            raise write_error(error, self._name, folder) from error
        seconds = time.perf_counter() - started
        return [stop - start for start, stop in pairwise(bounds)], PassReport(
            "gather", seconds, bounds[-1], byte_count
        )

    def commit(self, inputs: list[FileReport], shard_sizes: list[int]) -> tuple[list[FileReport], PassReport]:
        """Put the shards in place, and return them."""
        started = time.perf_counter()
        if self._staging is None:
            shards = [FileReport(self._name, shard_sizes[0], None)]
        else:
            files = zip(self._staging.list_files(), shard_sizes, strict=True)
            shards = [FileReport(name, count, size) for (name, size), count in files]
            self._staging.commit(_make_manifest(self.opened, inputs, shards))
        return shards, PassReport("commit", time.perf_counter() - started, sum(shard_sizes), 0)

    def _sink_opener(self, target: Target) -> Callable[[int], Sink]:
        threads, staging = self.opened.plan.sink_threads, self._staging
        if staging is not None:
            return lambda shard: target.open(staging.path_of(shard, target.suffix), threads)
        stream = self._stream
        if stream is None or not isinstance(target, SupportsStream):
            raise UsageError(f"{self.opened.target_name} cannot be written to a stream; give a file with -o")
        return lambda _: target.open_stream(stream, threads)


def _open(job: Job, progress: Progress) -> _Opened:
    """Look at inputs and output, and plan."""
    destination = None
    if not job.writes_stdout:
        destination = Destination.of(job.output or "", wants_shards=job.cut is not None)
        destination.check(overwrite=job.overwrite)
    if job.cut is not None and (destination is None or destination.is_stream):
        raise UsageError("shards cannot go to standard output or a device; give a directory with -o")
    files = _leave_out_output(job, destination, _list_inputs(job, progress), progress)
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
    limits = Limits(job.memory_bytes, job.workers, job.read.max_record_bytes, job.pile_count)
    plan = make_plan(sizes, limits, costs, cut, job.head_count)
    return _Opened(
        job, source, source_name, target_name, target_format, write, decoder, destination, cut, sizes, plan
    )


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
    if destination is None:
        return files
    output = destination.path.resolve()
    named = {Path(given).resolve() for given in job.inputs}
    paths = [None if file.path is None else file.path.resolve() for file in files]
    own = [path is not None and path not in named and output in (path, *path.parents) for path in paths]
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


def _find_stdout() -> BinaryIO:
    if sys.stdout is None:
        raise UsageError("standard output is closed; give a file or directory with -o")
    return sys.stdout.buffer


def _choose_scratch_parent(job: Job, staging: Staging | None) -> Path:
    if job.temp_dir is not None:
        if not job.temp_dir.is_dir():
            raise OutputError(f"{job.temp_dir}: no such directory; create it, or choose another --temp-dir")
        return job.temp_dir
    if staging is not None and staging.folder is not None:
        return staging.folder
    # With no output folder: what the user has set, else the place meant for large temporary files.
    for candidate in (os.environ.get("TMPDIR"), "/var/tmp"):  # noqa: S108 - a private folder is made in it
        if candidate and os.access(candidate, os.W_OK | os.X_OK):
            return Path(candidate)
    return Path(tempfile.gettempdir())


def _make_store(opened: _Opened, scratch: Scratch) -> PileStore:
    plan = opened.plan
    set_sizes: list[float | None] = [0.0] * plan.set_count
    for set_index, size in zip(plan.set_of_input, opened.sizes, strict=True):
        so_far = set_sizes[set_index]
        known = size.record_count is not None and so_far is not None
        set_sizes[set_index] = so_far + size.record_count if known else None  # type: ignore[operator]
    return PileStore(
        choose_codec(opened.source.schema),
        plan.pile_count,
        scratch,
        tuple(set_sizes),
        plan.resident_bytes,
        plan.output_count,
    )


def _measure_output(opened: _Opened, counts: ScatterCounts) -> tuple[int, int]:
    """Return how many records will be written, and about how many bytes, by nothing that the plan decides."""
    records = sum(counts.records)
    wanted = records if opened.job.head_count is None else min(records, opened.job.head_count)
    file_bytes = _sum([size.file_bytes for size in opened.sizes])
    same = opened.decoder is None and opened.write.compression in (None, opened.source.compression)
    if file_bytes is None or not same:
        file_bytes = sum(counts.byte_counts)
    return wanted, file_bytes * wanted // max(1, records)


def _make_manifest(opened: _Opened, inputs: list[FileReport], shards: list[FileReport]) -> dict[str, object]:
    return {
        "recshuf": __version__,
        "order": ORDER_VERSION,
        "seed": str(opened.job.seed),
        "format": opened.source_name,
        "to": opened.target_name,
        "records": sum(one.records for one in shards),
        "inputs": [{"name": one.name, "records": one.records, "bytes": one.file_bytes} for one in inputs],
        "shards": [{"name": one.name, "records": one.records, "bytes": one.file_bytes} for one in shards],
        "schema": _describe_schema(opened),
    }


def _describe_schema(opened: _Opened) -> list[dict[str, object]]:
    """Return the fields of a record in table form, or in native form where there is no other."""
    schema: pa.Schema = opened.source.schema
    with suppress(ConversionError):
        decoder = opened.decoder
        schema = (opened.source.decoder().schema if decoder is None else decoder.finish()) or schema
    return [{"name": field.name, "type": str(field.type), "nullable": field.nullable} for field in schema]


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
