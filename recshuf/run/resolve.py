"""Resolves a job: opens its inputs, chooses formats and output, and makes the plan."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, BinaryIO

import pyarrow as pa

from recshuf.dataclass import dataclass
from recshuf.errors import ConversionError, MemoryLimitError, OutputExistsError, UsageError
from recshuf.formats import (
    LAST_RESORT,
    check_output,
    detect_format,
    find_near,
    find_shared,
    has_suffix,
    load_format,
    look_into_stdin,
    name_by_inputs,
    name_by_listing,
    name_by_output,
    name_of_tables,
    open_source,
    refuse_shared_suffix,
    suffix_compression,
)
from recshuf.interfaces import InputFile, SupportsStream, Target
from recshuf.job.features import Mixture, find_fields
from recshuf.job.job import SMALLEST_MEMORY, Job
from recshuf.job.parts import TaskPlan, size_sets
from recshuf.job.plan import Cut, Limits, Plan
from recshuf.job.planner import make_plan, take_census
from recshuf.output.local import LocalDestination
from recshuf.piles.layout import PileLayout
from recshuf.records.key_makers import extend_schema as add_words
from recshuf.records.keys import KEY_BYTES
from recshuf.records.provenance import PROVENANCE_BYTES
from recshuf.records.provenance import extend_schema as add_provenance
from recshuf.run.decoding import Decoding, check_options, check_stored, check_streams, takes_provenance
from recshuf.run.features import add_values, count_records, open_fields, require_files, size_mixture
from recshuf.run.inputs import Inputs, list_inputs
from recshuf.storage import Url, is_url
from recshuf.storage.reading.objects import count_read_bytes
from recshuf.system.memory import available_bytes, find_group_room
from recshuf.system.paths import real_path
from recshuf.system.units import format_size, round_up

if TYPE_CHECKING:
    from collections.abc import Callable

    from recshuf.audit.verify.mismatches import RecordHashing
    from recshuf.interfaces import Decoder, Format, Sink, Traits, ValueReader, WriteOptions
    from recshuf.job.report import Progress
    from recshuf.output import Destination, Stage
    from recshuf.output.quarantine import Quarantine
    from recshuf.output.run_log import TaskResults
    from recshuf.piles.store import Store
    from recshuf.records.keys import Split
    from recshuf.run.header import Header


_MOST_NAMED = 3
_BESIDE_PLAN = 16 * 10**6
"""What a run may take beside what is planned, in a memory group: memory that allocators keep, and stacks of threads."""
_COPIES = 3  # of the records, in files: inputs, piles and output


@dataclass(frozen=True, slots=True)
class Output:
    """Where the output of a job goes, and how it is written."""

    destination: Destination | None
    """None for standard output."""
    format: str
    write: WriteOptions
    cut: Cut

    @property
    def name(self) -> str:
        return "standard output" if self.destination is None else self.destination.name


@dataclass(frozen=True, slots=True)
class Run:
    """A job with its opened inputs and its plan. Every pass gets it.

    The last fields are those of the process that writes the output. A task has only the folder of results.
    """

    job: Job
    inputs: Inputs
    output: Output
    decoding: Decoding
    plan: Plan
    progress: Progress
    notes: tuple[str, ...] = ()
    """What differs in the output, besides the order."""
    values: ValueReader | None = None
    """Reads the fields that give keys; None if keys are those of rows."""
    seed: int = 0
    split: Split | None = None
    """Which records belong to each part of the output; None if it has none, or if values tell."""
    header: Header = None  # type: ignore[assignment] # set when the run begins
    results: TaskResults | None = None
    """What its tasks have finished; None without tasks."""
    stage: Stage | None = None
    """Where shards are until the commit; None if the output is a stream."""
    stream: BinaryIO | None = None
    """Stream of the output; None for files."""
    quarantine: Quarantine | None = None
    """None if bad records are errors."""
    store: Store = None  # type: ignore[assignment] # set when the run begins; a task opens its own
    """The piles that this process fills, or reads in the end."""
    hashing: RecordHashing | None = None
    """Hashes the records of the inputs while they are scattered, for ``--verify``; None if that is not asked for or reads them again."""

    @property
    def decoder(self) -> Decoder | None:
        """Decoder to the form of the output; None if that is the native form."""
        return self.decoding.decoder

    @property
    def tasks(self) -> TaskPlan:
        return self.header.division

    @property
    def pile_schema(self) -> pa.Schema:
        """Schema of the batches in piles."""
        return add_words(self.loaded_schema, self.job.key_words)

    @property
    def loaded_schema(self) -> pa.Schema:
        """Schema of the batches in piles without the words of keys."""
        schema = self.inputs.source.schema
        has_provenance = self.job.options["provenance"] or self.inputs.stored is not None
        return add_provenance(schema) if has_provenance else schema

    @property
    def stream_compression(self) -> str:
        as_before = "none" if self.decoding.converts else self.inputs.source.compression
        return self.output.write.compression or as_before or "none"

    @property
    def keeps_size(self) -> bool:
        """Whether the output will be about as large as the inputs."""
        is_as_before = self.output.write.compression in (None, self.inputs.source.compression)
        return is_as_before and not self.decoding.converts

    def open_target(self) -> Target:
        """Return the target, once every record has been observed."""
        source, schema = self.inputs.source, self.find_table_schema()
        layout = None if self.decoding.converts else source.layout
        # One shard of several is read again for its checksum.
        drop_page_cache = self.inputs.drop_page_cache and self.plan.shard_count == 1
        write = replace(
            self.output.write,
            drop_page_cache=drop_page_cache,
            table_bytes=self.decoding.count_table_bytes(source.inputs),
        )
        schema = source.schema if schema is None else schema
        try:
            target = load_format(self.output.format).open_target(schema, layout, write)
        except ConversionError as error:
            explained = self.decoding.inner and self.decoding.inner.explain(error.field)
            if not explained:
                raise
            raise explained from error
        if (needed := target.sink_bytes(1)) > self.job.memory_bytes:
            raise MemoryLimitError(
                f"writing {len(schema):,} columns needs at least {format_size(round_up(needed))} of memory, and the limit is "
                f"{format_size(self.job.memory_bytes)}; raise --memory"
            )
        return target

    def find_table_schema(self) -> pa.Schema | None:
        """Return the table schema of the output, once every record has been observed; None for native form."""
        return None if self.decoder is None else self.decoder.finish()

    def scan_fully(self) -> Run:
        """Return the same job with a decoder that must observe every record."""
        return replace(self, decoding=_choose_decoding(self.job, self.inputs, self.output.format))


def find_destination(job: Job, progress: Progress | None = None) -> Destination | None:
    """Return where the output goes; None for standard output. It is said on `progress` if a store does not answer for long."""
    destination: Destination | None = None
    if job.temp_dir is not None:
        _refuse_in_store(job.temp_dir / "piles", f"--temp-dir {job.temp_dir}")
    if is_url(job.output or ""):
        from recshuf.output.objects import ObjectDestination

        destination = ObjectDestination(
            Url.parse(job.output or ""),
            job.storage,
            wants_shards=_wants_shards(job),
            parts=job.part_names,
            temp_dir=job.temp_dir,
            memory_bytes=job.memory_bytes,
            workers=job.workers,
            warn=None if progress is None else progress.warn,
        )
    elif not (job.writes_stdout or job.streams):
        _refuse_in_store(Path(job.output or "") / "shards", str(Path(job.output or "")))
        destination = LocalDestination(job.output or "", job.storage, wants_shards=_wants_shards(job))
    if job.part_names and (destination is None or not destination.is_directory):
        raise UsageError("--split: the output is a folder of folders; give -o with a / at its end")
    if job.cut is not None and (destination is None or destination.is_stream):
        raise UsageError("shards cannot go to standard output or a device; give a directory with -o")
    if job.options.get("verify") and destination is not None and destination.is_stream:
        raise UsageError(
            f"--verify reads the output again, which {destination.name} does not allow; name a file"
        )
    return destination


def _refuse_in_store(path: Path, name: str | None = None) -> None:
    if any(os.path.isdir(folder / "sets") for folder in real_path(path).parents):  # noqa: PTH112 - Path raises
        from recshuf.piles.kept.folder import refuse_in_store  # most paths lie in no store

        refuse_in_store(path, name)


def _wants_shards(job: Job) -> bool:
    """Tell whether the output is a folder, whatever its name: that of parts, if it does not look like a file's."""
    return job.cut is not None or bool(job.part_names and not PurePath(job.output or "").suffix)


