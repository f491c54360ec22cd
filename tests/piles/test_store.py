"""The piles of a run, against a sorted list: nothing is lost on the way through memory, regions, extents and splits."""

from __future__ import annotations

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import CheckError, DiskFullError, OutputError, PileError
from recshuf.piles.codec import FlatCodec
from recshuf.piles.epochs import StoredOrder
from recshuf.piles.groups import Groups
from recshuf.piles.layout import SPILL_COMPRESSIONS, StorePlan
from recshuf.piles.pile_set import RegionLayout
from recshuf.piles.regions import FilledRegions
from recshuf.piles.set_folder import SetFolder
from recshuf.piles.slices import PREFIX_BYTES, Origin
from recshuf.piles.store import Store
from recshuf.records.batch import Records
from recshuf.records.digests import Digest
from recshuf.records.keys import RowRange
from recshuf.records.provenance import add_provenance, extend_schema
from tests.support.effort import examples
from tests.support.filled_piles import (
    INPUTS,
    SCHEMA,
    UNLIMITED,
    Batch,
    Filling,
    describe,
    entry_of,
    fill,
    make_store,
    read,
    seal_all,
)
from tests.support.formats.format_tools import find_open_files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Make = Callable[..., Store]

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


@settings(max_examples=examples(160))
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


@settings(max_examples=examples(160))
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


@settings(max_examples=examples(160))
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
            store.adopt(entry_of(index))
        assert store.sources == {index: describe(index).sources[0].count for index in sealed}
        for batch in filling.batches:
            if batch.origin.input_index not in sealed:
                batch.add_to(store)
        assert read(store) == filling.sorted()
    shutil.rmtree(folder)


@pytest.mark.parametrize("resident_bytes", [0, 20_000])
def test_many_threads_fill_a_store(make: Make, resident_bytes: int) -> None:
    store = make(pile_count=20, resident_bytes=resident_bytes)
    filling = Filling([50] * 40)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda batch: batch.add_to(store), filling.batches))
    assert read(store) == filling.sorted()


@pytest.mark.parametrize("resident_bytes", [0, UNLIMITED])
def test_piles_are_loaded_together(make: Make, resident_bytes: int) -> None:
    store = make(resident_bytes=resident_bytes)
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


def test_regions_overflow_into_extents_again_and_again(make: Make) -> None:
    store = make(pile_count=2, set_sizes=(1.0,))
    expected = fill(store, *[2000, 300, 40] * 8)
    (pile_set,) = store._sets.values()
    assert max(len(pile_set._regions.parts(region)) for region in range(2)) >= 3
    assert read(store) == expected
    assert FilledRegions(store).byte_counts.sum() == pytest.approx(store.spilled_bytes, rel=0.01)


def test_piles_that_share_a_region_are_written_as_one_slice(make: Make) -> None:
    spilled = []
    for count in (1, 6, 60):
        store = make(pile_count=60, region_piles=count, set_sizes=(6000,))
        fill(store, 3000, 3000)
        spilled.append(store.spilled_bytes)
        store.close()
    # Two batches, 60 and 10 slices of each; what a slice has before its payload, and behind it up to 7 bytes.
    assert 2 * (60 - 10) * (PREFIX_BYTES - 7) < spilled[0] - spilled[1] < 2 * (60 - 10) * (PREFIX_BYTES + 7)
    assert spilled[2] < spilled[1]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression_makes_the_files_smaller_and_no_other_number(make: Make, compression: str) -> None:
    plain, packed = (make(compression=name) for name in ("none", compression))
    for store in (plain, packed):
        fill(store, 1000, 1000)
    assert packed.spilled_bytes < 0.8 * plain.spilled_bytes
    assert (FilledRegions(plain).byte_counts == FilledRegions(packed).byte_counts).all()


@pytest.mark.parametrize(
    "record", [np.random.default_rng(1).bytes(3000), bytes(9 << 20)], ids=["noise", "too long"]
)
def test_what_is_not_to_be_compressed_is_stored_as_it_is(make: Make, record: bytes) -> None:
    """Memory is planned for few copies of a long record."""
    store = make(pile_count=1, compression="zstd")
    Batch(Origin(0, 0), np.zeros(1, np.uint64), [record]).add_to(store)
    assert len(record) < FilledRegions(store).byte_counts.sum() <= store.spilled_bytes < len(record) + 100
    assert read(store) == [record]


