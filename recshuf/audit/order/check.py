"""Tests on files alone of whether records are in a uniformly random order."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from recshuf.audit.order.battery import MIN_RECORDS, Score, combine_scores, run_battery
from recshuf.audit.order.sampling import SEED, match_output, order_by_value, sample_column
from recshuf.audit.verify.record_sets import read_manifest
from recshuf.errors import UsageError
from recshuf.job.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.audit.order.matching import BottomKSample, Matching
    from recshuf.job.job import Job
    from recshuf.job.report import Progress


@dataclass(frozen=True, slots=True, repr=False)
class CheckReport(Report):
    """The result of a check.

    Attributes
    ----------
    basis
        What the order was tested by: ``origins``, the records' positions in the inputs, or the name of a column.
    records
        Number of records, sampled or not.
    tested
        Number of records whose order was tested.
    share
        Share of the records that was sampled, 0 to 1.
    missing
        Number of sampled records of the inputs that are not in the output.
    extra
        Number of sampled records of the output that are not in the inputs.
    duplicates
        Number of tested records that equal another one, or with `column` have the same value; they were told apart at
        random.
    mean_move
        How far records moved on average, as a share of all records; 1/3 in a uniformly random order.
    scores
        The statistics: `name`, `statistic`, `expectation`, `deviation`, `z`, `is_flagged`, `meaning`.
    seconds
        Wall time.
    warnings
        What the check warned of, a sentence each.
    """

    basis: str
    records: int
    tested: int
    share: float
    missing: int
    extra: int
    duplicates: int
    mean_move: float
    scores: tuple[Score, ...]
    seconds: float
    warnings: tuple[str, ...] = ()

    def summarize(self) -> Iterator[str]:
        """Yield the verdict, and the statistics that speak against the order."""
        verdict = "uniformly random" if self.is_uniform else "not uniformly random"
        yield f"{verdict}, {self.tested:,} of {self.records:,} records tested by {self.basis}"
        yield from (f"{score.name}: {score.z:+.1f} deviations" for score in self.scores if score.is_flagged)

    @property
    def is_uniform(self) -> bool:
        """Whether no statistic speaks against a uniformly random order."""
        return not any(score.is_flagged for score in self.scores)

    def __bool__(self) -> bool:
        """Return `is_uniform`."""
        return self.is_uniform

    def to_json(self) -> dict[str, object]:
        """Return the report as JSON values."""
        scores = [
            {name: getattr(score, name) for name in ("name", "statistic", "expectation", "deviation", "z")}
            | {"flagged": score.is_flagged, "meaning": score.meaning if score.is_flagged else None}
            for score in self.scores
        ]
        return {"uniform": self.is_uniform} | asdict(self) | {"scores": scores}


def check_outputs(jobs: Sequence[Job], progress: Progress, id_column: str | None = None) -> CheckReport:
    """Test the order of outputs by the positions of their records in the inputs; arguments as for `match_output`.

    The jobs are shuffles of the same inputs with different seeds, tested together, so that small biases add up.
    """
    started = time.perf_counter()
    # Written so that one matching is in memory at a time.
    orders = [one for job in jobs for one in list_orders(job)]
    reports = [score_matching(match_output(one, progress, id_column), started) for one in orders]
    return combine_reports(reports, started)


def list_orders(job: Job) -> list[Job]:
    """Return a job for each order in the output of a job: of each part of a split, if it is large enough to be tested."""
    if job.output is None:
        return [job]
    manifest = read_manifest(job, job.output)
    if manifest is None or manifest.split is None:
        return [job]
    large = [part["name"] for part in manifest.split["parts"] if part["records"] >= MIN_RECORDS]
    if not large:
        raise UsageError(
            f"no part of {job.output} has the {MIN_RECORDS:,} records that it takes to test an order"
        )
    folder = job.output.rstrip("/")
    return [replace(job, output=f"{folder}/{name}/", feature=None) for name in large]


def check_values(job: Job, progress: Progress, column: str) -> CheckReport:
    started = time.perf_counter()
    return score_values(sample_column(job, progress, column), column, started)


def score_matching(matching: Matching, started: float) -> CheckReport:
    """Return the scores of an output's order; the check began at `started` of `time.perf_counter`."""
    count = len(matching.order)
    if count < MIN_RECORDS and matching.missing and matching.extra:
        raise UsageError(
            f"only {count:,} records of an output are in the inputs, too few to test their order; "
            "recshuf verify tells what differs"
        )
    return CheckReport(
        basis="origins",
        records=matching.records,
        tested=count,
        share=matching.share,
        missing=matching.missing,
        extra=matching.extra,
        duplicates=matching.duplicates,
        mean_move=_find_mean_move(matching.order),
        scores=tuple(run_battery(matching.order, matching.file_sizes)),
        seconds=time.perf_counter() - started,
    )


def combine_reports(reports: Sequence[CheckReport], started: float) -> CheckReport:
    """Return the reports of several outputs as one; `started` as for `score_matching`."""
    return CheckReport(
        basis=reports[0].basis,
        records=sum(report.records for report in reports),
        tested=sum(report.tested for report in reports),
        share=min(report.share for report in reports),
        missing=sum(report.missing for report in reports),
        extra=sum(report.extra for report in reports),
        duplicates=sum(report.duplicates for report in reports),
        mean_move=float(np.mean([report.mean_move for report in reports])),
        scores=tuple(_combine([report.scores for report in reports])),
        seconds=time.perf_counter() - started,
    )


def score_values(sample: BottomKSample, column: str, started: float) -> CheckReport:
    """Return the scores of the order of a column's values; `started` as for `score_matching`."""
    values = order_by_value(sample.take().values, np.random.default_rng(SEED))
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
        duplicates=values.duplicates,
        mean_move=_find_mean_move(values.order),
        scores=tuple(run_battery(values.order, values.group_sizes, "label")),
        seconds=time.perf_counter() - started,
    )


def _combine(batteries: Sequence[Sequence[Score]]) -> Sequence[Score]:
    """Return the scores of several orders as one, of the statistics that all have: some need enough records."""
    if len(batteries) == 1:
        return batteries[0]
    common = set.intersection(*({score.name for score in scores} for scores in batteries))
    return combine_scores([[score for score in scores if score.name in common] for scores in batteries])


def _find_mean_move(order: NDArray[np.int64]) -> float:
    """Return how far records moved on average, as a share of their number; 0 without records."""
    if not len(order):
        return 0.0
    return float(np.abs(order - np.arange(len(order))).mean() / len(order))