def resolve_job(
    job: Job, destination: Destination | None, progress: Progress, piles: PileLayout | None = None
) -> Run:
    """Open the inputs, and plan; `piles` is the layout of a run to continue."""
    files, feature = list_inputs(job, destination, progress), job.feature
    if feature is not None and feature.counts_records:  # before a stream is opened, which may wait
        job.require_rereading(feature.flag)
        require_files(feature.flag, files, ", or --split-by" if job.part_names else "")
    name = _find_format(job, files, _find_target_name(job, destination))
    given, to = load_format(name), load_format(_choose_target_name(job, destination, name, progress))
    _check(job, destination, given, to)
    _warn_of_lost_columns(job, given, to, files, progress)
    inputs = _open_inputs(job, given, files, progress)
    if feature is not None and feature.counts_records:
        known = None if piles is None else piles.record_counts
        counts = known or count_records(inputs, find_limits(job, destination), progress)
        inputs = replace(inputs, counts=counts)
    if isinstance(feature, Mixture):
        inputs = size_mixture(job, inputs, progress)
    return _plan(job, destination, inputs, to, progress, piles)


def resolve_opened(
    job: Job,
    destination: Destination | None,
    inputs: Inputs,
    piles: PileLayout | None,
    progress: Progress,
) -> Run:
    """Plan a job whose inputs are those of a `Run`, or whose records are in a pile store."""
    to = load_format(_choose_target_name(job, destination, inputs.format, progress))
    _check(job, destination, load_format(inputs.format), to)
    return _plan(job, destination, inputs, to, progress, piles)