def test_a_small_sample_spills_little(make: Make) -> None:
    spilled = {}
    for wanted in (None, 100):
        store = make(pile_count=200, output_count=wanted)
        fill(store, *[100] * 100)
        spilled[wanted] = store.spilled_bytes
        store.close()
    assert spilled[100] < spilled[None] / 5


@pytest.mark.parametrize(("piles", "count"), [(64, 200), (2000, 5)])
def test_memory_of_resident_piles_stays_within_its_limit(make: Make, piles: int, count: int) -> None:
    """Of many small batches, where each pile begins takes more than the records."""
    store = make(pile_count=piles, resident_bytes=40_000)
    for batch in Filling([count] * 20).batches:
        batch.add_to(store)
        assert sum(kept.records.byte_count + kept.bounds.nbytes for kept in store._batches) <= 40_000
    assert store.resident_count > 0


# Sealed sets


def test_sets_are_sealed_once_when_complete_and_piles_have_left_memory(make: Make) -> None:
    store = make(set_sizes=(None,) * 4, resident_bytes=40_000, set_prefix="set")
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
    later, kept = Filling([4000], seed=3).batches[0], store.resident_count
    later.origin = Origin(3, 0)
    later.add_to(store)
    assert store.resident_count < kept
    filled = Filling([])
    filled.batches = [first, last, later]
    assert read(store) == filled.sorted(), "what was sealed is not written again"


def test_a_store_that_keeps_no_sets_seals_none(make: Make) -> None:
    store = make()
    fill(store, 100)
    store.complete(0, store.digests_of(0).sum(), describe(0))
    assert seal_all(store) == set()


@pytest.mark.parametrize("syncs_sets", [False, True])
def test_sets_are_synced_whole_where_that_is_planned(
    make: Make, scratch: SetFolder, monkeypatch: pytest.MonkeyPatch, syncs_sets: bool
) -> None:
    synced: list[tuple[int, int]] = []
    monkeypatch.setattr(
        os, "fsync", lambda file: synced.append((os.fstat(file).st_ino, os.fstat(file).st_size))
    )
    store = make(set_prefix="set", syncs_sets=syncs_sets)
    fill(store, 100)
    store.complete(0, store.digests_of(0).sum(), describe(0))
    assert seal_all(store) == {0}
    found = (scratch.parent / "kept" / "set-00000.piles").stat()
    assert ((found.st_ino, found.st_size) in synced) == syncs_sets


def test_a_set_that_lacks_a_record_is_not_complete(make: Make) -> None:
    store = make(set_sizes=(None, None), set_prefix="set")
    fill(store, 100)
    given = store.digests_of(0).sum()
    with pytest.raises(CheckError, match="pile set 0: 100 records, 101 given"):
        store.complete(0, given + Digest(1, 0, 0), describe(0))
    assert seal_all(store) == set()


def test_a_set_of_other_columns_or_piles_is_not_adopted(make: Make, scratch: SetFolder) -> None:
    store = make(set_prefix="set")
    fill(store, 100)
    store.complete(0, store.digests_of(0).sum(), describe(0))
    assert seal_all(store) == {0}
    other = StorePlan(8, (None,), 0, set_prefix="set")
    for one in (
        make(pile_count=9, set_prefix="set"),
        Store(other, FlatCodec(pa.schema([pa.field("a", pa.binary(3), nullable=False)])), scratch),
    ):
        with pytest.raises(PileError, match="other columns or piles"):
            one.adopt(entry_of(0))
        one.close()


