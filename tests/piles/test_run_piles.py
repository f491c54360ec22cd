"""Pile sets and the store: nothing is lost on the way through memory, regions, extents and splits."""

from __future__ import annotations

import errno
import os
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from recshuf.errors import DiskFullError, OutputError, PileError
from recshuf.piles import pile_set as pile_sets
from recshuf.piles.codec import FlatCodec
from recshuf.piles.footer import SetDescription, SetSource
from recshuf.piles.layout import SPILL_COMPRESSIONS, StorePlan
from recshuf.piles.pile_set import GrowingPileSet
from recshuf.piles.regions import PileReader
from recshuf.piles.set_folder import Scratch
from recshuf.piles.slices import PREFIX_BYTES, Origin
from recshuf.piles.store import RunPiles
from recshuf.records.batch import Records
from recshuf.records.digests import Digest, InputCount
from recshuf.records.keys import sort_by_key
from tests.support.formats.format_tools import find_open_files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = pa.schema([pa.field("record", pa.large_binary(), nullable=False)])
UNLIMITED = 1 << 40
DESCRIPTION = SetDescription(5, (SetSource(0, "a\udcff", InputCount(10, Digest(1, 2, 2**64 - 1))),), (7, 8))


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Scratch]:
    scratch = Scratch(tmp_path, kept=tmp_path / "kept")
    yield scratch
    scratch.close()
    shutil.rmtree(tmp_path / "kept", ignore_errors=True)
    assert list(tmp_path.iterdir()) == []
    assert find_open_files(tmp_path) == []


def make_store(scratch: Scratch, **options: object) -> RunPiles:
    plan = StorePlan(**{"pile_count": 8, "set_sizes": (None,), "resident_bytes": 0} | options)
    return RunPiles(plan, FlatCodec(SCHEMA), scratch)


def fill(
    store: RunPiles, counts: list[int], *, sets: int = 1, seed: int = 0
) -> tuple[np.ndarray, list[bytes]]:
    """Add a batch of so many records for each count, and return all keys and records in order."""
    rng = np.random.default_rng(seed)
    all_keys, all_rows, first_row = [], [], 0
    for number, count in enumerate(counts):
        keys = rng.integers(0, 2**64, count, np.uint64)
        rows = [b"%d " % (first_row + k) + b"." * (k % 50) for k in range(count)]
        batch = pa.RecordBatch.from_arrays([pa.array(rows, pa.large_binary())], schema=SCHEMA)
        store.add(number % sets, Origin(0, first_row), Records(keys, batch))
        all_keys.append(keys)
        all_rows += rows
        first_row += count
    return np.concatenate(all_keys), all_rows


def load_rows(store: RunPiles | PileReader, piles: range | None = None) -> list[bytes]:
    """Return the records of runs of piles, each run sorted."""
    rows: list[bytes] = []
    reader = PileReader(store) if isinstance(store, RunPiles) else store
    for run in reader.runs():
        if piles is not None and (run.start < piles.start or run.start >= piles.stop):
            continue
        records = reader.load(run)
        if records is not None:
            assert len(records) == reader.counts[run.start : run.stop].sum()
            rows += records.batch.take(pa.array(sort_by_key(records.keys))).column(0).to_pylist()
    return rows


def seal_all(store: RunPiles) -> list[int]:
    """Seal every set that can be, and return their numbers."""
    return list(iter(store.seal_next, None))


def count_parts(store: RunPiles) -> int:
    """Return into how many places the slices of a region had to go at most."""
    (pile_set,) = store.spilled._sets.values()
    return max(len(pile_set._regions.parts(region)) for region in range(store.spilled.layout.count))


def sort_rows(keys: np.ndarray, rows: list[bytes]) -> list[bytes]:
    return [rows[place] for place in np.argsort(keys, kind="stable")]


SIZES = {"unknown": (None, None), "right": (500.0, 500.0), "low": (3.0, 0.0), "high": (50_000.0, 50_000.0)}


