"""Scatter and gather over an in-memory format: the order is the oracle's, whatever a run decides by itself."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recshuf.run.scatter
from recshuf.errors import CheckError, InputError
from recshuf.piles.regions import PileReader
from recshuf.piles.set_folder import Scratch
from recshuf.records.batch_groups import group_inputs, whole_inputs
from recshuf.records.keys import draw_keys
from recshuf.run.gather import PileRun, iterate_runs, plan_tasks
from tests.support.effort import examples
from tests.support.formats.fake_format import (
    FakeFragment,
    FakeSink,
    FakeSource,
    FakeTarget,
    make_fixed_shape,
    make_lines_shape,
    make_mixed_shape,
    make_nested_shape,
    read_shard,
)
from tests.support.pass_tools import (
    UNLIMITED,
    Knobs,
    cut_evenly,
    fill_store,
    shuffle_rows,
    sort_rows,
    write_shards,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    import pyarrow as pa
    from numpy.typing import NDArray

SHAPES = {"lines": make_lines_shape(), "mixed": make_mixed_shape(), "nested": make_nested_shape()}
SPILLED = Knobs(resident_bytes=0)
SPLIT = Knobs(piles=2, pile_bytes=40, resident_bytes=0)
WAYS = {
    "resident": Knobs(),
    "joined": Knobs(piles=64, joined_bytes=700),
    "joined-evicted": Knobs(piles=64, joined_bytes=700, resident_bytes=3000),
    "one-pile": Knobs(piles=1),
    "spilled": SPILLED,
    "split-in-memory": Knobs(piles=2, pile_bytes=40),
    "split-on-disk": SPLIT,
    "evicted-midway": Knobs(piles=9, resident_bytes=3000),
    "many-piles": Knobs(piles=1000, resident_bytes=2000),
    "shared-regions": Knobs(piles=50, region_piles=8, resident_bytes=2000, sets=2),
    "shared-regions-split": Knobs(piles=50, region_piles=8, resident_bytes=0, pile_bytes=100),
    "one-region": Knobs(piles=7, region_piles=9, resident_bytes=0),
    "many-sets": Knobs(piles=5, sets=3, resident_bytes=0),
    "parallel": Knobs(piles=7, workers=4, shard_writers=3, resident_bytes=2500),
    "one-at-a-time": Knobs(piles=7, units_in_flight=1, pile_bytes=100, resident_bytes=1500),
}

knobs = st.builds(
    Knobs,
    piles=st.integers(1, 40) | st.sampled_from([255, 1000]),
    pile_bytes=st.sampled_from([1, 60, 500, UNLIMITED]),
    resident_bytes=st.sampled_from([0, UNLIMITED]) | st.integers(1, 4000),
    workers=st.integers(1, 4),
    shard_writers=st.integers(1, 3),
    units_in_flight=st.integers(1, 5),
    sets=st.integers(1, 3),
    region_piles=st.integers(1, 12),
    block_bytes=st.sampled_from([1, 50, 1 << 20]),
)
inputs = st.lists(st.lists(st.binary(max_size=40), max_size=60), min_size=1, max_size=4)


def number_rows(*counts: int) -> list[list[bytes]]:
    """Return inputs of so many records, each its own and of its own length."""
    return [[b"%d:%d " % (i, r) + b"x" * (r % 7) for r in range(count)] for i, count in enumerate(counts)]


def join(shards: Sequence[Sequence[bytes]]) -> list[bytes]:
    return [row for shard in shards for row in shard]


@settings(max_examples=examples(250), deadline=None)
@given(
    rows=inputs,
    seed=st.integers(0, 2**128 - 1),
    knobs=knobs,
    shape=st.sampled_from(sorted(SHAPES)),
    fragment_rows=st.integers(1, 60),
    batch_rows=st.integers(1, 30),
    counted=st.booleans(),
    estimate=st.sampled_from([0.1, 1.0, 6.0]),
    is_stream=st.booleans(),
    shards=st.integers(1, 5),
    head_count=st.none() | st.integers(0, 100),
    converts=st.booleans(),
)
def test_any_run_gives_the_order_of_the_oracle(
    rows,
    seed,
    knobs,
    shape,
    fragment_rows,
    batch_rows,
    counted,
    estimate,
    is_stream,
    shards,
    head_count,
    converts,
):
    source = FakeSource(
        rows,
        shape=SHAPES[shape],
        fragment_rows=fragment_rows,
        batch_rows=batch_rows,
        counted=counted,
        estimate=estimate,
        is_stream=is_stream,
    )
    found = shuffle_rows(source, seed, knobs, shards=shards, head_count=head_count, converts=converts)
    expected = sort_rows(rows, seed)[:head_count]
    bounds = cut_evenly(len(expected), shards)
    assert found == [expected[bounds[k] : bounds[k + 1]] for k in range(shards)]


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.lists(st.binary(min_size=5, max_size=5), max_size=50), min_size=1, max_size=3),
    knobs=knobs,
    seed=st.integers(0, 99),
)
def test_rows_of_fixed_width_give_the_order_of_the_oracle(rows, knobs, seed):
    source = FakeSource(rows, shape=make_fixed_shape(5), batch_rows=7, fragment_rows=20)
    assert join(shuffle_rows(source, seed, knobs)) == sort_rows(rows, seed)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "uncounted"])
def test_every_way_through_the_passes_gives_the_same_order(way: str, counted: bool):
    rows = number_rows(400, 1, 0, 133)
    source = FakeSource(rows, fragment_rows=50, batch_rows=9, counted=counted)
    found = join(shuffle_rows(source, 11, WAYS[way], shards=4))
    assert Counter(found) == Counter(join(rows))
    assert found == sort_rows(rows, 11)


@pytest.mark.parametrize("resident_bytes", [0, 4000, UNLIMITED])
def test_spilling_happens_exactly_where_it_must(tmp_path: Path, resident_bytes: int):
    source = FakeSource(number_rows(300), batch_rows=20)
    store, _ = fill_store(source, Scratch(tmp_path), Knobs(piles=8, resident_bytes=resident_bytes), 3)
    assert (store.spilled_bytes > 0) == (resident_bytes < UNLIMITED)
    reader = PileReader(store)
    assert reader.is_resident(0) == (resident_bytes > 0)
    assert not reader.is_resident(7) or resident_bytes == UNLIMITED
    store.close()


@pytest.mark.parametrize("resident_bytes", [0, 3000, UNLIMITED])
def test_piles_that_share_a_region_are_one_unit_and_those_in_memory_are_not(
    tmp_path: Path, resident_bytes: int
):
    source = FakeSource(number_rows(300), batch_rows=20)
    knobs = Knobs(piles=50, region_piles=8, resident_bytes=resident_bytes)
    store, _ = fill_store(source, Scratch(tmp_path), knobs, 3)
    reader = PileReader(store)
    runs = list(reader.runs())
    resident = sum(reader.is_resident(pile) for pile in range(50))
    assert resident == 50 or not resident % 8
    assert (resident == 0) == (not resident_bytes)
    assert runs[:resident] == [range(pile, pile + 1) for pile in range(resident)]
    assert runs[resident:] == [range(first, min(first + 8, 50)) for first in range(resident, 50, 8)]
    for first in range(51):
        found = list(reader.runs(first))
        assert [pile for run in found for pile in run if pile >= first] == list(range(first, 50))
        assert all(run.stop > first for run in found)
    units = list(iterate_runs(reader, 0, 300, 1 << 20, 0))
    assert [unit.piles for unit in units if isinstance(unit, PileRun)] == [
        run for run in runs if reader.counts[run.start : run.stop].any()
    ]
    store.close()


def test_a_small_pile_limit_splits_piles_again_and_again(tmp_path: Path):
    source = FakeSource(number_rows(300), batch_rows=20)
    store, _ = fill_store(source, Scratch(tmp_path), Knobs(piles=2, resident_bytes=0), 3)
    units = list(iterate_runs(PileReader(store), 0, 300, largest_bytes=200))
    whole = [unit for unit in units if not isinstance(unit, PileReader)]
    assert len(whole) > 30
    assert all(unit.byte_count <= 200 or unit.count == 1 for unit in whole)
    assert any(len(unit.piles) > 1 for unit in whole)
    assert [unit.first for unit in whole] == np.cumsum([0, *(unit.count for unit in whole)])[:-1].tolist()
    for part in units:
        if isinstance(part, PileReader):
            part.close()
    store.close()


@pytest.mark.parametrize("resident_bytes", [0, 4000, UNLIMITED])
@pytest.mark.parametrize("largest_bytes", [1, 700, 1 << 30])
def test_units_cover_every_record_once(tmp_path: Path, resident_bytes: int, largest_bytes: int):
    source = FakeSource(number_rows(300), batch_rows=20)
    store, _ = fill_store(source, Scratch(tmp_path), Knobs(piles=64, resident_bytes=resident_bytes), 3)
    units = list(iterate_runs(PileReader(store), 0, 300, largest_bytes, 1 << 20))
    whole = [unit for unit in units if isinstance(unit, PileRun)]
    loaded = [unit.store.load(unit.piles) for unit in whole]
    assert [len(records) for records in loaded if records is not None] == [unit.count for unit in whole]
    keys = np.concatenate([np.sort(records.keys) for records in loaded if records is not None])
    assert len(keys) == 300
    assert (np.diff(keys.astype(float)) >= 0).all()
    if largest_bytes > 700:
        assert len(whole) == (1 if resident_bytes in (0, UNLIMITED) else 2)
    for unit in units:
        if isinstance(unit, PileReader):
            unit.close()
    store.close()


# Ties


def draw_few(bits: int, place: int):
    """Return a draw whose keys differ in few bits only, which begin `place` bits from the top."""

    def draw(
        seed: int, ranges: Sequence[tuple[int, int, int]], stream: tuple[int, ...] = ()
    ) -> NDArray[np.uint64]:
        keys = draw_keys(seed, ranges, stream)
        return (keys >> np.uint64(64 - bits)) << np.uint64(64 - place - bits) if bits else keys * np.uint64(0)

    return draw


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("bits", "place"), [(0, 0), (1, 0), (3, 0), (3, 20), (2, 62), (6, 30)])
def test_equal_keys_are_ordered_by_input_and_row(
    monkeypatch: pytest.MonkeyPatch, way: str, bits: int, place: int
):
    draw = draw_few(bits, place)
    monkeypatch.setattr(recshuf.run.scatter, "draw_keys", draw)
    rows = number_rows(90, 30, 41)
    source = FakeSource(rows, fragment_rows=20, batch_rows=6)
    assert join(shuffle_rows(source, 5, WAYS[way], shards=3)) == sort_rows(rows, 5, draw)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("bits", [0, 2])
def test_equal_keys_of_small_inputs_that_are_read_together_are_ordered_too(
    monkeypatch: pytest.MonkeyPatch, way: str, bits: int
):
    draw = draw_few(bits, 0)
    monkeypatch.setattr(recshuf.run.scatter, "draw_keys", draw)
    rows = number_rows(*(k % 5 for k in range(150)), 90)
    source = FakeSource(rows, fragment_rows=2, batch_rows=1)
    together = [
        piece
        for run in group_inputs(source, whole_inputs(source), 1 << 20, WAYS[way].workers)
        for piece in run[1:]
    ]
    assert len(together) > 50
    assert join(shuffle_rows(source, 5, WAYS[way], shards=3)) == sort_rows(rows, 5, draw)


@pytest.mark.parametrize("resident_bytes", [0, 900, UNLIMITED])
def test_a_sample_among_equal_keys_takes_the_first_rows(monkeypatch: pytest.MonkeyPatch, resident_bytes: int):
    draw = draw_few(2, 0)
    monkeypatch.setattr(recshuf.run.scatter, "draw_keys", draw)
    rows = number_rows(90, 30)
    source = FakeSource(rows, fragment_rows=20, batch_rows=6)
    found = shuffle_rows(source, 5, Knobs(piles=8, resident_bytes=resident_bytes), head_count=40)
    assert join(found) == sort_rows(rows, 5, draw)[:40]


# Shards


def test_shards_do_not_have_regions_loaded_again_and_again(monkeypatch: pytest.MonkeyPatch):
    """Tasks are of a few regions each, however many piles there are in them."""
    load, loaded = PileReader.load_ordered, []
    monkeypatch.setattr(
        PileReader, "load_ordered", lambda reader, piles: loaded.append(piles) or load(reader, piles)
    )
    source = FakeSource(number_rows(300), batch_rows=20)
    shuffle_rows(source, 5, Knobs(piles=64, region_piles=16, resident_bytes=0, shard_writers=2), shards=20)
    assert 4 <= len(loaded) <= 6
    assert set(loaded) == {range(first, first + 16) for first in range(0, 64, 16)}


def test_empty_shards_are_written_too():
    source = FakeSource([[b"only"]])
    assert shuffle_rows(source, 1, Knobs(shard_writers=2), shards=3) == [[], [], [b"only"]]


@settings(max_examples=examples(200))
@given(
    count=st.integers(1, 30),
    finished=st.sets(st.integers(0, 30)),
    writers=st.integers(1, 9),
    piles=st.integers(0, 90),
)
def test_tasks_cover_every_shard_once(count: int, finished: set[int], writers: int, piles: int):
    tasks = plan_tasks(count, writers, piles, finished)
    assert [shard for task in tasks for shard in task] == [one for one in range(count) if one not in finished]
    assert all(tasks)


# Errors


class BrokenFragment(FakeFragment):
    """Fails instead of its last batch."""

    def batches(self) -> Iterator[pa.RecordBatch]:
        *most, _ = super().batches()
        yield from most
        raise InputError("input 1", "is broken", place="row 7")


class BrokenSource(FakeSource):
    """Has one broken fragment among many in input 1."""

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[FakeFragment]:
        for number, fragment in enumerate(super().fragments(input_index, block_bytes, max_record_bytes)):
            if (input_index, number) == (1, 3):
                fragment.__class__ = BrokenFragment
            yield fragment


class BrokenIterator(FakeSource):
    """Fails when the fourth fragment of input 1 is asked for."""

    def fragments(self, input_index: int, block_bytes: int, max_record_bytes: int) -> Iterator[FakeFragment]:
        for number, fragment in enumerate(super().fragments(input_index, block_bytes, max_record_bytes)):
            if (input_index, number) == (1, 3):
                raise InputError("input 1", "is broken", place="row 7")
            yield fragment


@pytest.mark.parametrize("kind", [BrokenSource, BrokenIterator])
@pytest.mark.parametrize("counted", [True, False], ids=["counted", "uncounted"])
def test_a_broken_input_ends_the_scatter_with_its_own_error(
    tmp_path: Path, kind: type[FakeSource], counted: bool, cores: int
):
    source = kind(number_rows(200, 200, 200), fragment_rows=10, batch_rows=5, counted=counted)
    before = threading.active_count()
    with pytest.raises(InputError, match="input 1: row 7: is broken"):
        fill_store(source, Scratch(tmp_path), Knobs(workers=cores, resident_bytes=0), 0)
    assert threading.active_count() == before


def test_a_fragment_that_breaks_its_promise_is_an_error(tmp_path: Path):
    class Liar(FakeSource):
        def fragments(self, *arguments: int) -> Iterator[FakeFragment]:
            for fragment in super().fragments(*arguments):
                fragment.record_count += 1
                yield fragment

    with pytest.raises(RuntimeError, match="yielded"):
        fill_store(Liar([[b"a", b"b"]]), Scratch(tmp_path), Knobs(), 0)


class BrokenSink(FakeSink):
    """Has no more space after the first batch."""

    def write(self, batch: pa.RecordBatch) -> None:
        if self._stream.tell() > 100:
            raise OSError(28, "No space left on device")
        super().write(batch)


def test_a_broken_sink_ends_the_gather_and_is_aborted(tmp_path: Path, cores: int):
    source = FakeSource(number_rows(300))
    knobs = Knobs(piles=20, workers=cores, shard_writers=cores)
    store, _ = fill_store(source, Scratch(tmp_path), knobs, 0)
    sinks: list[BrokenSink] = []

    def open_sink(shard: int) -> BrokenSink:
        sinks.append(BrokenSink((tmp_path / str(shard)).open("xb"), source.shape.unwrap, owned=True))
        return sinks[-1]

    before = threading.active_count()
    with pytest.raises(OSError, match="No space left"):
        write_shards(source, store, knobs, [0, 100, 200, 300], open_sink)
    assert threading.active_count() == before
    assert sinks
    assert all(sink._stream.closed for sink in sinks)


def test_a_pile_that_lost_records_is_an_error(tmp_path: Path):
    source = FakeSource(number_rows(100))
    store, _ = fill_store(source, Scratch(tmp_path), Knobs(), 0)
    store.digests.of_set(0).counts[1] += 1
    with pytest.raises(CheckError, match="gather: pile 1 of pile set 0: "):
        write_shards(
            source, store, Knobs(), [0, 101], lambda _: FakeTarget(source.shape).open(tmp_path / "0", 1)
        )


def test_a_decoder_sees_every_row_once_under_its_number(cores: int):
    rows = number_rows(70, 33)
    source = FakeSource(rows, fragment_rows=10, batch_rows=3, counted=False)
    shuffle_rows(source, 0, Knobs(workers=cores), converts=True)
    (decoder,) = source.decoders
    assert decoder.observed == {(i, r): row for i, part in enumerate(rows) for r, row in enumerate(part)}


def test_shards_are_complete_files(tmp_path: Path):
    source = FakeSource([[b"a", b"b", b"c"]])
    store, _ = fill_store(source, Scratch(tmp_path), Knobs(), 0)
    target = FakeTarget(source.shape)
    write_shards(source, store, Knobs(), [0, 2, 3], lambda shard: target.open(tmp_path / f"{shard}", 1))
    assert [len(read_shard(tmp_path / name)) for name in ("0", "1")] == [2, 1]
