"""A compaction joins sets: records, order, sources and names stay, and nothing expires that is too new."""

import math
import tempfile
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import recshuf
from recshuf.errors import OutputError, UsedNameError
from recshuf.piles.kept.stored import StoredPiles
from recshuf.piles.kept.upkeep import describe_store, verify_store
from tests.support.effort import examples, mostly_slow
from tests.support.stores.small_stores import (
    append,
    expire,
    list_sets,
    load_all,
    read_ids,
    read_records,
    write,
)

ROWS = {"id": range(20)}


def test_the_parts_of_an_input_in_several_sets_count_together(tmp_path: Path) -> None:
    store = tmp_path / "store"
    (tmp_path / "in.txt").write_bytes(b"".join(b"%0100d\n" % row for row in range(40_000)))
    recshuf.scatter(tmp_path / "in.txt", store, piles=2, seed=1)
    recshuf.gather(store, tmp_path / "before.txt")
    assert len(list_sets(store)) > 2
    assert recshuf.compact(store, sets=1).num_records == 40_000
    about = describe_store(store)
    assert ([one["records"] for one in about["sets"]], len(about["sources"])) == ([40_000], 1)
    recshuf.gather(store, tmp_path / "after.txt")
    assert (tmp_path / "after.txt").read_bytes() == (tmp_path / "before.txt").read_bytes()


