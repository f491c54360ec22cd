"""What a run does besides the order: it counts records first, draws keys of values, mixes inputs, splits into parts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from recshuf.errors import CheckError, UsageError
from recshuf.formats import load_format
from recshuf.job.features import Dedup, GroupBy, Mixture, SplitFiles
from recshuf.job.plan import Costs, Cut, InputSize, InputSizes, Limits
from recshuf.job.planner import make_plan
from recshuf.records.key_makers import COUNTERS, KeyMaker, PositionKeys, find_deviation
from recshuf.records.provenance import check_count
from recshuf.records.reader import InputPart, InputReader, ReadingPlan
from recshuf.records.split import Split, apportion

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from recshuf.interfaces import InputFile, ValueReader
    from recshuf.job.job import Job
    from recshuf.job.report import FileReport, Progress
    from recshuf.piles.groups import Groups
    from recshuf.records.copies import Quota
    from recshuf.records.digests import InputCounts
    from recshuf.records.duplicates import Duplicates
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
    from recshuf.records.copies import list_quotas  # a plain shuffle starts faster

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


def count_read(job: Job, inputs: Inputs, found: Sequence[int]) -> list[int]:
    """Return how many records of each input were read, given how many of them were put into piles."""
    if inputs.counts is not None:
        return list(inputs.counts)
    if not isinstance(job.feature, Mixture):
        return list(found)
    copies = [int(job.feature.copies[file.argument]) for file in inputs.files]
    return [count // each for count, each in zip(found, copies, strict=True)]


def describe_sources(job: Job, inputs: Inputs, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Return what was taken of each INPUT, as JSON values, given the number of records of each input."""
    feature = job.feature
    assert isinstance(feature, Mixture)  # noqa: S101 - the caller knows
    quotas = find_quotas(job, inputs, counts)
    return [
        {"input": name, **number, "records": quota.records, "written": quota.taken}
        for name, number, quota in zip(job.inputs, feature.list_numbers(), quotas, strict=True)
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
    places = groups.count_before(find_begins(edges), feature.word_count)
    sizes = [stop - start for start, stop in pairwise([0, *places, counts.record_count])]
    if run.split is not None and sizes != (planned := plan_sizes(run, feature)):
        raise CheckError(f"gather: {sizes} records in the parts of the split, {planned} planned; run again")
    return sizes


def describe_parts(run: Run, feature: SplitFiles, shards: Iterable[FileReport]) -> dict[str, Any]:
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
        from recshuf.records.copies import CopyKeys  # a plain shuffle starts faster

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
