"""Every run checks itself: whatever a pass loses, doubles, cuts or misplaces is found before anything is committed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import recshuf
import recshuf.piles.epochs as epochs
import recshuf.records.key_makers as key_makers
import recshuf.run.gather as gather
from recshuf.errors import CheckError
from recshuf.formats.hdf5.sink import Hdf5Sink
from recshuf.formats.lines.sink import LineSink
from recshuf.formats.parquet.sink import ParquetSink
from recshuf.piles.pile_set import GrowingPileSet, PileSet
from recshuf.piles.regions import FilledRegions
from recshuf.piles.slices import Slice
from recshuf.piles.store import Store
from recshuf.records.batch import Records
from recshuf.records.digests import Digest
from tests.support.numbered_files import make_inputs
from tests.support.processes.task_runs import divide_small
from tests.support.small_runs import change_plans, spill

if TYPE_CHECKING:
    from recshuf.system.buffers import Allocate

# These tests replace inner functions on purpose: a check is there for what no input brings about.


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Have the piles in memory or on disk."""
    if request.param == "disk":
        spill(monkeypatch)
    else:
        change_plans(monkeypatch, set_of_input=(0, 1))
    return str(request.param)


def run_and_fail(tmp_path: Path, name: str, match: str, **options: Any) -> None:
    """Run over two inputs and insist on the message, and that nothing is put in place or kept."""
    inputs = make_inputs(tmp_path / "in", name, [400, 300])
    with pytest.raises(CheckError, match=match):
        recshuf.shuffle(inputs, f"{tmp_path}/out/", **({"piles": 4, "shards": 3, "seed": 1} | options))
    assert not [left for left in os.listdir(tmp_path) if "out" in left]


def lose_one(records: Records) -> Records:
    return records.slice(1, len(records))


def double_one(records: Records) -> Records:
    return records.take(np.append(np.arange(len(records) - 1), 0))


@pytest.mark.parametrize(("name", "fault"), [("jsonl", double_one), ("parquet", lose_one)])
def test_what_grouping_by_pile_gets_wrong_is_found(
    tmp_path: Path, place: str, name: str, fault: Any, monkeypatch: pytest.MonkeyPatch
):
    class Faulty(Records):
        def take(self, index: Any) -> Records:
            return fault(Records(self.keys, self.batch).take(index))

        def slice(self, start: int, stop: int) -> Records:
            whole = Records(self.keys, self.batch).slice(start, stop)
            return Faulty(whole.keys, whole.batch)

    monkeypatch.setattr(key_makers, "Records", Faulty)
    if fault is lose_one:  # the bounds then no longer fit, and the last pile is short
        run_and_fail(tmp_path, name, r"scatter: pile set [01]: ")
    else:
        run_and_fail(tmp_path, name, r"scatter: pile set [01]: .*(not the same ones|bytes)")


@pytest.mark.parametrize("name", ["text", "hdf5"])
def test_a_slice_that_is_not_written_is_found(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    whole, calls = GrowingPileSet.write, iter(range(100))
    spill(monkeypatch)

    def write_less(
        self: GrowingPileSet, piles: Any, slices: Any, counts: Any, origin: Any, lengths: Any
    ) -> int:
        if next(calls) == 1:
            piles, slices, counts, lengths = piles[1:], slices[1:], counts[1:], lengths[:, 1:]
        return whole(self, piles, slices, counts, origin, lengths)

    monkeypatch.setattr(GrowingPileSet, "write", write_less)
    run_and_fail(tmp_path, name, r"set-\d+\.piles: region \d: 0 records spilled, \d+ given")


@pytest.mark.parametrize(("name", "change"), [("csv", 0), ("parquet", 2)])
def test_slices_that_come_back_more_or_less_often_are_found(
    tmp_path: Path, name: str, change: int, monkeypatch: pytest.MonkeyPatch
):
    whole = PileSet.read
    spill(monkeypatch)

    def read_wrong(self: PileSet, pile: int, memory: Allocate) -> list[Slice]:
        found = []
        for piece in whole(self, pile, memory):
            is_hit = pile == 2 and piece.origin.input_index == 1
            found += [piece] * (change if is_hit else 1)
        return found

    monkeypatch.setattr(PileSet, "read", read_wrong)
    run_and_fail(tmp_path, name, r"gather: pile 2 of pile set 1: \d+ records, \d+ given")


def test_records_that_get_lost_in_memory_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = Store.find
    monkeypatch.setattr(Store, "find", lambda self, pile: whole(self, pile)[:-1])
    run_and_fail(tmp_path, "jsonl", r"gather: pile \d of pile set [01]: \d+ records, \d+ given")


@pytest.mark.parametrize(("name", "workers"), [("text", 1), ("hdf5", 3)])
def test_what_ordering_gets_wrong_is_found(
    tmp_path: Path, place: str, name: str, workers: int, monkeypatch: pytest.MonkeyPatch
):
    whole = epochs.sort_by_words

    def sort_wrong(words: Any) -> Any:
        index = whole(words)
        index[0] = index[-1]
        return index

    monkeypatch.setattr(epochs, "sort_by_words", sort_wrong)
    run_and_fail(tmp_path, name, "gather: piles? .* read or ordered wrongly once", workers=workers)


@pytest.mark.parametrize(
    ("name", "sink", "head_count"),
    [("text", LineSink, None), ("csv", LineSink, 50), ("parquet", ParquetSink, 50), ("hdf5", Hdf5Sink, None)],
)
def test_records_that_a_shard_lacks_are_found(
    tmp_path: Path, name: str, sink: Any, head_count: int | None, monkeypatch: pytest.MonkeyPatch
):
    whole, calls = sink.write, iter(range(1000))
    monkeypatch.setattr(sink, "write", lambda self, batch: whole(self, batch.slice(next(calls) == 2)))
    match = r"gather: shard \d: \d+ records written, \d+ planned"
    run_and_fail(tmp_path, name, match, head_count=head_count)


def test_what_splitting_a_pile_gets_wrong_is_found(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
):
    change_plans(monkeypatch, pile_bytes=500)
    whole = FilledRegions._parts
    monkeypatch.setattr(
        FilledRegions, "_parts", lambda self, pile: (one for one in list(whole(self, pile))[:-1])
    )
    run_and_fail(tmp_path, "text", r"gather: pile \d")


@pytest.mark.parametrize("options", [{}, {"engine": "threads"}], ids=["alone", "tasks"])
def test_a_pile_on_the_border_of_two_shards_that_is_cut_wrong_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """One record comes twice and another one not at all, so that every shard has as many as it should."""
    if options:
        divide_small(monkeypatch)
    whole = gather._find_edges

    def find_edges(run: gather.GroupRange, bounds: Any) -> list[int]:
        edges = whole(run, bounds)
        return [edge - 1 for edge in edges] if edges[0] else edges

    monkeypatch.setattr(gather, "_find_edges", find_edges)
    match = r"gather: all shards: .*; run again, and report this as a fault"
    run_and_fail(tmp_path, "text", match, piles=32, shards=4, **options)


# Digests; see also `tests/records/test_digests.py`


def test_a_digest_tells_what_is_different():
    assert Digest(2, 10, 7).compare(Digest(3, 10, 9)) == "2 records, 3 given"
    assert Digest(2, 10, 7).compare(Digest(2, 11, 9)) == "10 bytes, 11 given"
    assert "not the same ones" in Digest(2, 10, 7).compare(Digest(2, 10, 9))
