"""Records of a store to look at: those of `gather`, by position and by `_id`, whatever has made and changed the store."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import MissingRecordError, UsageError
from recshuf.piles.kept.stored import StoredPiles
from tests.support.stores.small_stores import append, write


def write_lines(path: Path, first: int, count: int) -> Path:
    records = [{"n": first + n, "meta": {"w": n / 2}, "text": f"t{n}"} for n in range(count)]
    path.write_text("".join(f"{json.dumps(one)}\n" for one in records))
    return path


def scattered(folder: Path) -> Path:
    inputs = [write_lines(folder / f"{index}.jsonl", 1000 * index, 40) for index in range(3)]
    recshuf.scatter(inputs, folder / "store", seed=5, piles=6)
    return folder / "store"


def split(folder: Path) -> Path:
    recshuf.scatter(
        write_lines(folder / "a.jsonl", 0, 90), folder / "stores", seed=5, split={"train": 0.7, "val": 0.3}
    )
    return folder / "stores/val"


def written(folder: Path) -> Path:
    for name in ("b", "a", "c"):
        table = pa.table({"n": range(30), "text": [f"{name}{n}" for n in range(30)]})
        write(folder / "store", name, table, piles=6)
    append(folder / "store", pa.table({"n": range(20), "text": ["x"] * 20}), name="later")
    return folder / "store"


def compacted(folder: Path) -> Path:
    recshuf.compact(written(folder))
    return folder / "store"


STORES = [scattered, split, written, compacted]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return scattered(tmp_path_factory.mktemp("looking"))


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Yield the piles that are read from now on."""
    piles: list[int] = []

    def pack(self: StoredPiles, cells: Any, *more: Any, own: Any = StoredPiles.pack) -> Any:
        piles.extend(sorted({pile for _, pile in cells}))
        return own(self, cells, *more)

    monkeypatch.setattr(StoredPiles, "pack", pack)
    return piles


def test_a_pile_becomes_values_of_python_a_part_at_a_time(tmp_path: Path) -> None:
    numbers = np.arange(50_000)
    with recshuf.PileWriter(tmp_path / "store", "a", piles=1) as writer:
        writer.write({"n": numbers})
    records = iter(recshuf.PileStore(tmp_path / "store"))
    blocks = sys.getallocatedblocks()
    first = next(records)
    assert sys.getallocatedblocks() - blocks < len(numbers) // 2
    assert sorted(one["n"] for one in [first, *records]) == numbers.tolist()


@pytest.mark.parametrize("make", STORES)
def test_positions_are_those_of_gather_and_ids_find_them(make: Any, tmp_path: Path) -> None:
    path = make(tmp_path)
    recshuf.gather(path, tmp_path / "all.parquet")
    expected = pa.parquet.read_table(tmp_path / "all.parquet").to_pylist()
    store = recshuf.PileStore(path)
    assert len(store) == len(expected)
    assert list(store) == expected
    rows = np.random.default_rng(1).permutation(len(expected))[:25] - len(expected) // 2
    taken = store.take(rows, columns=["text", "_id", "n"])
    assert [{"text": one["text"], "n": one["n"]} for one in taken.to_pylist()] == [
        {"text": expected[row]["text"], "n": expected[row]["n"]} for row in rows.tolist()
    ]
    ids = taken.column("_id")
    pairs = [tuple(one.values()) for one in ids.to_pylist()]
    for form in (ids, pairs, np.array(pairs, np.int32), ids.to_pylist()):
        assert store.find(form).tolist() == (rows % len(expected)).tolist()
    assert store.take(ids=pairs) == store.take(rows)
    for at in (0, -1, np.int32(3), np.uint8(7)):
        assert store[at] == expected[at]


def test_only_the_piles_that_hold_them_are_read(store: Path, loaded: list[int]) -> None:
    opened = recshuf.PileStore(store)
    sizes = opened.piles().counts.sum(axis=0)
    opened.take([0, 1, 0, sizes[0]])
    assert loaded == [0, 1]
    first = opened.take([sizes[0]], columns=["_id"])
    loaded.clear()
    opened.find(first["_id"])
    assert loaded == [1]


def test_what_is_taken_may_be_empty_repeated_or_of_some_columns(store: Path) -> None:
    opened = recshuf.PileStore(store)
    for nothing in ([], (), np.array([], int), range(0)):
        taken = opened.take(nothing, columns=["n", "_id", "meta.w"])
        assert (taken.num_rows, taken.schema.names) == (0, ["n", "_id", "meta.w"])
        assert opened.take(ids=nothing).schema.names == ["n", "meta", "text"]
    assert opened.take([3, 3], columns=["n"]).column(0).to_pylist() == [opened[3]["n"]] * 2
    assert opened.take(range(119, -1, -1)).num_rows == 120


MISSING = [
    (lambda store: store[120], "no record has the position 120; there are 120"),
    (lambda store: store[-121], "no record has the position -121"),
    (lambda store: store[10**30], "no record has the position 9223372036854775807"),
    (lambda store: store.take(np.array([2**64 - 1], np.uint64)), "no record has the position 922"),
    (lambda store: store.take([0, 500, 900]), "no record has the position 500"),
    (lambda store: store.find([(0, 1), (1, 40)]), r"no record has the _id \(1, 40\)"),
    (lambda store: store.find([(3, 1)]), r"no record has the _id \(3, 1\)"),
    (lambda store: store.find([(-1, 1)]), r"no record has the _id \(-1, 1\)"),
    (lambda store: store.find([(0, 1 << 50)]), r"no record has the _id \(0, 1125899906842624\)"),
]
REFUSED = [
    (lambda store: store[1:3], r"store\[slice\(1, 3, None\)\]: give an integer; store\.take\(rows\)"),
    (lambda store: store["n"], r"store\['n'\]: give an integer"),
    (lambda store: store[1.0], r"store\[1\.0\]: give an integer"),
    (lambda store: recshuf.shuffle(store, "o.csv"), r"a PileStore is no input; recshuf\.gather"),
    (lambda store: store.take(3), "rows=3: give a list of positions"),
    *(
        (lambda store, rows=rows: store.take(rows), "rows=.*: give a list of positions")
        for rows in ([True, False], [1.0], ["a"], [[1], [2, 3]])
    ),
    (lambda store: store.take(), "take: give either rows or ids"),
    (lambda store: store.take([1], ids=[(0, 1)]), "take: give either rows or ids"),
    (lambda store: store.take(ids=(0, 1)), "ids=.*: give a list of pairs of source and row"),
    (lambda store: store.find([(0, 1, 2)]), "ids=.*: give a list of pairs"),
    (lambda store: store.take([1], columns=["m"]), r"columns: no column 'm' in the store"),
]


@pytest.mark.parametrize(("cases", "kind"), [(MISSING, MissingRecordError), (REFUSED, UsageError)])
def test_what_a_store_does_not_hold_is_an_error(cases: Any, kind: Any, store: Path) -> None:
    assert issubclass(MissingRecordError, IndexError)
    for ask, problem in cases:
        with pytest.raises(kind, match=problem) as caught:
            ask(recshuf.PileStore(store))
        assert type(caught.value) is kind