@pytest.mark.parametrize("compression", SPILL_COMPRESSIONS)
@pytest.mark.parametrize("expected", SIZES)
@pytest.mark.parametrize("resident_bytes", [0, 5_000, 30_000, UNLIMITED])
@pytest.mark.parametrize("region_piles", [1, 3, 8])
def test_everything_comes_back_in_order(
    scratch: Scratch, expected: str, resident_bytes: int, compression: str, region_piles: int
):
    store = make_store(
        scratch,
        set_sizes=SIZES[expected],
        resident_bytes=resident_bytes,
        compression=compression,
        region_piles=region_piles,
    )
    keys, rows = fill(store, [100, 1, 300, 7, 592], sets=2)
    assert load_rows(store) == sort_rows(keys, rows)
    store.close()


def test_piles_that_share_a_region_are_written_as_one_slice(scratch: Scratch):
    stores = [
        make_store(scratch, pile_count=60, region_piles=count, set_sizes=(6000,)) for count in (1, 6, 60)
    ]
    for store in stores:
        fill(store, [3000, 3000])
        assert count_parts(store) == 1
    saved = stores[0].spilled_bytes - stores[1].spilled_bytes
    # Two batches, 60 and 10 slices of each; what a slice has before its payload, and behind it up to 7 bytes.
    assert 2 * (60 - 10) * (PREFIX_BYTES - 7) < saved < 2 * (60 - 10) * (PREFIX_BYTES + 7)
    assert stores[2].spilled_bytes < stores[1].spilled_bytes
    for store in stores:
        store.close()


def test_regions_overflow_into_extents_again_and_again(scratch: Scratch):
    store = make_store(scratch, pile_count=2, set_sizes=(1.0,))
    keys, rows = fill(store, [2000] * 12)
    assert count_parts(store) >= 3
    assert load_rows(store) == sort_rows(keys, rows)
    reader = PileReader(store)
    assert sum(map(reader.run_bytes, reader.runs())) == pytest.approx(
        store.spilled_bytes, rel=0.01
    )  # and padding
    store.close()


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_compression_makes_the_files_smaller_and_no_other_number(scratch: Scratch, compression: str):
    plain, packed = (make_store(scratch, compression=name) for name in ("none", compression))
    for store in (plain, packed):
        fill(store, [1000] * 3)
    assert packed.spilled_bytes < 0.8 * plain.spilled_bytes
    readers = [PileReader(store) for store in (plain, packed)]
    assert [*map(readers[1].run_bytes, readers[1].runs())] == [*map(readers[0].run_bytes, readers[0].runs())]
    parts = [reader.split(range(1), 2) for reader in readers]
    assert parts[1]._store.spilled_bytes < 0.8 * parts[0]._store.spilled_bytes
    for store in (*parts, plain, packed):
        store.close()


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_what_cannot_be_compressed_is_stored_as_it_is(scratch: Scratch, compression: str):
    store = make_store(scratch, pile_count=1, compression=compression)
    noise = np.random.default_rng(1).bytes(3000)
    batch = pa.RecordBatch.from_arrays([pa.array([noise], pa.large_binary())], schema=SCHEMA)
    store.add(0, Origin(0, 0), Records(np.zeros(1, np.uint64), batch))
    assert store.spilled_bytes - 8 < PileReader(store).run_bytes(range(1)) <= store.spilled_bytes
    assert load_rows(store) == [noise]
    store.close()


def test_a_long_record_is_not_compressed(scratch: Scratch):
    """Memory is planned for few copies of such a record."""
    store = make_store(scratch, pile_count=1, compression="zstd")
    batch = pa.RecordBatch.from_arrays([pa.array([bytes(9 << 20)], pa.large_binary())], schema=SCHEMA)
    store.add(0, Origin(0, 0), Records(np.zeros(1, np.uint64), batch))
    assert store.spilled_bytes > 9 << 20
    assert load_rows(store) == [bytes(9 << 20)]
    store.close()