def test_sources_of_adopted_sets_are_counted_on(scratch: SetFolder) -> None:
    """As sets of a store, each of which counts its own from 0; equal keys are in the order of all, in finer piles, too."""
    plan = StorePlan(8, (None, None), 0, set_prefix="set")
    store, later = (Store(plan, FlatCodec(extend_schema(SCHEMA)), scratch) for _ in range(2))
    keys = Filling([200], distinct=3).batches[0].keys
    batches = []
    for number, name in enumerate((b"last %d", b"first %d")):
        batch = Batch(Origin(0, 0), keys, [name % row for row in range(200)])
        records = pa.record_batch([pa.array(batch.rows, pa.large_binary())], schema=SCHEMA)
        store.add(number, batch.origin, Records(keys, add_provenance(records, [RowRange(0, 0, 200)])))
        store.complete(number, store.digests_of(number).sum(), describe(0))
        batches.append(replace(batch, origin=Origin(1 - number, 0)))
    assert seal_all(store) == {0, 1}
    for number in range(2):
        later.adopt(replace(entry_of(number), base=1 - number))
    filled = Filling([])
    filled.batches = batches
    assert read(later) == read(later, split=(3,)) == filled.sorted()
    store.close()
    later.close()


# Disks that are full, short writes, flipped bits


class FaultyCodec(FlatCodec):
    """Changes a key of what it unpacks."""

    def unpack(self, slices: Any) -> Records:
        """Return other records."""
        return self._change(super().unpack(slices))

    def unpack_ordered(self, slices: Any, *order: Any) -> Records:
        """Return other records."""
        return self._change(super().unpack_ordered(slices, *order))

    @staticmethod
    def _change(records: Records) -> Records:
        keys = records.keys.copy()
        keys[0] ^= np.uint64(1)
        return Records(keys, records.batch)


def test_records_that_are_others_than_those_added_are_found(scratch: SetFolder) -> None:
    store = Store(StorePlan(2, (None,) * INPUTS, 0), FaultyCodec(SCHEMA), scratch)
    fill(store, 100)
    regions = FilledRegions(store, " of this")
    groups, cells = Groups(regions, StoredOrder()), [(0, 1)]
    fault = "gather: pile 1 of this of pile set 0: .* records as given, but not the same ones"
    for load in (
        lambda: regions.load(cells),
        lambda: groups.load([1]),
        lambda: groups.load_parts([1], [0, 5]),
        lambda: regions.split(1, 2),
    ):
        with pytest.raises(CheckError, match=fault):
            load()
    store.close()


def spill_to(scratch: SetFolder, compression: str = "none") -> tuple[Store, Path]:
    store = make_store(scratch, set_sizes=(500.0,), set_prefix="set", compression=compression)
    fill(store, 500)
    (path,) = scratch.parent.rglob("*.piles")
    return store, path