@settings(max_examples=examples(80))
@given(
    slices=st.lists(st.tuples(st.none() | st.integers(-3, 6), st.integers(1, 4)), min_size=1, max_size=6),
    most=st.integers(1, 4),
    limit=st.integers(-3, 7),
)
@example(slices=[(1, 2), (3, 1)], most=1, limit=3)
def test_sets_are_joined_in_the_order_of_time_and_get_the_latest_of_their_times(
    slices: list[tuple[int | None, int]], most: int, limit: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        write(store, "first", {"id": [-1], "text": [""]})
        expire(store, records=0)
        for number, (time, count) in enumerate(slices):
            data = {"id": np.arange(count) + 10 * number, "text": ["ü" * row for row in range(count)]}
            if time is None:  # a writer gives none
                write(store, f"slice-{number}", data)
            else:
                append(store, data, time=time, name=f"slice-{number}")
        before = read_ids(store), read_records(store)
        recshuf.compact(store, sets=most)
        assert (read_ids(store), read_records(store)) == before
        assert verify_store(store, lambda *_: None) == len(before[0])
        sets = describe_store(store)["sets"]
        assert len(sets) <= most
        ages = [-math.inf if time is None else time for time, _ in slices]
        if len(slices) > most:
            counts = [count for _, count in slices]
            assert all(one["records"] < -(-sum(counts) // most) + max(counts) for one in sets)
            by_age = sorted(range(len(slices)), key=lambda number: (ages[number], number))
            rows = [ages[number] for number in by_age for _ in range(slices[number][1])]
            ends = accumulate((one["records"] for one in sets), initial=0)
            assert [one["time"] for one in sets] == [
                None if max(rows[begin:end]) == -math.inf else max(rows[begin:end])
                for begin, end in pairwise(ends)
            ]
        expire(store, before=limit)
        left = set(read_ids(store)) if recshuf.PileStore(store).num_records else set()
    assert left >= {
        10 * number + row
        for number, (_, count) in enumerate(slices)
        for row in range(count)
        if ages[number] >= limit
    }


def test_the_bytes_of_a_store_and_its_sources_stay(tmp_path: Path) -> None:
    for number, count in enumerate((0, 2, 1, 3, 2)):
        (tmp_path / f"{number}.jsonl").write_text(
            "".join(f'{{"id": {10 * number + row}}}\n' for row in range(count))
        )
    paths, store = [tmp_path / f"{number}.jsonl" for number in range(5)], tmp_path / "store"
    recshuf.scatter(paths[:2], store, seed=5, piles=8)
    append(store, paths[2:4], time=1)
    before = describe_store(store)
    recshuf.gather(store, tmp_path / "before.parquet", provenance=True)
    recshuf.compact(store, sets=1)
    recshuf.gather(store, tmp_path / "after.parquet", provenance=True)
    assert (tmp_path / "before.parquet").read_bytes() == (tmp_path / "after.parquet").read_bytes()
    after = describe_store(store)
    for name in ("store", "seed", "format", "records", "bytes", "piles", "columns", "sources"):
        assert after[name] == before[name]
    assert len(list_sets(store)) == 1
    append(store, paths[4], time=3)
    assert recshuf.compact(store, sets=1).sources == tuple(map(str, paths))
    assert sorted(read_ids(store)) == [10, 11, 20, 30, 31, 32, 40, 41]


# Names decide the keys of records, so none is given twice to records that a store holds.


def append_inputs(store: Path, name: str) -> None:
    path = store.parent / "in.parquet"
    recshuf.gather(store, path, overwrite=True)
    append(store, path, time=1, name=name)


WAYS: dict[str, Callable[[Path, str], None]] = {
    "write": lambda store, name: write(store, name, ROWS),
    "append": lambda store, name: append(store, ROWS, time=1, name=name),
    "append inputs": append_inputs,
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        write(tmp_path / "store", name, ROWS)
    return tmp_path / "store"


@pytest.mark.parametrize("first", mostly_slow(WAYS, next(iter(WAYS))))
def test_a_name_stays_taken_by_records_that_were_compacted(store: Path, first: str) -> None:
    WAYS[first](store, "name")
    for number in range(2):
        recshuf.compact(store, sets=1)
        write(store, f"more-{number}", ROWS)
        for name in ("name", "a", "more-0"):
            for take in WAYS.values():
                with pytest.raises(
                    UsedNameError, match=f"name='{name}': .* has records of this name; choose another"
                ):
                    take(store, name)


def test_a_name_is_free_when_its_compacted_records_have_left(store: Path) -> None:
    recshuf.compact(store, sets=1)
    append(store, ROWS, time=1, name="later")
    expire(store, before=0)
    write(store, "a", ROWS)
    assert recshuf.PileStore(store).num_records == 40
    with pytest.raises(UsedNameError, match="name='later'"):
        append(store, ROWS, name="later")


def test_appends_to_one_snapshot_with_a_compaction_between_have_keys_of_their_own(store: Path) -> None:
    with recshuf.PileStore(store).update() as slower:
        append(store, ROWS, time=1)
        recshuf.compact(store, sets=1)
        slower.append(ROWS, time=2)
    records = load_all(store)
    assert len(set(records.keys.tolist())) == len(records) == 100


@pytest.mark.parametrize(
    ("change", "problem", "left"),
    [
        (lambda store: recshuf.compact(store, sets=1), "has compacted it", 80),
        (lambda store: expire(store, before=1), "has removed or compacted records", 20),
    ],
    ids=["compaction", "eviction"],
)
def test_a_compaction_that_another_change_overtakes_says_to_run_again(
    store: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], problem: str, left: int
) -> None:
    """The other one comes when it has opened the sets, which is when it first tells that nobody may see it."""
    append(store, ROWS, time=5)
    open_piles = StoredPiles.__init__

    def open_and_change(self: StoredPiles, *arguments: Any) -> None:
        monkeypatch.setattr(StoredPiles, "__init__", open_piles)
        open_piles(self, *arguments)
        change(store)

    # The interface of the room has no place between the two steps.
    monkeypatch.setattr(StoredPiles, "__init__", open_and_change)
    with pytest.raises(OutputError, match=f"another process {problem} meanwhile; run again$"):
        recshuf.compact(store, sets=1)
    recshuf.compact(store, sets=1)
    assert len(read_ids(store)) == left


def test_a_compaction_takes_no_name_that_a_writer_has(store: Path) -> None:
    write(store, "compact-000006-000", ROWS)
    recshuf.compact(store, sets=1)
    assert list_sets(store) == {"compact-000006-001-00000.piles"}
