"""The piles of a run, against a sorted list: nothing is lost on the way through memory, regions, extents and splits."""

import errno
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recshuf.errors import CheckError, DiskFullError, OutputError, PileError
from recshuf.piles.epochs import StoredOrder
from recshuf.piles.groups import Groups
from recshuf.piles.layout import SPILL_COMPRESSIONS, StorePlan
from recshuf.piles.regions import FilledRegions
from recshuf.piles.set_folder import SetFolder
from recshuf.piles.slices import PREFIX_BYTES, Origin, RecordCodec
from recshuf.piles.store import Store
from recshuf.records.batch import Records
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

Make = Callable[..., Store]

PLANS = st.fixed_dictionaries(
    {
        "pile_count": st.integers(1, 40),
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


def seal_new(store: Store, before: set[int]) -> set[int]:
    sealed = seal_all(store)
    assert not sealed & before
    return sealed


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
                sealed |= seal_new(store, sealed)
        sealed |= seal_new(store, sealed)
        has_spilled = store.resident_count < store.pile_count
        begun = {batch.origin.input_index for batch in filling.batches if len(batch.rows)}
        assert sealed == (begun - set(left) if has_spilled else set())
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


# What is on disk, and how much of it


@pytest.mark.parametrize(("piles", "count"), [(64, 200), (2000, 5)])
def test_memory_of_resident_piles_stays_within_its_limit(make: Make, piles: int, count: int) -> None:
    """Of many small batches, where each pile begins takes more than the records."""
    store = make(pile_count=piles, resident_bytes=40_000)
    for batch in Filling([count] * 20).batches:
        batch.add_to(store)
        assert sum(kept.records.byte_count + kept.bounds.nbytes for kept in store._batches) <= 40_000
    assert store.resident_count > 0


# Sealed sets


def test_what_was_sealed_is_not_written_again_when_more_piles_leave_memory(make: Make) -> None:
    store = make(set_sizes=(None, None), resident_bytes=40_000, set_prefix="set")
    filled = Filling([])
    for number, count in enumerate((2000, 4000)):
        (batch,), before = Filling([count], seed=count).batches, store.resident_count
        batch.origin = Origin(number, 0)
        filled.batches.append(batch)
        batch.add_to(store)
        assert 0 < store.resident_count < before
        store.complete(number, store.digests_of(number).sum(), describe(number))
        assert seal_all(store) == {number}
    assert read(store) == filled.sorted()


def test_a_set_of_other_columns_or_piles_is_not_adopted(make: Make, scratch: SetFolder) -> None:
    store = make(set_prefix="set")
    fill(store, 100)
    store.complete(0, store.digests_of(0).sum(), describe(0))
    assert seal_all(store) == {0}
    other = StorePlan(8, (None,), 0, set_prefix="set")
    for one in (
        make(pile_count=9, set_prefix="set"),
        Store(other, RecordCodec(pa.schema([pa.field("a", pa.binary(3), nullable=False)])), scratch),
    ):
        with pytest.raises(PileError, match="other columns or piles"):
            one.adopt(entry_of(0))
        one.close()


def test_few_long_records_of_tables_do_not_make_a_set_longer_than_most_of_its_space(
    scratch: SetFolder,
) -> None:
    """A store that is copied elsewhere loses its holes."""
    schema = pa.schema([("text", pa.string())])
    plan = StorePlan(8, (2000.0,), 0, set_prefix="set")
    with closing(Store(plan, RecordCodec(schema), scratch)) as store:
        texts = pa.array(["a" * (10**6 if row == 7 else 500) for row in range(2000)])
        keys = np.random.default_rng(1).integers(0, 2**64, len(texts), np.uint64)
        store.add(0, Origin(0, 0), Records(keys, pa.record_batch([texts], schema=schema)))
        store.complete(0, store.digests_of(0).sum(), describe(0))
        entry = store.seal_next()
    assert entry is not None
    assert entry.file_bytes < 4 * texts.nbytes


def test_sources_of_adopted_sets_are_counted_on(scratch: SetFolder) -> None:
    """As sets of a store, each of which counts its own from 0; equal keys are in the order of all, in finer piles, too."""
    plan = StorePlan(8, (None, None), 0, set_prefix="set")
    store, later = (Store(plan, RecordCodec(extend_schema(SCHEMA)), scratch) for _ in range(2))
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


def test_records_that_are_others_than_those_added_are_found(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all that load them: a key of what is unpacked is another one."""
    finish = RecordCodec._finish

    def finish_wrongly(codec: RecordCodec, keys: Any, columns: Any) -> Records:
        return finish(codec, np.append(keys[:-1], keys[-1] ^ np.uint64(1)), columns)

    monkeypatch.setattr(RecordCodec, "_finish", finish_wrongly)
    store = make(pile_count=2)
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


def test_damage_of_what_was_spilled_is_named_with_its_region(make: Make, tmp_path: Path) -> None:
    store = make(set_sizes=(500.0,), set_prefix="set")
    fill(store, 500)
    (path,) = tmp_path.rglob("*.piles")
    whole = path.read_bytes()
    ((start, used),) = store._sets[0]._regions.parts(3)
    for place in (
        0,
        PREFIX_BYTES - 1,
        used // 2,
    ):  # in the header of a slice, in its checksum, in the records
        content = bytearray(whole)
        content[start + place] ^= 1
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
