"""What a scatter tells its caller while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.job.report import SilentProgress
from recshuf.piles.codec import choose_codec
from recshuf.piles.layout import StorePlan
from recshuf.piles.regions import PileReader
from recshuf.piles.set_folder import Scratch
from recshuf.piles.store import RunPiles
from recshuf.run.scatter import Scatter, ScatterCallbacks, ScatterTask
from tests.support.formats.fake_format import FakeSource
from tests.support.pass_tools import UNLIMITED, Knobs, make_plan

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = [300, 0, 170, 1, 220, 90]
SETS = 3


@pytest.mark.parametrize("resident_bytes", [0, 4000, UNLIMITED])
@pytest.mark.parametrize("workers", [1, 4])
def test_each_set_is_passed_on_once_with_final_counts_and_can_be_adopted(
    tmp_path: Path, resident_bytes: int, workers: int
):
    """If anything was spilled; the sets of a run in memory are passed to nobody."""
    rows = [[b"%d:%d " % (i, r) + b"x" * (r % 7) for r in range(count)] for i, count in enumerate(COUNTS)]
    source = FakeSource(rows, fragment_rows=20, batch_rows=9)
    plan = make_plan(source, Knobs(workers=workers, sets=SETS))
    scratch = Scratch(tmp_path, kept=tmp_path / "kept")
    store_plan = StorePlan(4, (None,) * SETS, resident_bytes, keeps_sets=True)
    store = RunPiles(store_plan, choose_codec(source.schema), scratch)
    results: list[int] = []
    inputs: list[int] = []
    callbacks = ScatterCallbacks(on_input=inputs.append, on_set=results.append)
    counts = Scatter(ScatterTask(source, plan, 5), store, None, SilentProgress(), callbacks).run()
    assert sorted(inputs) == list(range(len(COUNTS)))
    assert counts.records.tolist() == COUNTS
    assert sorted(results) == ([] if resident_bytes == UNLIMITED else [0, 1, 2])
    later = RunPiles(store_plan, choose_codec(source.schema), scratch)
    for result in results:
        assert later.adopt(result).counts == {index: counts[index] for index in plan.inputs_of(result)}
    if results:
        assert PileReader(later).digest(range(4)) == counts.digest(range(len(COUNTS)))
    for one in (store, later, scratch):
        one.close()