def resolve_inputs(job: Job, files: list[InputFile], progress: Progress) -> Inputs:
    """Open the inputs of a job without an output, which `list_inputs` returned."""
    given = load_format(_find_format(job, files, None))
    check_stored(job, given.traits.name)
    _warn_of_lost_columns(job, given, None, files, progress)
    return _open_inputs(job, given, files, progress)


def _check(job: Job, destination: Destination | None, given: Format, to: Format) -> None:
    check_options(job, given.traits.name, to.traits.name)
    check_streams(
        job,
        given.traits.name,
        to.traits.name,
        to_stream=not job.streams and (destination is None or destination.is_stream),
    )


def _plan(
    job: Job,
    destination: Destination | None,
    inputs: Inputs,
    to: Format,
    progress: Progress,
    piles: PileLayout | None,
) -> Run:
    named = find_fields(job.feature)
    chosen = job.read.columns is not None
    values = None if named is None else open_fields(*named, inputs, are_chosen=chosen)
    decoding = _choose_decoding(job, inputs, to.traits.name)
    output = _choose_output(job, destination, inputs, to)
    target = _preview_target(inputs, output, decoding)
    if job.uses_tasks and target.sees_all:
        raise UsageError(
            f"--engine {job.options['engine']}: no task sees the keys of all records of {to.traits.name}; give --engine local or "
            "--rename-keys"
        )
    for note in target.notes:
        progress.warn(note)
    if decoding.converts and inputs.source.repeated:
        progress.warn(_describe_left_out(inputs))
    run = Run(job, inputs, output, decoding, None, progress, target.notes, values)  # type: ignore[arg-type] # made here
    own, plan = plan_in_group(job, lambda own: _make_plan(replace(run, job=own), target, piles), progress)
    run = replace(run, job=own)
    if job.temp_url is not None:
        plan = replace(plan, spilled_to=str(job.temp_url))
    if inputs.stored is not None:  # its piles are read where they lie
        plan = replace(plan, spilled_bytes=0, peak_disk_bytes=plan.peak_disk_bytes - plan.spilled_bytes)
    plan = replace(
        _count_disk_bytes(job, plan, destination, target), features=job.features, processes=job.processes
    )
    is_stream = destination is None or destination.is_stream
    if not is_stream and all(one.file_bytes is not None for one in inputs.source.inputs):
        # Inputs can be read twice, and shards be written again.
        decoding = decoding.infer_from_prefix(job, inputs.source)
    return replace(run, decoding=decoding, plan=plan)


