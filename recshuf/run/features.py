"""What a run does besides the order: it counts records first, draws keys of values, mixes inputs, splits into parts.

Its report and its manifest say what that came to.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recshuf.errors import CheckError, ConversionError, UsageError
from recshuf.formats import find_packages, load_format
from recshuf.job.features import Dedup, GroupBy, Mixture, SplitFiles
from recshuf.job.plan import Costs, Cut, InputSize, InputSizes, Limits
from recshuf.job.planner import make_plan
from recshuf.job.report import DownloadReport, FileReport, PassReport, ShuffleReport
from recshuf.output.manifest import Manifest
from recshuf.records.digests import InputCounts
from recshuf.records.key_makers import COUNTERS, CopyKeys, KeyMaker, PositionKeys, find_deviation, list_quotas
from recshuf.records.keys import ORDER_VERSION, Split, apportion
from recshuf.records.provenance import FILE_COLUMN, ROW_COLUMN, check_count
from recshuf.records.reader import InputPart, InputReader, ReadingPlan
from recshuf.storage.reading.objects import list_requests
from recshuf.system.memory import peak_bytes
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    import pyarrow as pa

    from recshuf.interfaces import InputFile, ValueReader
    from recshuf.job.job import Job
    from recshuf.job.report import Progress
    from recshuf.output.entries import FinishedShard
    from recshuf.piles.groups import Groups
    from recshuf.piles.store import Store
    from recshuf.records.duplicates import Duplicates
    from recshuf.records.key_makers import Quota
    from recshuf.records.value_keys import PartFinder
    from recshuf.run.header import Header
    from recshuf.run.inputs import Inputs
    from recshuf.run.resolve import Run


def require_files(option: str, files: Iterable[InputFile], or_else: str = "") -> None:
    """Refuse inputs that can be read once, for an option that counts their records first; `or_else` follows the remedy."""
    if any(file.stamp is None and file.table is None for file in files):
        raise UsageError(f"{option} reads its inputs twice, and a stream is read once; give files{or_else}")


def count_records(inputs: Inputs, limits: Limits, progress: Progress) -> tuple[int, ...]:
    source = inputs.source
    unknown = [index for index, one in enumerate(source.inputs) if not one.record_count_is_exact]
    if unknown:
        costs = Costs(source.reading_bytes, lambda _: 0)
        plan = make_plan(inputs.sizes, replace(limits, pile_count=1), costs, Cut(shards=1))
        reading = ReadingPlan(plan.scatter_workers, plan.block_bytes, plan.max_record_bytes)
        reader = InputReader(
            source,
            reading,
            [*map(InputPart, unknown)],
            lambda batch, _: progress.advance(batch.num_rows, batch.nbytes),
        )
        progress.start("count", plan.record_count, plan.byte_count)
        reader.run("count")
    rows = {index: reader.rows_of(index) for index in unknown}
    return tuple(rows.get(index, one.record_count or 0) for index, one in enumerate(source.inputs))


_MANY_COPIES = 4


def find_quotas(job: Job, inputs: Inputs, counts: Sequence[int] | None = None) -> list[Quota]:
    """Return how many records to take of each INPUT of a job, given the number of records of each input.

    Default of that: as counted before, else one each, which quotas in whole copies allow.
    """
    feature = job.feature
    assert isinstance(feature, Mixture)  # noqa: S101 - the caller knows
    return list_quotas(
        counts or inputs.counts or [1] * len(inputs.files),
        [file.argument for file in inputs.files],
        copies=feature.copies,
        weights=feature.weights,
        total=int(job.options["head_count"] or 0),
    )


def size_mixture(job: Job, inputs: Inputs, progress: Progress) -> Inputs:
    """Return inputs whose sizes are those of the records that are taken of them; warn of many copies."""
    sizes: list[InputSize] = []
    for name, quota in zip(job.inputs, find_quotas(job, inputs), strict=True):
        if quota.taken and not quota.records:
            raise UsageError(f"{name}: holds no records, and {quota.taken:,} are to be taken; leave it out")
        if quota.most_copies > _MANY_COPIES:
            progress.warn(
                f"{name}: each of its records is taken {quota.taken // quota.records:,} times or more"
            )
        for index in quota.inputs:
            size = inputs.sizes[index]
            count = size.record_count if inputs.counts is None else inputs.counts[index]
            sizes.append(_scale(size._replace(record_count=count), quota))
    return replace(inputs, sizes=InputSizes.of(sizes))


def find_counts(run: Run, store: Store | None = None) -> InputCounts:
    """Return the counts of all inputs in a store, by default that of the run."""
    counts = InputCounts(len(run.inputs.source.inputs))
    for index, count in (store or run.store).sources.items():
        counts.put(index, count)
    return counts


def count_missing(store: Store, field_count: int) -> list[int]:
    """Return how many records of a store have no value of all fields that give keys, and of each."""
    counts = store.missing.values()
    return list(map(sum, zip(*counts, strict=True))) if counts else [0] * (1 + field_count)


def count_read(run: Run, counts: InputCounts) -> list[int]:
    """Return how many records of each input were read, given those that were put into piles, and dropped."""
    if run.inputs.counts is not None:
        return list(run.inputs.counts)
    found: list[int] = (counts.records + counts.dropped).tolist()
    if not isinstance(run.job.feature, Mixture):
        return found
    copies = [int(run.job.feature.copies[file.argument]) for file in run.inputs.files]
    return [count // each for count, each in zip(found, copies, strict=True)]


def _describe_sources(run: Run, feature: Mixture) -> list[dict[str, Any]]:
    """Return what was taken of each INPUT, as JSON values."""
    quotas = find_quotas(run.job, run.inputs, count_read(run, find_counts(run)))
    return [
        {"input": name, **number, "records": quota.records, "written": quota.taken}
        for name, number, quota in zip(run.job.inputs, feature.list_numbers(), quotas, strict=True)
    ]


def _scale(size: InputSize, quota: Quota) -> InputSize:
    """Return the size of what is taken of an input, about."""
    taken, records = quota.taken, max(1, quota.records)
    count, byte_count, file_bytes = (
        None if number is None else number * taken // records for number in size[:3]
    )
    return InputSize(count, byte_count, file_bytes, is_exact=False)


def settle_parts(run: Run, before: Header | None) -> Run:
    """Return a run that knows which records belong to each part, if these have exact sizes: as `before`, which it continues."""
    feature = run.job.feature
    if not isinstance(feature, SplitFiles) or feature.fields:
        return run
    if before is not None:
        return adopt_parts(run, before)
    return replace(run, split=Split.find(run.seed, run.inputs.counts or (), plan_sizes(run, feature)))


def adopt_parts(run: Run, header: Header) -> Run:
    """Return a run with the parts that its header names, if these have exact sizes."""
    bounds = header.job.get("part_bounds")
    return run if bounds is None else replace(run, split=Split.from_json(run.seed, bounds))


def plan_sizes(run: Run, feature: SplitFiles) -> list[int]:
    """Return the number of records of each part of exact size."""
    return apportion(sum(run.inputs.counts or ()), tuple(feature.shares.values()))


def find_part_sizes(run: Run, feature: SplitFiles, counts: InputCounts, groups: Groups) -> list[int]:
    """Return the number of records of each part, given all records in the order of their keys."""
    from recshuf.records.value_keys import divide_keys, find_begins  # a plain shuffle starts faster

    edges = divide_keys(tuple(feature.shares.values()))
    places = groups.count_before(find_begins(edges))
    sizes = [stop - start for start, stop in pairwise([0, *places, counts.record_count])]
    if run.split is not None and sizes != (planned := plan_sizes(run, feature)):
        raise CheckError(f"gather: {sizes} records in the parts of the split, {planned} planned; run again")
    return sizes


def _describe_parts(run: Run, feature: SplitFiles, shards: Iterable[FileReport]) -> dict[str, Any]:
    """Return the parts of an output as JSON values, of values with the standard deviation of their sizes."""
    records = dict.fromkeys(feature.shares, 0)
    for shard in shards:
        records[shard.name.partition("/")[0]] += shard.records
    parts: list[dict[str, Any]] = [{"name": name, "records": count} for name, count in records.items()]
    if feature.fields:
        counters = sum(run.store.squares.values(), np.zeros(COUNTERS, np.int64))
        for part in parts:
            part["deviation"] = find_deviation(float(feature.shares[part["name"]]), counters)
    return feature.to_json() | {"parts": parts}


_VALUE_BYTES = 8 << 20
"""Memory of a worker for the values of a piece: parsed, as texts and as Python objects."""


def choose_keys(run: Run) -> KeyMaker:
    feature = run.job.feature
    if isinstance(feature, GroupBy) and run.values is not None:
        from recshuf.records.value_keys import FieldKeys, ValueKeys

        row_seed = run.seed if feature.order == "random" else None
        return FieldKeys(run.values, ValueKeys(run.seed), row_seed)
    if isinstance(feature, Mixture):
        return CopyKeys(run.seed, find_quotas(run.job, run.inputs), run.inputs.counts)
    if isinstance(feature, SplitFiles):
        from recshuf.records.value_keys import PartKeys, PlacedParts, ValueParts, divide_keys

        shares = tuple(feature.shares.values())
        if run.values is not None:
            finder: PartFinder = ValueParts(run.values, feature.seed, shares)
        else:
            assert run.split is not None  # noqa: S101 - it is settled before records are read
            finder = PlacedParts(run.split)
        return PartKeys(run.seed, tuple(divide_keys(shares)), finder)
    return find_duplicates(run) or PositionKeys(run.seed)


def find_duplicates(run: Run) -> Duplicates | None:
    """Return what tells which records of a run repeat others; None if all are kept."""
    if not isinstance(run.job.feature, Dedup):
        return None
    from recshuf.records.duplicates import Duplicates

    are_lines = load_format(run.inputs.format).traits.is_lines
    column_count = len(run.inputs.source.schema)
    return Duplicates(run.seed, run.values, are_lines=are_lines, column_count=column_count)


def open_fields(flag: str, fields: Sequence[str], inputs: Inputs, *, are_chosen: bool = False) -> ValueReader:
    """Return what reads some fields, which an option names; `are_chosen` if `--columns` keeps those of the inputs."""
    from recshuf.formats.texts import find_value_reader  # imports what other runs do not need

    check_count(len(inputs.source.inputs), flag)
    traits = load_format(inputs.format).traits
    try:
        reader = find_value_reader(inputs.source, traits, fields)
    except UsageError as error:
        note = "; --columns keeps no others" if are_chosen else ""
        raise UsageError(f"{flag}: {error}{note}") from error
    if reader is None:
        remedy = "give --dedup record" if flag == Dedup.flag else "leave it out"
        if traits.is_lines:
            remedy = "give --format jsonl or csv if its lines have some"
        raise UsageError(f"{flag} {','.join(fields)}: {inputs.format} has no fields; {remedy}")
    return reader


def add_values(costs: Costs, job: Job, values: ValueReader | None) -> Costs:
    """Return the memory needs of a run that reads values besides, and copies the records that it keeps."""
    copies = isinstance(job.feature, Dedup)
    if values is None and not copies:
        return costs
    return replace(
        costs, reading_bytes=lambda block: costs.reading_bytes(block) + copies * block + _VALUE_BYTES
    )


# The report and the manifest of a finished run


def describe_inputs(run: Run, counts: InputCounts) -> list[FileReport]:
    """Return the figures of each input; `records` includes those in quarantine."""
    summaries, quarantine = run.inputs.source.inputs, run.quarantine
    bad_counts = quarantine.counts if quarantine else [0] * len(summaries)
    return [
        FileReport(summary.name, count + bad, summary.file_bytes, bad)
        for summary, count, bad in zip(summaries, count_read(run, counts), bad_counts, strict=True)
    ]


def _describe_feature(
    run: Run, shards: Sequence[FileReport], finished: Iterable[FinishedShard]
) -> dict[str, Any]:
    """Return what a run did besides the order, as JSON values by name, given its shards."""
    feature = run.job.feature
    if isinstance(feature, GroupBy):
        without_value, *_ = count_missing(run.store, len(feature.fields))
        figures = {"groups": sum(shard.values for shard in finished), "without_value": without_value}
        return {"group_by": feature.to_json() | figures}
    if isinstance(feature, Mixture):
        return {"sources": _describe_sources(run, feature)}
    if isinstance(feature, SplitFiles):
        return {"split": _describe_parts(run, feature, shards)}
    if isinstance(feature, Dedup):
        kept, read = sum(one.records for one in shards), find_counts(run).read_count
        without_value, *_ = count_missing(run.store, len(feature.fields))
        figures = {"kept": kept, "dropped": read - kept, "without_value": without_value}
        return {"dedup": feature.to_json() | figures}
    return {}


def make_report(
    run: Run,
    inputs: Sequence[FileReport],
    shards: Sequence[FileReport],
    passes: Sequence[PassReport],
    finished: Collection[FinishedShard],
    *,
    spilled_bytes: int,
    seconds: float,
    base_bytes: int,
) -> ShuffleReport:
    """Return the report of a run; the first of `passes` is the scatter."""
    job, plan, destination = run.job, run.plan, run.output.destination
    return ShuffleReport(
        version=__version__,
        order=ORDER_VERSION,
        seed=run.seed,
        format=run.inputs.format,
        to=run.output.format,
        records=sum(one.records for one in inputs),
        records_written=sum(one.records for one in shards),
        byte_count=passes[0].byte_count,
        spilled_bytes=spilled_bytes,
        seconds=seconds,
        passes=tuple(passes),
        inputs=tuple(inputs),
        shards=tuple(shards),
        plan=replace(plan, spill_compression=run.store.compression),
        predicted_peak_bytes=plan.peak_memory_bytes,
        measured_peak_bytes=peak_bytes(),
        base_bytes=base_bytes,
        quarantined=sum(one.quarantined for one in inputs),
        quarantine=None if job.quarantine is None else str(job.quarantine),
        features=_describe_feature(run, shards, finished),
        uploads=None if destination is None else destination.report(),
        downloads=DownloadReport.of(list_requests(run.inputs.files)),
    )


def make_manifest(
    run: Run,
    inputs: list[FileReport],
    shards: list[FileReport],
    documents: Iterable[str],
    finished: Collection[FinishedShard],
) -> Manifest:
    """Return the manifest of a run, given the names of documents beside the shards; its decoder has observed every record."""
    job = run.job
    return Manifest(
        Path(run.output.name),
        run.output.format,
        tuple(inputs),
        tuple(shards),
        added=(FILE_COLUMN, ROW_COLUMN) if job.options["provenance"] else (),
        format=run.inputs.format,
        seed=run.seed,
        # The first epoch of a store is the order of a shuffle.
        epoch=job.epoch if job.epoch and not job.epoch.is_first else None,
        schema=_find_schema(run),
        counts_quarantined=job.quarantine is not None,
        notes=run.notes,
        features=_describe_feature(run, shards, finished),
        packages=find_packages((run.inputs.format, run.output.format)),
        documents=tuple(documents),
    )


def _find_schema(run: Run) -> pa.Schema:
    """Return the schema in table form, or in native form if there is none."""
    source, decoder = run.inputs.source, run.decoder
    schema: pa.Schema = source.schema
    with suppress(ConversionError):
        schema = (source.decoder().schema if decoder is None else decoder.finish()) or schema
    return schema
