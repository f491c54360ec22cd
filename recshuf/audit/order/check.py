"""Whether records are in a uniformly random order, tested on the files alone."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from recshuf.audit.order.battery import MIN_RECORDS, Score, combine_scores, run_battery
from recshuf.audit.order.sampling import LOTS_SEED, read_origins, read_places, read_values
from recshuf.audit.order.value_ranks import order_by_value
from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from recshuf.audit.order.matching import Origins
    from recshuf.audit.order.sample import Sample
    from recshuf.job.job import Job
    from recshuf.job.progress import Progress


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What the order of records looks like."""

    basis: str
    """What the order was tested by: ``origins``, or the name of a column."""
    records: int
    """Records there are."""
    tested: int
    """Records whose order was tested."""
    share: float
    """The part of the records that was drawn to be tested."""
    missing: int
    """Of the records of the inputs drawn: those that are not in the output."""
    extra: int
    """Of the records of the output drawn: those that are not in the inputs."""
    twins: int
    """Of the records tested: those that others are equal to, so that lots were drawn which is which."""
    mean_move: float
    """How far records moved on average, as a part of all; a third in a uniformly random order."""
    scores: tuple[Score, ...]
    seconds: float

    @property
    def is_uniform(self) -> bool:
        """Tell whether nothing speaks against a uniformly random order."""
        return not any(score.is_flagged for score in self.scores)

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON values."""
        scores = [
            asdict(score)
            | {
                "z": score.z,
                "flagged": score.is_flagged,
                "meaning": score.meaning if score.is_flagged else None,
            }
            for score in self.scores
        ]
        for score in scores:
            del score["higher"], score["lower"]
        return {"uniform": self.is_uniform} | asdict(self) | {"scores": scores}


def check_against(jobs: Sequence[Job], progress: Progress, id_column: str | None = None) -> CheckReport:
    """Test the order of jobs' outputs by where their records come from in the inputs.

    Parameters
    ----------
    jobs
        Shuffles of the same inputs with different seeds, tested together: biases add up.
    id_column
        A column whose values tell records apart; None compares whole records.

    Raises
    ------
    UsageError
        When there are too few records, or no such column.
    InputError
        When files cannot be read, have changed meanwhile, or cannot be compared.
    """
    started = time.perf_counter()
    return score_origins([read_origins(job, progress, id_column) for job in jobs], started)


def check_places(jobs: Sequence[Job], progress: Progress) -> CheckReport:
    """Test the order of jobs' inputs, outputs of runs, by where their records say that they were read.

    Raises
    ------
    UsageError
        When there are too few records, or they do not say so.
    InputError
        When two say the same, or files cannot be read, or have changed meanwhile.
    """
    started = time.perf_counter()
    return score_origins([read_places(job, progress) for job in jobs], started)


def check_values(job: Job, progress: Progress, column: str) -> CheckReport:
    """Test the order of a job's inputs by the values of a column: a label, a time, anything that has an order.

    Raises
    ------
    UsageError
        When there are too few records, or no such column, or its values have no order.
    InputError
        When files cannot be read, or have changed meanwhile.
    """
    started = time.perf_counter()
    return score_values(read_values(job, progress, column), column, started)


def score_origins(found: Sequence[tuple[Origins, int]], started: float) -> CheckReport:
    """Return what orders of origins look like, taken together.

    Parameters
    ----------
    found
        The origins of each output's records, and how many records it has, those not drawn included.
    started
        When the check began, in seconds of `time.perf_counter`.

    Raises
    ------
    UsageError
        When there are too few records.
    """
    every = [origins for origins, _ in found]
    for origins in every:
        if len(origins.order) < MIN_RECORDS and origins.missing and origins.extra:
            raise UsageError(
                f"only {len(origins.order):,} records of an output are in the inputs, too few to test their order; "
                "recshuf verify tells what differs"
            )
    batteries = [run_battery(origins.order, origins.file_sizes) for origins in every]
    return CheckReport(
        basis="origins",
        records=sum(count for _, count in found),
        tested=sum(len(origins.order) for origins in every),
        share=min(origins.share for origins in every),
        missing=sum(origins.missing for origins in every),
        extra=sum(origins.extra for origins in every),
        twins=sum(origins.twins for origins in every),
        mean_move=float(np.mean([_find_mean_move(origins.order) for origins in every])),
        scores=tuple(_combine(batteries)),
        seconds=time.perf_counter() - started,
    )


def score_values(sample: Sample, column: str, started: float) -> CheckReport:
    """Return what the order of values of a column looks like; `started` as for `score_origins`.

    Raises
    ------
    UsageError
        When there are too few, or they have no order, or all are equal.
    """
    values = order_by_value(sample.take().values, np.random.default_rng(LOTS_SEED))
    if values.value_count == 1 and len(values.order) >= MIN_RECORDS:
        raise UsageError(
            f"all values of column {column!r} are equal and tell nothing of the order; choose another column"
        )
    return CheckReport(
        basis=column,
        records=sample.records,
        tested=len(values.order),
        share=0.5**sample.level,
        missing=0,
        extra=0,
        twins=values.twins,
        mean_move=_find_mean_move(values.order),
        scores=tuple(run_battery(values.order, values.group_sizes, "label")),
        seconds=time.perf_counter() - started,
    )


def _combine(batteries: Sequence[Sequence[Score]]) -> Sequence[Score]:
    """Return the scores of several orders as one; of samples, not all may have the same statistics."""
    if len(batteries) == 1:
        return batteries[0]
    common = set.intersection(*({score.name for score in scores} for scores in batteries))
    return combine_scores([[score for score in scores if score.name in common] for scores in batteries])


def _find_mean_move(order: NDArray[np.int64]) -> float:
    """Return how far records moved on average, as a part of their number."""
    return float(np.abs(order - np.arange(len(order))).mean() / len(order))
