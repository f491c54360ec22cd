"""Which keys the records of a run get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.job.features import Mixture, SplitFiles
from recshuf.records.copies import CopyKeys
from recshuf.records.key_makers import PositionKeys
from recshuf.run.mixture import find_quotas
from recshuf.run.parts import choose_part_keys

if TYPE_CHECKING:
    from recshuf.records.key_makers import KeyMaker
    from recshuf.run.resolve import Run


def choose_keys(run: Run) -> KeyMaker:
    """Return what gives the records of a run their keys."""
    feature = run.job.feature
    if isinstance(feature, Mixture):
        return CopyKeys(run.seed, find_quotas(run.job, run.inputs), run.inputs.counts or ())
    if isinstance(feature, SplitFiles):
        return choose_part_keys(run, feature)
    return PositionKeys(run.seed)