@pytest.mark.parametrize(("record_bytes", "in_turn"), [(100, True), (40_000, False)])
def test_only_short_slices_are_written_by_one_thread_at_a_time(
    scratch: Scratch, monkeypatch: pytest.MonkeyPatch, record_bytes: int, *, in_turn: bool
):
    """Long ones are, by any number of threads at once; short ones would have them wait for each other at each call."""
    seen = []

    def write(*args: Any) -> None:
        (pile_set,) = store.spilled._sets.values()
        seen.append(pile_set._turn.locked())
        given(*args)

    given = pile_sets._write_fully
    monkeypatch.setattr(pile_sets, "_write_fully", write)
    store = make_store(scratch)
    column = pa.array([bytes(record_bytes)] * 8, pa.large_binary())
    batch = pa.RecordBatch.from_arrays([column], schema=SCHEMA)
    store.add(0, Origin(0, 0), Records(np.arange(8, dtype=np.uint64) << np.uint64(61), batch))
    assert seen == [in_turn] * 8
    store.close()


@pytest.mark.parametrize("resident_bytes", [0, UNLIMITED])
@pytest.mark.parametrize("piles", [range(8), range(2, 5), range(3, 4)])
def test_piles_are_loaded_together(scratch: Scratch, resident_bytes: int, piles: range):
    store = make_store(scratch, resident_bytes=resident_bytes)
    fill(store, [100, 1, 300], sets=1)
    records = PileReader(store).load(piles)
    assert records is not None
    found = records.batch.take(pa.array(sort_by_key(records.keys))).column(0).to_pylist()
    assert found == load_rows(store, piles)
    store.close()


def test_records_of_a_pile_come_in_the_order_of_the_input(scratch: Scratch):
    """Slices are sorted, however threads wrote them: equal keys keep the order of their rows."""
    store = make_store(scratch, pile_count=1)
    for input_index, first_row in [(1, 0), (0, 7), (0, 0)]:
        batch = pa.RecordBatch.from_arrays(
            [pa.array([b"%d:%d" % (input_index, first_row)], pa.large_binary())], schema=SCHEMA
        )
        store.add(0, Origin(input_index, first_row), Records(np.zeros(1, np.uint64), batch))
    records = PileReader(store).load(range(1))
    assert records is not None
    assert records.batch.column(0).to_pylist() == [b"0:0", b"0:7", b"1:0"]
    store.close()


@pytest.mark.parametrize(("resident_bytes", "compression"), [(0, "none"), (0, "zstd"), (UNLIMITED, "none")])
@pytest.mark.parametrize("part_count", [2, 3, 1000])
def test_a_split_pile_holds_the_same_records(
    scratch: Scratch, resident_bytes: int, compression: str, part_count: int
):
    store = make_store(scratch, resident_bytes=resident_bytes, pile_count=3, compression=compression)
    fill(store, [400, 100])
    reader = PileReader(store)
    for pile in range(3):
        parts = reader.split(range(pile, pile + 1), part_count)
        assert parts.counts.sum() == reader.counts[pile]
        assert np.count_nonzero(parts.counts) > 1
        assert load_rows(parts) == load_rows(store, range(pile, pile + 1))
        parts.close()
    store.close()


@pytest.mark.parametrize("part_count", [2, 3, 1000])
def test_a_split_region_holds_the_records_of_its_piles(
    scratch: Scratch, part_count: int, monkeypatch: pytest.MonkeyPatch
):
    create, capacities = GrowingPileSet.create, []

    def create_noted(scratch: Scratch, room: np.ndarray, *options: Any, **named: Any) -> GrowingPileSet:
        capacities.append(room)
        return create(scratch, room, *options, **named)

    monkeypatch.setattr(GrowingPileSet, "create", create_noted)
    store = make_store(scratch, pile_count=11, region_piles=4)
    fill(store, [400, 100])
    reader = PileReader(store)
    for run in reader.runs():
        parts = reader.split(run, part_count)
        assert parts.counts.sum() == reader.counts[run.start : run.stop].sum() > 0
        assert np.count_nonzero(parts.counts) > 1
        assert load_rows(parts) == load_rows(store, run)
        assert capacities[-1].sum() > reader.run_bytes(run)
        parts.close()
    store.close()


