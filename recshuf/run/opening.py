"""What a job means: its inputs and formats, whether its options fit, and its plan."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING

from recshuf.errors import UsageError
from recshuf.formats import (
    detect_format,
    load_format,
    name_by_content,
    name_by_suffix,
    suffix_compression,
)
from recshuf.interfaces import FieldAdder, InputFile, SupportsFields, SupportsPrefixInference
from recshuf.job.plan import Costs, Cut, InputSize, Limits, Plan
from recshuf.job.planner import make_plan, take_census
from recshuf.output.destination import Destination
from recshuf.records.keys import KEY_BYTES
from recshuf.records.provenance import (
    FILE_COLUMN,
    PLACE_BYTES,
    ROW_COLUMN,
    ProvenanceDecoder,
    check_names,
    extend_schema,
)
from recshuf.run.compatibility import check_options, check_streams
from recshuf.system.listing import expand_inputs, name_stdin, real_names
from recshuf.system.memory import available_bytes
from recshuf.system.paths import real_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from recshuf.interfaces import Decoder, Format, InputSummary, Source, Target, WriteOptions
    from recshuf.job.job import Job
    from recshuf.job.progress import Progress
    from recshuf.piles.layout import PileLayout

CONVERSION_FACTOR = 1.5
"""Memory of a batch in table form, as a multiple of its native size: offsets and validity come on top."""
_COPIES = 3  # of the records, in files: inputs, piles and output
_UNKNOWN_RECORD_BYTES = 32  # of inputs that are not known before they are read
_PREFIX_BYTES = 16 << 20  # of records from which a decoder may infer the schema of all


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
    sizes: list[InputSize]
    plan: Plan
    infers_from_prefix: bool
    """Whether the decoder judges all records by the first ones."""
    drop_page_cache: bool
    """Whether the files of the run are more than the system's memory holds, so that each is given up once it is done."""

    @property
    def converts(self) -> bool:
        """Whether the output is of another format than the inputs."""
        return self.source_name != self.target_name

    @property
    def pile_schema(self) -> pa.Schema:
        """Schema of the batches on the piles."""
        return extend_schema(self.source.schema) if self.job.provenance else self.source.schema

    @property
    def keeps_size(self) -> bool:
        """Whether the output's files will be about as large as those of the inputs."""
        return not self.converts and self.write.compression in (None, self.source.compression)

    def open_target(self) -> Target:
        """Return the target, once every record has been observed."""
        schema = self.find_table_schema()
        schema = self.source.schema if schema is None else schema
        layout = None if self.converts else self.source.layout
        # A shard of several is read once more.
        write = replace(self.write, drop_page_cache=self.drop_page_cache and self.plan.shard_count == 1)
        return self.target_format.open_target(schema, layout, write)

    def find_table_schema(self) -> pa.Schema | None:
        """Return the schema of what is written, once every record has been observed; None for the inputs' own."""
        return None if self.decoder is None else self.decoder.finish()

    def scan_fully(self) -> Opened:
        """Return the same job with a decoder that has to observe every record."""
        decoder = _add_provenance(self.job, self.source, self.source.decoder(), self.target_name)
        return replace(self, decoder=decoder, infers_from_prefix=False)


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
    named_target = job.to or _name_target(job, destination)
    source_name = job.format or _detect_format(job, files, named_target)
    target_name = named_target or source_name
    source_format, target_format = load_format(source_name), load_format(target_name)
    check_options(job, source_name, target_name)
    check_streams(job, source_name, target_name, to_stream=destination is None or destination.is_stream)
    drop_page_cache = _COPIES * sum(file.stamp.size for file in files if file.stamp) > available_bytes()
    source = source_format.open_source(files, replace(job.read, drop_page_cache=drop_page_cache))
    converts = source_name != target_name
    inner = source.decoder() if converts else _make_native_decoder(job, source)
    decoder = _add_provenance(job, source, inner, target_name)
    write = _complete_write_options(job, destination, source, target_format, converts=converts)
    cut = job.cut or Cut(shards=len(files) if destination is not None and destination.is_directory else 1)
    sizes = take_census(source.inputs, PLACE_BYTES if job.provenance else 0)
    costs = Costs(
        reading_bytes=source.reading_bytes,
        sink_bytes=_preview_target(source, decoder, target_format, write, converts=converts).sink_bytes,
        decoding_factor=CONVERSION_FACTOR if converts or isinstance(inner, FieldAdder) else 1.0,
    )
    if isinstance(decoder, ProvenanceDecoder):
        costs = _add_places(costs, source.inputs, decoder.column_bytes)
    limits = Limits(
        job.memory_bytes,
        job.workers,
        job.read.max_record_bytes,
        job.pile_count,
        job.spill_compression,
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
        sizes,
        plan,
        inner is not None and _infer_from_prefix(job, destination, source, inner),
        drop_page_cache,
    )