@pytest.mark.parametrize("compression", SPILL_COMPRESSIONS)
def test_a_flipped_bit_is_found_wherever_it_is(scratch: SetFolder, compression: str) -> None:
    """In the header of a slice, in its checksum, and in the records."""
    store, path = spill_to(scratch, compression)
    whole = path.read_bytes()
    ((start, used),) = store._sets[0]._regions.parts(3)
    # Up to 7 bytes of padding follow the payload.
    for place in (*range(PREFIX_BYTES), PREFIX_BYTES, used // 2, used - 8):
        content = bytearray(whole)
        content[start + place] ^= 1 << place % 8
        path.write_bytes(content)
        with pytest.raises(
            PileError,
            match=r"region 3 does not read back as it was written: .*; run again with another --temp-dir$",
        ):
            FilledRegions(store).load([(0, 3)])
        assert FilledRegions(store).load([(0, 2)]) is not None
    os.truncate(path, start + used - 8)
    with pytest.raises(PileError, match="ends at byte"):
        FilledRegions(store).load([(0, 3)])
    store.close()


def test_a_damaged_set_is_not_adopted_and_one_that_is_whole_again_is(make: Make, scratch: SetFolder) -> None:
    """Wherever the damage is: in records that are read later only, or in what ends the file."""
    store, path = spill_to(scratch)
    store.complete(0, store.digests_of(0).sum(), describe(0))
    assert seal_all(store) == {0}
    ((start, _),) = store._sets[0]._regions.parts(6)
    store.close()
    whole = path.read_bytes()
    for place in (start + PREFIX_BYTES, *range(len(whole) - 400, len(whole), 7)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        path.write_bytes(changed)
        later = make(set_sizes=(500.0,), set_prefix="set")
        with pytest.raises(PileError, match=path.name):
            later.adopt(entry_of(0))
        later.close()
    for content in (whole[:-1], whole[:100], b""):
        path.write_bytes(content)
        with pytest.raises(PileError, match=path.name):
            make(set_sizes=(500.0,), set_prefix="set").adopt(entry_of(0))
    path.write_bytes(whole)
    later = make(set_sizes=(500.0,), set_prefix="set")
    later.adopt(entry_of(0))
    assert later.sources == describe(0).counts
    later.close()


@pytest.mark.parametrize(("code", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EIO, OutputError)])
def test_a_full_disk_names_the_folder_and_the_option(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[OutputError]
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwritev", refuse)
    store = make()
    with pytest.raises(kind, match=rf"{tmp_path}.*--temp-dir"):
        fill(store, 10)


def test_short_writes_are_continued(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, place: whole(fd, [b"".join(buffers)[:11]], place))
    store = make()
    expected = fill(store, 300)
    assert read(store) == expected


def test_closing_a_store_keeps_the_files_that_have_a_name(scratch: SetFolder, tmp_path: Path) -> None:
    store, path = spill_to(scratch)
    assert find_open_files(tmp_path) == [path]
    assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    store.close()
    store.close()
    assert find_open_files(tmp_path) == []
    scratch.close()
    scratch.close()
    assert path.exists()


@pytest.mark.parametrize("nameless", [True, False])
def test_files_without_a_name_are_seen_by_nobody(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool
) -> None:
    """Also on file systems that cannot create them at once."""
    if not nameless:
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_CREAT)  # refused as invalid
    store = make()
    expected = fill(store, 300)
    assert store.spilled_bytes > 0
    assert list(tmp_path.iterdir()) == []
    assert read(store) == expected


def test_a_scratch_folder_that_cannot_be_made_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="--temp-dir"):
        SetFolder(tmp_path / "missing").create()


# Which piles share a region

COUNTS = st.lists(st.integers(0, 9), min_size=1, max_size=40)


@settings(max_examples=examples(100))
@given(numbers=COUNTS, region_piles=st.integers(1, 50), data=st.data())
def test_a_layout_is_that_of_a_list_cut_into_parts(
    numbers: list[int], region_piles: int, data: st.DataObject
):
    layout = RegionLayout(len(numbers), region_piles)
    piles = list(range(len(numbers)))
    parts = [piles[start : start + region_piles] for start in range(0, len(piles), region_piles)]
    assert layout.count == len(parts)
    assert [list(layout.piles(region)) for region in range(layout.count)] == parts
    assert layout.sum(np.array(numbers)).tolist() == [sum(numbers[pile] for pile in part) for part in parts]
    start = data.draw(st.integers(0, len(numbers)))
    stop = data.draw(st.integers(start, len(numbers)))
    touched = [number for number, part in enumerate(parts) if {*part} & {*range(start, stop)}]
    assert list(layout.find(range(start, stop))) == touched
    whole = [part for part in parts if part[-1] < stop]
    if stop < len(numbers):
        assert layout.round_down(stop) == sum(map(len, whole))
    assert layout.round_up(stop) == sum(map(len, parts[: layout.find(range(stop)).stop]))


@settings(max_examples=examples(100))
@given(numbers=COUNTS, region_piles=st.integers(1, 50), data=st.data())
def test_grouped_records_are_cut_at_the_ends_of_regions(
    numbers: list[int], region_piles: int, data: st.DataObject
):
    layout = RegionLayout(len(numbers), region_piles)
    first = data.draw(st.integers(0, layout.count - 1))
    last = data.draw(st.integers(first, layout.count - 1))
    piles = range(layout.piles(first).start, layout.piles(last).stop)
    bounds = np.cumsum([0, *numbers])
    cut = layout.cut(bounds, piles).tolist()
    wanted = [sum(numbers[pile] for pile in layout.piles(region)) for region in range(first, last + 1)]
    assert cut[0] == sum(numbers[: piles.start])
    assert np.diff(cut).tolist() == wanted