def plan_in_group(job: Job, plan: Callable[[Job], Plan], progress: Progress) -> tuple[Job, Plan]:
    """Return a job's plan, and the job with the memory limit that it has: no more than the memory group leaves beside the libraries."""
    room = find_group_room()
    left, limit = room or (job.memory_bytes + _BESIDE_PLAN, 0)
    if left - _BESIDE_PLAN >= job.memory_bytes or job.uses_tasks or job.processes:
        return job, plan(job)

    def refuse(problem: str, least_bytes: int) -> MemoryLimitError:
        remedy = f"raise its limit to {format_size(round_up(limit - left + _BESIDE_PLAN + least_bytes))}"
        if least_bytes > job.memory_bytes:
            remedy += f", and --memory to {format_size(least_bytes)}"
        return MemoryLimitError(f"{problem}, and the memory group leaves {format_size(left)}; {remedy}")

    own = replace(job, memory_bytes=min(job.memory_bytes, max(SMALLEST_MEMORY, left - _BESIDE_PLAN)))
    try:
        planned = plan(own)
    except MemoryLimitError as error:
        if not error.least_bytes:
            raise
        raise refuse(str(error).partition(",")[0], error.least_bytes) from error
    if left - _BESIDE_PLAN < SMALLEST_MEMORY:
        raise refuse(f"a run needs at least {format_size(SMALLEST_MEMORY)} of memory", SMALLEST_MEMORY)
    if job.options["memory"] is not None and own.memory_bytes < job.memory_bytes:
        progress.warn(
            f"--memory {format_size(job.memory_bytes).replace(' ', '')}: the memory group leaves {format_size(left)}, and the run uses no more than "
            f"{format_size(own.memory_bytes)} of it; raise the limit of the group for more"
        )
    return own, planned


def _make_plan(run: Run, target: Target, piles: PileLayout | None) -> Plan:
    job, inputs, output = run.job, run.inputs, run.output
    costs = run.decoding.find_costs(inputs.source, target.sink_bytes, count_added_bytes(job))
    costs = add_values(costs, job, run.values)
    sample = job.count_sample(inputs.sizes.record_count if inputs.sizes.are_exact else None)
    limits = find_limits(job, output.destination)
    return make_plan(inputs.sizes, limits, costs, output.cut, sample, piles)


def plan_again(run: Run, memory_bytes: int) -> Plan:
    """Return the plan that a run would have with its piles as they are and another memory limit."""
    plan, target = run.plan, _preview_target(run.inputs, run.output, run.decoding)
    piles = PileLayout(plan.pile_count, plan.set_of_input)
    return _make_plan(replace(run, job=replace(run.job, memory_bytes=memory_bytes)), target, piles)


def _describe_left_out(inputs: Inputs) -> str:
    """Return a sentence about data that belongs to no record, for which another format has no place."""
    names = list(inputs.source.repeated)
    more = len(names) - _MOST_NAMED
    listed = ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
    return f"{inputs.source.inputs[0].name}: left out are {listed}, which belong to no record; only {inputs.format} output has them"


def _count_disk_bytes(job: Job, plan: Plan, destination: Destination | None, target: Target) -> Plan:
    """Return the plan with the disk space that this destination needs."""
    if destination is None:
        return plan
    output_bytes = plan.peak_disk_bytes - plan.spilled_bytes
    kept_bytes = destination.count_disk_bytes(output_bytes, plan, appends=isinstance(target, SupportsStream))
    spilled_bytes = plan.spilled_bytes
    if plan.spilled_to:
        # Each worker has a set on the disk before it is uploaded.
        spilled_bytes = min(spilled_bytes, job.workers * size_sets(plan, spilled_bytes))
    return replace(plan, peak_disk_bytes=spilled_bytes + kept_bytes)


def find_limits(job: Job, destination: Destination | None = None) -> Limits:
    def count_reserved_bytes(memory_bytes: int) -> int:
        written_bytes = 0 if destination is None else destination.count_memory_bytes(memory_bytes)
        return written_bytes + object_count * count_read_bytes(memory_bytes, job.workers)

    object_count = sum([any(map(is_url, job.inputs)), job.temp_url is not None])
    return Limits(
        job.memory_bytes,
        job.workers,
        job.read.max_record_bytes,
        job.options["piles"],
        job.options["spill_compression"] or "none",
        count_reserved_bytes=count_reserved_bytes,
        spills_all=job.uses_tasks,
        processes=job.processes,
    )


