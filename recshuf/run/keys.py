"""Which keys the records of a run get."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.job.features import Mixture
from recshuf.records.copies import CopyKeys
from recshuf.records.key_makers import PositionKeys
from recshuf.run.mixture import find_quotas

if TYPE_CHECKING:
    from recshuf.records.key_makers import KeyMaker
    from recshuf.run.resolve import Run


def choose_keys(run: Run) -> KeyMaker:
    """Return what gives the records of a run their keys."""
    feature = run.job.feature
    if isinstance(feature, Mixture):
        return CopyKeys(run.seed, find_quotas(run.job, run.inputs), run.inputs.counts or ())
    return PositionKeys(run.seed)
