"""The parts of a split: which records belong to each, found before a run begins, and where they lie in its order."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from recshuf.errors import CheckError
from recshuf.job.features import SplitFiles
from recshuf.records.key_makers import COUNTERS, find_deviation
from recshuf.records.split import Split, apportion

if TYPE_CHECKING:
    from collections.abc import Iterable

    from recshuf.job.report import FileReport
    from recshuf.piles.groups import Groups
    from recshuf.records.digests import InputCounts
    from recshuf.records.part_keys import PartKeys
    from recshuf.run.header import Header
    from recshuf.run.resolve import Run


def settle_parts(run: Run, before: Header | None) -> Run:
    """Return a run that knows which records belong to each part, if these have exact sizes.

    Parameters
    ----------
    before
        The run that is continued, which has found them; None for a new one.
    """
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


def choose_part_keys(run: Run, feature: SplitFiles) -> PartKeys:
    """Return what gives the records of a run their keys."""
    from recshuf.records.part_keys import PartKeys, PlacedParts, divide_keys  # a plain shuffle starts faster

    edges = tuple(divide_keys(tuple(feature.shares.values())))
    if run.values is not None:
        from recshuf.records.part_keys import ValueParts  # most runs read no values

        return PartKeys(run.seed, edges, ValueParts(run.values, feature.seed, tuple(feature.shares.values())))
    assert run.split is not None  # noqa: S101 - it is settled before records are read
    return PartKeys(run.seed, edges, PlacedParts(run.split))


def find_part_sizes(run: Run, feature: SplitFiles, counts: InputCounts, groups: Groups) -> list[int]:
    """Return the number of records of each part, given all records in the order of their keys."""
    from recshuf.records.part_keys import divide_keys, find_begins  # a plain shuffle starts faster

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
