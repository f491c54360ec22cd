"""Which part of a split each record belongs to, if values tell: by its value in the inputs, by its folder in the output."""

from __future__ import annotations

from fractions import Fraction
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from recshuf.job.features import SplitFiles
from recshuf.records.keys import RowRange
from recshuf.records.value_parts import ValueParts

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

    from recshuf.audit.verify.comparison import Comparison
    from recshuf.audit.verify.mismatches import Mismatches, Tally
    from recshuf.job.job import Job
    from recshuf.output.manifest import Manifest


_MARK = np.uint64(0x9E3779B97F4A7C15)


def find_value_split(job: Job, manifest: Manifest | None) -> SplitFiles | None:
    """Return the split by values that the options of a job say, else its manifest; None if there was none."""
    if isinstance(job.feature, SplitFiles):
        return job.feature if job.feature.fields else None
    found = manifest.split if manifest else None
    if found is None or "by" not in found:
        return None
    shares = {name: Fraction(share) for name, share in found["shares"].items()}
    return SplitFiles(shares, tuple(found["by"]), int(found["seed"]))


def mark_parts(comparison: Comparison, job: Job, manifest: Manifest | None) -> SplitFiles | None:
    """Have equal records of different parts hash differently in their second word, and return the split, if there was one."""
    split, output = find_value_split(job, manifest), comparison.output
    if split is None or output is None:
        return None
    reader = comparison.inputs.record_set.source.value_reader(split.fields)
    if reader is None:
        return None
    finder = ValueParts(reader, split.seed, tuple(split.shares.values()))
    numbers = {name: number for number, name in enumerate(split.shares)}
    part_of_file = [numbers.get(PurePath(name).parent.name, len(numbers)) for name in output.record_set.names]

    def mark_input(batch: pa.RecordBatch, file: int, first_row: int) -> NDArray[np.uint64]:
        parts = finder.find_parts(batch, [RowRange(file, first_row, batch.num_rows)]).parts
        return parts.astype(np.uint64) * _MARK

    def mark_output(batch: pa.RecordBatch, file: int, _: int) -> NDArray[np.uint64]:
        return np.full(batch.num_rows, part_of_file[file], np.uint64) * _MARK

    comparison.inputs.mark, output.mark = mark_input, mark_output
    return split


def describe_misplaced(before: Tally, after: Tally, found: Mismatches, split: SplitFiles | None) -> list[str]:
    """Return a sentence if the output holds all records, some of them in other parts than their values tell."""
    is_same = (before.counts == after.counts).all() and (before.sums[0] == after.sums[0]).all()
    if split is None or not (is_same and found.extra):
        return []
    values = ", ".join(map(repr, split.fields))
    return [f"{found.extra:,} records are in another part than their values of {values} tell"]
