"""How many records each input has, read where no file tells it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from recshuf.errors import UsageError
from recshuf.job.plan import Costs, Cut
from recshuf.job.planner import make_plan
from recshuf.records.reader import InputPart, InputReader, ReadingPlan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from recshuf.interfaces import InputFile
    from recshuf.job.plan import Limits
    from recshuf.job.report import Progress
    from recshuf.run.inputs import Inputs


def require_files(option: str, files: Iterable[InputFile], or_else: str = "") -> None:
    """Refuse inputs that can be read once, for an option that counts their records first; `or_else` follows the remedy."""
    if any(file.stamp is None and file.table is None for file in files):
        raise UsageError(f"{option} reads its inputs twice, and a stream is read once; give files{or_else}")


def count_records(inputs: Inputs, limits: Limits, progress: Progress) -> tuple[int, ...]:
    """Return the number of records of each input."""
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