def _warn_of_lost_columns(
    job: Job, given: Format, to: Format | None, files: list[InputFile], progress: Progress
) -> None:
    """Warn of columns that only the names of folders hold; `to` is None for a store."""
    if given.traits.reads_partitions or job.options["provenance"]:
        return
    file = next((one for one in files if one.partitions), None)
    if file is not None:
        names, written = ", ".join(key for key, _ in file.partitions), "output"
        remedy = "--to parquet and --provenance keep"
        if to is None:
            written, remedy = "store", "the names of its sources keep"
        elif takes_provenance(given.traits, to.traits):
            remedy = "--provenance keeps"
        progress.warn(
            f"{file.name}: the columns of its folders ({names}) are not read for {given.traits.name}, and the {written} lacks "
            f"them; {remedy} the paths of inputs"
        )


def _choose_target_name(job: Job, destination: Destination | None, given: str, progress: Progress) -> str:
    """Return the format of the output, as it is asked for; else, or if its suffix is theirs, too, that of the inputs."""
    name = _find_target_name(job, destination)
    if name is None:
        is_file = destination is not None and not destination.is_directory
        output = destination.name if destination is not None and is_file else ""
        chosen = name_by_inputs(output, given)
        if chosen == LAST_RESORT and (meant := find_shared(output)):
            progress.warn(f"{output}: gets lines of {chosen} as they are; --to {meant} writes {meant}")
        elif (near := find_near(output)) and near[1] != chosen:
            progress.warn(
                f"{output}: gets {chosen}, as the inputs; the suffix {near[0]} would mean {near[1]}"
            )
        return chosen
    if job.options["to"]:
        return name
    if has_suffix(job.output or "", given):
        return given
    refuse_shared_suffix(job.output or "", name)
    return name


def _find_target_name(job: Job, destination: Destination | None) -> str | None:
    """Return the format of the output, as it is asked for; None if it is that of the inputs."""
    to = job.options["to"]
    if not to and destination is not None and not destination.is_directory:
        to = name_by_output(job.output or "")
    return to


def _find_format(job: Job, files: list[InputFile], target_name: str | None) -> str:
    """Return the format of the inputs; a stream without a known suffix in `files` becomes one whose beginning is known."""
    if named := name_of_tables(files, job.options["format"], target_name) or job.options["format"]:
        return named
    are_streams = job.reads_stdin or all(
        file.stamp is None and name_by_listing(file) is None for file in files
    )
    if not are_streams:
        return detect_format(files, job.read)
    found: str | None = None
    if files[0].stamp is not None or files[0].stream is not None:
        files[0], found = look_into_stdin(files[0])
    target = load_format(target_name or LAST_RESORT).traits
    if found is not None and found != LAST_RESORT:
        is_taken = target_name is not None and target.takes_any_bytes and load_format(found).traits.is_lines
        return target.name if is_taken else found
    # Content does not tell text from CSV: the output does.
    is_told = found is not None and target.content_rank is not None and not target.takes_any_bytes
    if is_told or not target.is_lines:
        raise UsageError(
            f"{files[0].name} into {target.name}: its lines may be text, JSON or CSV; give --format text, --format jsonl or --format csv"
        )
    return target.name


def _open_inputs(job: Job, given: Format, files: list[InputFile], progress: Progress) -> Inputs:
    drop_page_cache = _COPIES * sum(file.stamp.size for file in files if file.stamp) > available_bytes()
    source = open_source(given.traits.name, files, replace(job.read, drop_page_cache=drop_page_cache))
    for note in source.notes:
        progress.warn(note)
    sizes = take_census(source.inputs, count_added_bytes(job))
    return Inputs(given.traits.name, files, source, sizes, drop_page_cache)


def count_added_bytes(job: Job) -> int:
    """Return the bytes that piles hold with each record of a job besides the record and the first word of its key."""
    provenance_bytes = PROVENANCE_BYTES if job.options["provenance"] else 0
    return provenance_bytes + KEY_BYTES * (job.key_words - 1)


