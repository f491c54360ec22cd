"""A battery of statistics that tell a uniformly random order from the orders of flawed shufflers.

Tests are two-sided: an order can be too even as well as too uneven. No statistic sees every flaw. Expectations and
deviations are those of uniform permutations, so that scores are about normal: one beyond `LIMIT` is no accident.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from recshuf.audit.order import statistics
from recshuf.errors import UsageError
from recshuf.system.units import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Order = NDArray[np.int64]

LIMIT = 6.0
"""Most deviations from its expectation that a statistic may have."""
MIN_RECORDS = 1_000
"""The normal approximations need so many records."""
_FEW_BLOCKS = 32
_RESIDUES = 100
_RESIDUE_BLOCKS = 50
_CLOSE = 10
_MIN_EXPECTED = 10
_POOL_FACTOR = 6.0
"""Keeps the weight of two records of the smallest group in one window at a quarter of a deviation or less."""


@dataclass(frozen=True, slots=True)
class Score:
    """One statistic of an order."""

    name: str
    statistic: float
    expectation: float
    deviation: float
    """Standard deviation in uniformly random orders."""
    higher: str
    """What a far too high statistic means, as a sentence."""
    lower: str
    """What a far too low statistic means."""

    @property
    def z(self) -> float:
        """Deviations above the expectation; negative below it."""
        return (self.statistic - self.expectation) / self.deviation

    @property
    def is_flagged(self) -> bool:
        return abs(self.z) > LIMIT

    @property
    def meaning(self) -> str:
        return self.higher if self.z > 0 else self.lower


def run_battery(p: Order, file_sizes: Sequence[int], group: str = "file") -> list[Score]:
    """Return the scores of an order, of all statistics that its number of records and files allows.

    `p` is a permutation of ``0 .. n - 1``: the input index of each record of the output. Files are in the order of input
    indices. The `group` is what names and sentences call a file: ``label`` if files stand for groups of equal values.
    """
    if p.size < MIN_RECORDS:
        are_few = f"{count_of(p.size, 'record')} {'is' if p.size == 1 else 'are'} too few"
        raise UsageError(f"{are_few} to test their order: it takes {MIN_RECORDS:,}")
    measures = {name: measure(p) for name, measure in _ORDER_MEASURES.items()}
    measures |= _measure_files(p, np.asarray(file_sizes))
    words = {"group": group, "Group": group.capitalize()}
    meanings = dict(_MEANINGS)
    if (buffer_share := statistics.estimate_buffer(p)) is not None:
        words["share"] = f"{buffer_share * 100:.2g} %"
        meanings["steps"] = _MEANINGS["steps"][0], _BUFFER_MEANING
    return [
        Score(name.replace("file", group), *measure, *(text.format(**words) for text in meanings[name]))
        for name, measure in measures.items()
    ]


def combine_scores(batteries: Sequence[Sequence[Score]]) -> list[Score]:
    """Return the scores of orders, one for each seed, as one: statistics and variances add up.

    These are the statistics that all have: some need enough records.
    """
    first, *others = ({score.name: score for score in scores} for scores in batteries)
    return [
        Score(
            name,
            sum(score.statistic for score in scores),
            sum(score.expectation for score in scores),
            math.hypot(*(score.deviation for score in scores)),
            scores[0].higher,
            scores[0].lower,
        )
        for name in first
        if len(scores := [one[name] for one in (first, *others) if name in one]) == len(batteries)
    ]


def _measure_files(p: Order, file_sizes: Order) -> dict[str, statistics.Measure]:
    """Return the measures that compare files; none if all files are pooled into one group."""
    window = int(np.count_nonzero(file_sizes))
    groups = pool_files(file_sizes)
    if groups.max() == 0:
        return {}
    files = np.repeat(groups, file_sizes)[p]
    measures = {}
    if 2 * window <= p.size:
        measures["file-windows"] = statistics.measure_windows(files, window)
    if (same := statistics.measure_same_file(files)).expectation >= _MIN_EXPECTED:
        measures["same-file"] = same
    return measures


def pool_files(file_sizes: Order) -> Order:
    """Return the group of each file, numbered from 0: one for each large file, one for all small files together.

    A file is small if two of its records in one window would be a large deviation, which depends on the number of
    groups. If the group of small files is small as well, it joins the largest file.

    >>> pool_files(np.array([900, 40, 800, 35, 30])).tolist()
    [1, 0, 2, 0, 0]
    """
    windows = file_sizes.sum() / np.count_nonzero(file_sizes)
    group_count, pooled_count = file_sizes.size, -1
    while True:
        enough = _POOL_FACTOR * math.sqrt(windows / max(1, group_count - 1))
        is_small = file_sizes < enough
        if pooled_count == (pooled_count := int(is_small.sum())):
            break
        group_count = file_sizes.size - pooled_count + 1
    groups = np.where(is_small, 0, np.cumsum(~is_small))
    if file_sizes[is_small].sum() < enough:
        groups[is_small] = groups[np.argmax(file_sizes)]
    _, numbered = np.unique(groups, return_inverse=True)
    return numbered


_ORDER_MEASURES: Mapping[str, Callable[[Order], statistics.Measure]] = {
    "blocks": lambda p: statistics.measure_blocks(p, _FEW_BLOCKS),
    "fine-blocks": lambda p: statistics.measure_blocks(p, math.isqrt(p.size)),
    "residues": lambda p: statistics.measure_residues(p, _RESIDUES, _RESIDUE_BLOCKS),
    "pairs": lambda p: statistics.measure_pairs(p, _FEW_BLOCKS),
    "near": lambda p: statistics.measure_near(p, _CLOSE),
    "near-percent": lambda p: statistics.measure_near(p, p.size // 100),
    "steps": statistics.measure_steps,
    "serial": statistics.measure_serial,
    "spearman": statistics.measure_spearman,
    "inversions": statistics.measure_inversions,
    "footrule": statistics.measure_footrule,
    "descents": statistics.measure_descents,
    "cycles": statistics.measure_cycles,
    "maxima": statistics.measure_maxima,
}
_BUFFER_MEANING = "Neighbours stay together, as after a shuffle buffer that holds about {share} of the data."
"""The meaning of short steps whose distribution is that of a shuffle buffer."""
_MEANINGS: Mapping[str, tuple[str, str]] = {
    "blocks": (
        "Parts of the input are still together: records moved too short a way, or in pieces.",
        "Every part of the output has too equal a share of every part of the input: records were dealt out, not drawn.",
    ),
    "fine-blocks": (
        "Small parts of the input are still together: records moved too short a way, or in pieces.",
        "Every small part of the output has too equal a share of each of the input: records were dealt out, not drawn.",
    ),
    "residues": (
        "Records at equal distances in the input are together in the output: they were dealt out in turn.",
        "Stretches of the output hold whole stretches of the input: records moved too short a way.",
    ),
    "file-windows": (
        "{Group}s come in clumps: some stretches of the output have too many records of one {group}.",
        "Stretches of the output have too equal a share of every {group}: {group}s take turns.",
    ),
    "same-file": (
        "Two records in a row are too often of one {group}: {group}s come in pieces.",
        "Two records in a row are too rarely of one {group}: {group}s take turns.",
    ),
    "pairs": (
        "Where a record comes from tells where the next one does: neighbours stay together, or piles were ordered alike.",
        "Where a record comes from is followed too evenly by all parts of the input: records were dealt out, not drawn.",
    ),
    "near": (
        "Neighbours in the input are too often neighbours in the output.",
        "Neighbours in the input are kept apart in the output.",
    ),
    "near-percent": (
        "Records in a row are too often from one place in the input, within 1 % of the data.",
        "Records in a row are too rarely from one place in the input, within 1 % of the data.",
    ),
    "steps": (
        "Records in a row come from too far apart: distant parts of the input take turns.",
        "Records in a row come from too near to each other: the output follows the input.",
    ),
    "serial": (
        "Late records of the input follow late ones, early ones early ones.",
        "Late records of the input follow early ones, and the other way round: distant parts take turns.",
    ),
    "spearman": (
        "What is late in the input is late in the output: part of the old order is left.",
        "What is late in the input is early in the output: part of the old order is left, in reverse.",
    ),
    "inversions": (
        "Too many pairs of records changed their order: part of the old order is left, in reverse.",
        "Too many pairs of records kept their order.",
    ),
    "footrule": (
        "Records moved too far on average: beginning and end of the input changed places.",
        "Records moved too short a way on average.",
    ),
    "descents": (
        "Too many records are followed by an earlier one of the input: there are runs in reverse order.",
        "Too few records are followed by an earlier one of the input: there are runs in the old order.",
    ),
    "cycles": (
        "Too many records changed places within small groups, or stayed where they were.",
        "Too few records changed places within small groups: such orders are left out.",
    ),
    "maxima": (
        "The end of the input does not come early in the output: it is reached step by step.",
        "The end of the input comes too early in the output.",
    ),
}
