"""The piles of a run, against a sorted list: nothing is lost on the way through memory, regions, extents and splits."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import CheckError, PileError
from recshuf.piles.codec import FlatCodec
from recshuf.piles.epochs import StoredOrder
from recshuf.piles.groups import Groups
from recshuf.piles.layout import SPILL_COMPRESSIONS, StorePlan
from recshuf.piles.regions import FilledRegions
from recshuf.piles.set_folder import SetFolder
from recshuf.piles.slices import PREFIX_BYTES, Origin
from recshuf.piles.store import Store
from recshuf.records.batch import Records
from recshuf.records.digests import Digest
from tests.support.effort import examples
from tests.support.filled_piles import (
    INPUTS,
    SCHEMA,
    UNLIMITED,
    Batch,
    Filling,
    describe,
    fill,
    make_store,
    read,
    seal_all,
)

PLANS = st.fixed_dictionaries(
    {
        "pile_count": st.integers(1, 40),
        "region_piles": st.integers(1, 9),
        "resident_bytes": st.sampled_from([0, 1_000, 5_000, 30_000, UNLIMITED]),
        "compression": st.sampled_from(SPILL_COMPRESSIONS),
        "set_sizes": st.sampled_from([None, 300.0, 3.0, 0.0, 50_000.0]).map(lambda size: (size,) * INPUTS),
    }
)
FILLINGS = st.builds(
    Filling,
    st.lists(st.integers(0, 120), max_size=8),
    st.integers(1, INPUTS),
    st.sampled_from([0, 1, 3, 60]),
    st.integers(0, 2**32),
)


@settings(max_examples=examples(400))
@given(plan=PLANS, filling=FILLINGS, split=st.lists(st.sampled_from([0, 0, 2, 3, 11]), max_size=2))
def test_everything_comes_back_in_the_order_of_keys_inputs_and_rows(
    tmp_path_factory: pytest.TempPathFactory, plan: dict[str, Any], filling: Filling, split: list[int]
) -> None:
    with (
        closing(SetFolder(tmp_path_factory.getbasetemp())) as scratch,
        closing(make_store(scratch, **plan)) as store,
    ):
        for batch in filling.batches:
            batch.add_to(store)
        assert read(store, split=tuple(split)) == filling.sorted()


@settings(max_examples=examples(400))
@given(plan=PLANS, filling=FILLINGS, data=st.data())
def test_a_sample_has_the_records_of_the_smallest_keys(
    tmp_path_factory: pytest.TempPathFactory, plan: dict[str, Any], filling: Filling, data: st.DataObject
) -> None:
    expected = filling.sorted()
    wanted = data.draw(st.integers(0, len(expected) + 1))
    with (
        closing(SetFolder(tmp_path_factory.getbasetemp())) as scratch,
        closing(make_store(scratch, output_count=wanted, **plan)) as store,
    ):
        for batch in filling.batches:
            batch.add_to(store)
        assert read(store, wanted)[:wanted] == expected[:wanted]


@settings(max_examples=examples(400))
@given(plan=PLANS, filling=FILLINGS, data=st.data())
def test_a_run_that_goes_on_from_sealed_sets_has_what_an_undisturbed_one_has(
    tmp_path_factory: pytest.TempPathFactory, plan: dict[str, Any], filling: Filling, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("piles")
    plan |= {"set_prefix": "set"}
    sealed, left = set[int](), [batch.origin.input_index for batch in filling.batches]
    with closing(SetFolder(folder, kept=folder)) as scratch, closing(make_store(scratch, **plan)) as store:
        for batch in filling.batches[
            : len(left) if data.draw(st.booleans()) else data.draw(st.integers(0, len(left)))
        ]:
            batch.add_to(store)
            index = left.pop(0)
            if index not in left:
                store.complete(index, store.digests_of(index).sum(), describe(index))
            if data.draw(st.booleans()):
                sealed |= seal_all(store)
        sealed |= seal_all(store)
        if store.resident_count < store.pile_count:
            begun = {batch.origin.input_index for batch in filling.batches if len(batch.rows)}
            assert sealed == begun - set(left)
        if not left:
            assert read(store) == filling.sorted()
    with closing(SetFolder(folder, kept=folder)) as scratch, closing(make_store(scratch, **plan)) as store:
        for index in sealed:
            assert store.adopt(index) == describe(index)
        for batch in filling.batches:
            if batch.origin.input_index not in sealed:
                batch.add_to(store)
        assert read(store) == filling.sorted()
    shutil.rmtree(folder)


@pytest.mark.parametrize("resident_bytes", [0, 20_000])
def test_many_threads_fill_a_store(scratch: SetFolder, resident_bytes: int) -> None:
    store = make_store(scratch, pile_count=20, resident_bytes=resident_bytes)
    filling = Filling([50] * 40)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda batch: batch.add_to(store), filling.batches))
    assert read(store) == filling.sorted()
    store.close()


@pytest.mark.parametrize("resident_bytes", [0, UNLIMITED])
def test_piles_are_loaded_together(scratch: SetFolder, resident_bytes: int) -> None:
    store = make_store(scratch, resident_bytes=resident_bytes)
    expected = fill(store, 100, 1, 300, distinct=20)
    regions = FilledRegions(store)
    groups, counts = Groups(regions, StoredOrder()), regions.counts[0]
    for piles in (range(8), range(2, 5), range(3, 4), range(0)):
        before, count = int(counts[: piles.start].sum()), int(counts[piles.start : piles.stop].sum())
        joined = regions.load([(0, pile) for pile in piles])
        found = [] if joined is None else joined.batch.column(0).to_pylist()
        assert sorted(found) == sorted(expected[before : before + count])
        if count:
            ordered = groups.load(piles).batch.column(0).to_pylist()
            assert ordered == expected[before : before + count]
    store.close()


def test_only_wanted_columns_are_returned(scratch: SetFolder) -> None:
    schema = SCHEMA.append(pa.field("origin", pa.binary(1), nullable=False))
    store = Store(StorePlan(2, (None,), 1_000), FlatCodec(schema), scratch)
    batch = pa.record_batch(
        [pa.array([b"a"] * 90, pa.large_binary()), pa.array([b"b"] * 90, pa.binary(1))], schema
    )
    store.add(0, Origin(0, 0), Records(np.arange(90, dtype=np.uint64) << np.uint64(57), batch))
    for pile in range(2):
        records = Groups(FilledRegions(store), StoredOrder(), column_count=1).load([pile])
        assert records.batch.schema == SCHEMA
    store.close()


# What is on disk, and how much of it


def test_regions_overflow_into_extents_again_and_again(scratch: SetFolder) -> None:
    store = make_store(scratch, pile_count=2, set_sizes=(1.0,))
    expected = fill(store, *[2000, 300, 40] * 8)
    (pile_set,) = store._sets.values()
    assert max(len(pile_set._regions.parts(region)) for region in range(2)) >= 3
    assert read(store) == expected
    assert FilledRegions(store).byte_counts.sum() == pytest.approx(store.spilled_bytes, rel=0.01)
    store.close()


def test_piles_that_share_a_region_are_written_as_one_slice(scratch: SetFolder) -> None:
    spilled = []
    for count in (1, 6, 60):
        store = make_store(scratch, pile_count=60, region_piles=count, set_sizes=(6000,))
        fill(store, 3000, 3000)
        spilled.append(store.spilled_bytes)
        store.close()
    # Two batches, 60 and 10 slices of each; what a slice has before its payload, and behind it up to 7 bytes.
    assert 2 * (60 - 10) * (PREFIX_BYTES - 7) < spilled[0] - spilled[1] < 2 * (60 - 10) * (PREFIX_BYTES + 7)
    assert spilled[2] < spilled[1]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression_makes_the_files_smaller_and_no_other_number(
    scratch: SetFolder, compression: str
) -> None:
    plain, packed = (make_store(scratch, compression=name) for name in ("none", compression))
    for store in (plain, packed):
        fill(store, 1000, 1000)
    assert packed.spilled_bytes < 0.8 * plain.spilled_bytes
    assert (FilledRegions(plain).byte_counts == FilledRegions(packed).byte_counts).all()
    for store in (plain, packed):
        store.close()


@pytest.mark.parametrize(
    "record", [np.random.default_rng(1).bytes(3000), bytes(9 << 20)], ids=["noise", "too long"]
)
def test_what_is_not_to_be_compressed_is_stored_as_it_is(scratch: SetFolder, record: bytes) -> None:
    """Memory is planned for few copies of a long record."""
    store = make_store(scratch, pile_count=1, compression="zstd")
    Batch(Origin(0, 0), np.zeros(1, np.uint64), [record]).add_to(store)
    assert len(record) < FilledRegions(store).byte_counts.sum() <= store.spilled_bytes < len(record) + 100
    assert read(store) == [record]
    store.close()


def test_a_small_sample_spills_little(scratch: SetFolder) -> None:
    spilled = {}
    for wanted in (None, 100):
        store = make_store(scratch, pile_count=200, output_count=wanted)
        fill(store, *[100] * 100)
        spilled[wanted] = store.spilled_bytes
        store.close()
    assert spilled[100] < spilled[None] / 5


@pytest.mark.parametrize(("piles", "count"), [(64, 200), (2000, 5)])
def test_memory_of_resident_piles_stays_within_its_limit(scratch: SetFolder, piles: int, count: int) -> None:
    """Of many small batches, where each pile begins takes more than the records."""
    store = make_store(scratch, pile_count=piles, resident_bytes=40_000)
    for batch in Filling([count] * 20).batches:
        batch.add_to(store)
        assert sum(kept.records.byte_count + kept.bounds.nbytes for kept in store._batches) <= 40_000
    assert store.resident_count > 0
    store.close()


# Sealed sets


def test_sets_are_sealed_once_when_complete_and_piles_have_left_memory(scratch: SetFolder) -> None:
    store = make_store(scratch, set_sizes=(None,) * 3, resident_bytes=40_000, set_prefix="set")
    first, last = (Filling([count], seed=count).batches[0] for count in (200, 2000))
    first.add_to(store)
    for number in (0, 2):  # nothing was added to the last
        store.complete(number, store.digests_of(number).sum(), describe(number))
    assert seal_all(store) == set()
    last.origin = Origin(1, 0)
    last.add_to(store)
    assert 0 < store.resident_count < 8
    assert seal_all(store) == {0}
    store.complete(1, store.digests_of(1).sum(), describe(1))
    assert seal_all(store) == {1}
    store.close()


def test_a_store_that_keeps_no_sets_seals_none(scratch: SetFolder) -> None:
    store = make_store(scratch)
    fill(store, 100)
    store.complete(0, store.digests_of(0).sum(), describe(0))
    assert seal_all(store) == set()
    store.close()


@pytest.mark.parametrize("syncs_sets", [False, True])
def test_sets_are_synced_whole_where_that_is_planned(
    scratch: SetFolder, monkeypatch: pytest.MonkeyPatch, syncs_sets: bool
) -> None:
    synced: list[tuple[int, int]] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append((os.fstat(file).st_ino, os.fstat(file).st_size))
    )
    store = make_store(scratch, set_prefix="set", syncs_sets=syncs_sets)
    fill(store, 100)
    store.complete(0, store.digests_of(0).sum(), describe(0))
    assert seal_all(store) == {0}
    found = (scratch.parent / "kept" / "set-00000.piles").stat()
    assert ((found.st_ino, found.st_size) in synced) == syncs_sets
    store.close()


def test_a_set_that_lacks_a_record_is_not_complete(scratch: SetFolder) -> None:
    store = make_store(scratch, set_sizes=(None, None), set_prefix="set")
    fill(store, 100)
    given = store.digests_of(0).sum()
    with pytest.raises(CheckError, match="pile set 0: 100 records, 101 given"):
        store.complete(0, given + Digest(1, 0, 0), describe(0))
    assert seal_all(store) == set()
    store.close()


def test_a_set_of_other_columns_or_piles_is_not_adopted(scratch: SetFolder) -> None:
    store = make_store(scratch, set_prefix="set")
    fill(store, 100)
    store.complete(0, store.digests_of(0).sum(), describe(0))
    assert seal_all(store) == {0}
    other = StorePlan(8, (None,), 0, set_prefix="set")
    for one in (
        make_store(scratch, pile_count=9, set_prefix="set"),
        Store(other, FlatCodec(pa.schema([pa.field("a", pa.binary(3), nullable=False)])), scratch),
    ):
        with pytest.raises(PileError, match="other columns or piles"):
            one.adopt(0)
        one.close()
    store.close()