@pytest.mark.parametrize("resident_bytes", [0, 2_000, 10_000, UNLIMITED])
@pytest.mark.parametrize("wanted", [0, 1, 50, 100, 700, 5000])
@pytest.mark.parametrize("region_piles", [1, 7])
def test_a_sample_keeps_the_records_of_the_smallest_keys(
    scratch: Scratch, resident_bytes: int, wanted: int, region_piles: int
):
    store = make_store(
        scratch,
        pile_count=50,
        resident_bytes=resident_bytes,
        output_count=wanted,
        region_piles=region_piles,
    )
    keys, rows = fill(store, [100] * 10)
    reached = int(np.searchsorted(np.cumsum(store.digests.counts), min(wanted, 1000)))
    assert load_rows(store, range(reached + 1))[:wanted] == sort_rows(keys, rows)[:wanted]
    store.close()


def test_a_small_sample_spills_little(scratch: Scratch):
    spilled = {}
    for wanted in (None, 100):
        store = make_store(scratch, pile_count=200, output_count=wanted)
        fill(store, [100] * 100)
        spilled[wanted] = store.spilled_bytes
        store.close()
    assert spilled[100] < spilled[None] / 5


@pytest.mark.parametrize(("piles", "count"), [(64, 200), (2000, 5)])
def test_memory_of_resident_piles_stays_within_its_limit(scratch: Scratch, piles: int, count: int):
    """Of many small batches, where each pile begins takes more than the records."""
    store = make_store(scratch, pile_count=piles, resident_bytes=40_000)
    for number in range(20):
        fill(store, [count], seed=number)
        held = sum(kept.records.byte_count + kept.bounds.nbytes for kept in store.resident.batches)
        assert store.resident._held_bytes == held <= 40_000
    assert store.resident.pile_count > 0
    store.close()


def test_piles_that_leave_memory_after_their_set_was_sealed_are_not_written_again(scratch: Scratch):
    store = make_store(scratch, set_sizes=(None, None), resident_bytes=20_000, keeps_sets=True)
    given = [fill(store, [500])]
    store.complete(0, store.digests.of_set(0).sum(), DESCRIPTION)
    assert seal_all(store) == [0]
    resident = store.resident.pile_count
    given.append(fill(store, [0, 500], sets=2, seed=1))
    assert 0 < store.resident.pile_count < resident
    keys = np.concatenate([keys for keys, _ in given])
    assert load_rows(store) == sort_rows(keys, [row for _, rows in given for row in rows])
    store.close()


def test_sets_are_sealed_once_when_complete_and_piles_have_left_memory(scratch: Scratch):
    store = make_store(scratch, set_sizes=(None,) * 4, resident_bytes=40_000, keeps_sets=True)
    fill(store, [100, 100], sets=2)
    for number in (0, 3):  # nothing was added to the last
        store.complete(number, store.digests.of_set(number).sum(), DESCRIPTION)
    assert seal_all(store) == []
    fill(store, [0, 0, 2000], sets=3)
    assert 0 < store.resident.pile_count < 8
    assert seal_all(store) == [0]
    store.complete(1, store.digests.of_set(1).sum(), DESCRIPTION)
    assert seal_all(store) == [1]
    assert seal_all(store) == []
    store.close()


def test_a_store_that_keeps_no_sets_seals_none(scratch: Scratch):
    store = make_store(scratch)
    fill(store, [100])
    store.complete(0, store.digests.of_set(0).sum(), DESCRIPTION)
    assert seal_all(store) == []
    store.close()


@pytest.mark.parametrize("resident_bytes", [0, 20_000])
def test_a_sealed_set_is_adopted_as_a_whole(scratch: Scratch, resident_bytes: int):
    """What memory holds of it, too; and nothing else."""
    options = {"set_sizes": (None, None), "keeps_sets": True}
    store = make_store(scratch, resident_bytes=resident_bytes, **options)
    keys, rows = fill(store, [1000])
    fill(store, [0, 300], sets=2, seed=1)
    digest = store.digests.of_set(0).sum()
    store.complete(0, digest, DESCRIPTION)
    sealed = store.seal_next()
    assert sealed is not None
    assert bool(resident_bytes) == bool(store.resident.pile_count)
    store.close()
    later = make_store(scratch, resident_bytes=UNLIMITED, **options)
    assert later.adopt(sealed) == DESCRIPTION
    assert PileReader(later).digest(range(8)) == digest
    assert load_rows(later) == sort_rows(keys, rows)
    later.close()