def _make_native_decoder(job: Job, source: Source) -> Decoder | None:
    """Return what leaves records in native form and lets columns be added; None where none are."""
    if not job.provenance:
        return None
    if isinstance(source, SupportsFields):
        return source.field_adder((FILE_COLUMN, ROW_COLUMN))
    decoder = source.decoder()
    if decoder.schema != source.schema:
        raise UsageError(
            "--provenance: records of this format take no columns as they are; give --to parquet"
        )
    return decoder


def _add_provenance(job: Job, source: Source, inner: Decoder | None, target_name: str) -> Decoder | None:
    """Return a decoder that adds where records were read to those of another, if that is wanted."""
    if inner is None or not job.provenance:
        return inner
    names = [one.name for one in source.inputs]
    check_names(names)
    is_lean = target_name == "parquet" or isinstance(inner, FieldAdder)
    return ProvenanceDecoder(inner, names, as_dictionary=is_lean)


def _add_places(costs: Costs, inputs: Sequence[InputSummary], column_bytes: int) -> Costs:
    """Return what a run costs if places travel beside the records and become columns of `column_bytes` a row."""
    counted = [
        (one.native_bytes, one.record_count) for one in inputs if one.native_bytes and one.record_count
    ]
    records = sum(count for _, count in counted)
    record_bytes = sum(size for size, _ in counted) / records if records else _UNKNOWN_RECORD_BYTES
    share = PLACE_BYTES / record_bytes

    def reading_bytes(block: int) -> int:
        # The places as they are made, in the order of the piles, and on the way from one to the other.
        return costs.reading_bytes(block) + int(3 * share * block)

    return replace(
        costs,
        reading_bytes=reading_bytes,
        decoding_factor=costs.decoding_factor + column_bytes / (record_bytes + KEY_BYTES + PLACE_BYTES),
        place_bytes=PLACE_BYTES,
    )


def _infer_from_prefix(job: Job, destination: Destination | None, source: Source, decoder: Decoder) -> bool:
    """Tell a decoder to judge all records by the first ones, if that can be and another way is open; return whether."""
    is_once_only = (
        any(one.file_bytes is None for one in source.inputs) or destination is None or destination.is_stream
    )
    # Of a sample every record has to be good, also those left out; and what a run before has finished must agree.
    must_see_all = job.quarantine is not None or job.head_count is not None or job.resume
    if (
        is_once_only
        or must_see_all
        or decoder.schema is not None
        or not isinstance(decoder, SupportsPrefixInference)
    ):
        return False
    ends = accumulate(one.native_bytes or 0 for one in source.inputs)
    large = next((index for index, end in enumerate(ends) if end > _PREFIX_BYTES), None)
    if large is not None:
        decoder.infer_from_prefix(large)
    return large is not None


def _list_inputs(job: Job, progress: Progress) -> list[InputFile]:
    if job.reads_stdin:
        return [InputFile("standard input", None, job.stdin) if job.stdin else name_stdin()]
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
    if not os.path.lexists(output):
        return files
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


def _detect_format(job: Job, files: list[InputFile], target_name: str | None) -> str:
    """Return the format of the inputs; streams without a name that tells it have that of the output, or are text."""
    are_streams = job.reads_stdin or all(
        file.stamp is None and name_by_suffix(file.name) is None for file in files
    )
    if not are_streams:
        return detect_format(files)
    # A file after < can be looked at, and is refused where its bytes are no lines.
    if files[0].stamp is not None and (found := name_by_content(files[0])) not in ("text", "jsonl"):
        return found
    if target_name not in (None, "text", "jsonl"):
        raise UsageError(
            f"{files[0].name} into {target_name}: its lines may be text or JSON; give --format text or --format jsonl"
        )
    return target_name or "text"


def _name_target(job: Job, destination: Destination | None) -> str | None:
    if destination is None or destination.is_directory:
        return None
    return name_by_suffix(job.output or "")


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


def _preview_target(
    source: Source, decoder: Decoder | None, target: Format, write: WriteOptions, *, converts: bool
) -> Target:
    """Return a target as early as possible, so that what it cannot hold is found before anything is read."""
    schema = source.schema if decoder is None else decoder.schema
    if schema is not None:
        return target.open_target(schema, None if converts else source.layout, write)
    import pyarrow as pa

    return target.open_target(pa.schema([("text", pa.string())]), None, write)