def _choose_decoding(job: Job, inputs: Inputs, to: str) -> Decoding:
    return Decoding.choose(
        inputs, to, provenance=job.options["provenance"], sets_aside=job.quarantine is not None
    )


def _choose_output(job: Job, destination: Destination | None, inputs: Inputs, to: Format) -> Output:
    is_directory = destination is not None and destination.is_directory
    write = job.write
    if write.compression is None:
        write = replace(write, compression=_choose_compression(destination, inputs, to))
    elif write.compression not in to.traits.compressions:
        missing = dict(to.traits.more_compressions).get(write.compression)
        raise UsageError(
            f"--compression {write.compression} is not possible for {to.traits.name}"
            f"{f' without {missing}; install it, or' if missing else ';'} choose one of {', '.join(to.traits.compressions)}"
        )
    if destination is not None and not is_directory:
        write = replace(write, file_name=destination.name)
        check_output(job.output or "", to.traits, job.write.compression)
    _check_companions(job, destination, to.traits)
    cut = job.cut or Cut(
        shards=len(job.part_names) or (len(inputs.source.inputs) if is_directory else 1), shares=job.shares
    )
    return Output(destination, to.traits.name, write, cut)


def _check_companions(job: Job, destination: Destination | None, traits: Traits) -> None:
    """Refuse an output whose files beside those of the shards have no place, or would replace others."""
    if not traits.companion_suffixes or destination is None:
        return
    name, suffix = destination.name, traits.suffixes[0]
    if destination.local_path is None:
        both = " and ".join((suffix, *traits.companion_suffixes))
        raise UsageError(
            f"{name}: a shard of {traits.name} is several files ({both}), which object stores do not put in place together; write "
            "to a local folder, and upload that"
        )
    if destination.is_directory:
        return
    if destination.local_path.is_symlink():
        raise UsageError(
            f"{name}: is a link, and no file is beside what it leads to; give that path, or remove the link"
        )
    if not name.endswith(suffix):
        stem = next((name.removesuffix(one) for one in traits.companion_suffixes if name.endswith(one)), name)
        raise UsageError(f"{name}: readers look for {traits.name} by its suffix; name it {stem}{suffix}")
    # Of a commit that is continued, the file itself is there, too.
    is_continued = job.options["resume"] and destination.local_path.exists()
    for path in (destination.local_path.with_suffix(one) for one in traits.companion_suffixes):
        if os.path.lexists(path) and not (job.options["overwrite"] or is_continued):
            raise OutputExistsError(f"{path}: exists already; give --overwrite to replace it")


def _choose_compression(destination: Destination | None, inputs: Inputs, to: Format) -> str | None:
    """Return the compression by the suffix of the output, else in a conversion that of the inputs; None if neither applies."""
    compression = None
    if destination is not None and not destination.is_directory:
        compression = suffix_compression(destination.name, to.traits)
    inherited = inputs.source.compression if inputs.format != to.traits.name else None
    if compression is None and inherited != "none" and inherited in to.traits.compressions:
        compression = inherited
    return compression


class _UnknownTarget(Target):
    """A target of a format that holds tables of certain columns only, while those of the records are not known."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix

    def open(self, path: Path, threads: int) -> Sink:
        raise NotImplementedError


def _preview_target(inputs: Inputs, output: Output, decoding: Decoding) -> Target:
    """Return a target before anything is read, so that fields it cannot hold are refused early."""
    source, decoder, target = inputs.source, decoding.decoder, load_format(output.format)
    write = replace(output.write, table_bytes=decoding.count_table_bytes(source.inputs))
    schema = source.schema if decoder is None else decoder.schema
    if schema is not None:
        return target.open_target(schema, None if decoding.converts else source.layout, write)
    # Most formats take a column of this name, and one needs it; others hold numbers alone, or lists of them.
    schemas = (
        pa.schema([field])
        for field in (("__key__", pa.string()), ("value", pa.int64()), ("value", pa.list_(pa.int64())))
    )
    for schema in schemas:
        with suppress(ConversionError):
            return target.open_target(schema, None, write)
    return _UnknownTarget(target.traits.suffixes[0])
