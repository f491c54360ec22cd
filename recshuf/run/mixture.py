"""A mixture of the inputs of a job: how many records of each INPUT it takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from recshuf.errors import UsageError
from recshuf.job.features import Mixture, show_number
from recshuf.job.plan import InputSizes
from recshuf.records.copies import list_quotas

if TYPE_CHECKING:
    from recshuf.job.job import Job
    from recshuf.job.plan import InputSize
    from recshuf.job.report import Progress
    from recshuf.records.copies import Quota
    from recshuf.run.inputs import Inputs


_MANY_COPIES = 4


def find_quotas(job: Job, inputs: Inputs) -> list[Quota]:
    """Return how many records to take of each INPUT of a job, whose records have been counted."""
    feature = job.feature
    assert isinstance(feature, Mixture)  # noqa: S101 - the caller knows
    return list_quotas(
        inputs.counts or (),
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
                f"{name}: each of its {quota.records:,} records is taken {quota.taken // quota.records:,} times or more"
            )
        sizes += [_scale(inputs.sizes[index], (inputs.counts or ())[index], quota) for index in quota.inputs]
    return replace(inputs, sizes=InputSizes.of(sizes))


def describe_sources(job: Job, inputs: Inputs) -> list[dict[str, Any]]:
    """Return what was taken of each INPUT, as JSON values."""
    feature = job.feature
    assert isinstance(feature, Mixture)  # noqa: S101 - the caller knows
    word, numbers = ("weight", feature.weights) if feature.weights else ("copies", feature.copies)
    return [
        {"input": name, word: show_number(number), "records": quota.records, "written": quota.taken}
        for name, number, quota in zip(job.inputs, numbers, find_quotas(job, inputs), strict=True)
    ]


def _scale(size: InputSize, count: int, quota: Quota) -> InputSize:
    """Return the size of what is taken of an input of so many records, about."""
    taken, records = quota.taken, max(1, quota.records)
    byte_count, file_bytes = (
        None if number is None else number * taken // records for number in (size.byte_count, size.file_bytes)
    )
    return size._replace(
        record_count=count * taken // records, byte_count=byte_count, file_bytes=file_bytes, is_exact=False
    )