# Faults


def spill_to(scratch: Scratch, compression: str = "none") -> tuple[RunPiles, Path]:
    store = make_store(scratch, set_sizes=(500.0,), keeps_sets=True, compression=compression)
    fill(store, [500])
    (path,) = scratch.parent.rglob("*.piles")
    return store, path


@pytest.mark.parametrize("compression", SPILL_COMPRESSIONS)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_flipped_byte_of_a_record_is_found(scratch: Scratch, where: str, compression: str):
    store, path = spill_to(scratch, compression)
    content = bytearray(path.read_bytes())
    ((start, used),) = store.spilled._sets[0]._regions.parts(3)
    # Up to 7 bytes of padding follow the payload.
    place = {"first": start + PREFIX_BYTES, "middle": start + used // 2, "last": start + used - 8}[where]
    content[place] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(
        PileError,
        match=r"region 3 does not read back as it was written: .*; run again with another --temp-dir$",
    ):
        PileReader(store).load(range(3, 4))
    assert PileReader(store).load(range(2, 3)) is not None
    store.close()


@pytest.mark.parametrize("place", range(PREFIX_BYTES))
def test_a_flipped_byte_of_a_header_is_found(scratch: Scratch, place: int):
    store, path = spill_to(scratch)
    content = bytearray(path.read_bytes())
    ((start, _),) = store.spilled._sets[0]._regions.parts(3)
    content[start + place] ^= 0x01
    path.write_bytes(content)
    with pytest.raises(PileError, match="region 3"):
        PileReader(store).load(range(3, 4))
    store.close()


def test_a_truncated_file_is_found(scratch: Scratch):
    store, path = spill_to(scratch)
    os.truncate(path, 100)
    with pytest.raises(PileError, match="ends at byte"):
        PileReader(store).load(range(7, 8))
    store.close()


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EIO, OutputError)]
)
def test_a_full_disk_names_the_folder_and_the_option(
    scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[OutputError]
):
    def refuse(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "pwritev", refuse)
    store = make_store(scratch)
    with pytest.raises(kind, match="--temp-dir") as caught:
        fill(store, [10])
    assert str(tmp_path) in str(caught.value)
    store.close()


def test_short_writes_are_continued(scratch: Scratch, monkeypatch: pytest.MonkeyPatch):
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, place: whole(fd, [b"".join(buffers)[:11]], place))
    store = make_store(scratch)
    keys, rows = fill(store, [300])
    assert load_rows(store) == sort_rows(keys, rows)
    store.close()


def test_closing_a_store_keeps_the_files_that_have_a_name(scratch: Scratch, tmp_path: Path):
    store, path = spill_to(scratch)
    assert find_open_files(tmp_path) == [path]
    assert path.stat().st_mode & 0o077 == path.parent.stat().st_mode & 0o077 == 0
    store.close()
    store.close()
    assert find_open_files(tmp_path) == []
    assert path.exists()
    scratch.close()
    scratch.close()
    assert path.exists()


@pytest.mark.parametrize("nameless", [True, False])
def test_files_without_a_name_are_seen_by_nobody(
    scratch: Scratch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nameless: bool
):
    """Also on file systems that cannot create them at once."""
    if not nameless:
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY | os.O_CREAT)  # refused as invalid
    store = make_store(scratch)
    keys, rows = fill(store, [300])
    assert store.spilled_bytes > 0
    assert list(tmp_path.iterdir()) == []
    assert load_rows(store) == sort_rows(keys, rows)
    store.close()


def test_a_scratch_folder_that_cannot_be_made_names_the_option(tmp_path: Path):
    with pytest.raises(OutputError, match="--temp-dir"):
        Scratch(tmp_path / "missing").create()
