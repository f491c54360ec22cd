"""A mixture of the inputs of a job: how many records of each INPUT it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recshuf.errors import UsageError
from recshuf.job.features import Mixture
from recshuf.job.plan import InputSize, InputSizes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.job.job import Job
    from recshuf.job.report import Progress
    from recshuf.records.copies import Quota
    from recshuf.run.inputs import Inputs


_MANY_COPIES = 4


def find_quotas(job: Job, inputs: Inputs, counts: Sequence[int] | None = None) -> list[Quota]:
    """Return how many records to take of each INPUT of a job.

    Parameters
    ----------
    counts
        Number of records of each input. Default: as counted before, else one each, which quotas in whole copies allow.
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
