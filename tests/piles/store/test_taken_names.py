"""Names decide the keys of records, so none is given twice to records that a store holds, also after a compaction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import recshuf
from recshuf.errors import OutputError, UsedNameError
from recshuf.piles.kept.folder import StoreFolder
from recshuf.piles.kept.stored import StoredPiles
from recshuf.run.stores.pile_store import PileStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write(store: Path, name: str) -> None:
    with recshuf.PileWriter(store, name, piles=2, seed=1) as writer:
        writer.write({"id": range(20)})


def append(store: Path, name: str, data: Any = None) -> None:
    with PileStore(store).update() as update:
        update.append({"id": range(20)} if data is None else data, time=1, name=name)


def append_inputs(store: Path, name: str) -> None:
    path = store.parent / "in.parquet"
    recshuf.gather(store, path, overwrite=True)
    append(store, name, path)


WAYS: dict[str, Callable[[Path, str], None]] = {
    "write": write,
    "append": append,
    "append inputs": append_inputs,
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        write(tmp_path / "store", name)
    return tmp_path / "store"


@pytest.mark.parametrize("second", WAYS)
@pytest.mark.parametrize("first", WAYS)
@pytest.mark.parametrize("compactions", [1, 2])
def test_a_name_stays_taken_by_records_that_were_compacted(
    store: Path, first: str, second: str, compactions: int
) -> None:
    WAYS[first](store, "name")
    for number in range(compactions):
        recshuf.compact(store, sets=1)
        write(store, f"more-{number}")
    for name in ("name", "a", "more-0"):
        with pytest.raises(
            UsedNameError, match=f"name='{name}': .* has records of this name; choose another"
        ):
            WAYS[second](store, name)


def test_a_name_is_free_when_its_compacted_records_have_left(store: Path) -> None:
    recshuf.compact(store, sets=1)
    append(store, "later")
    recshuf.window(store, expire_before=0)
    write(store, "a")
    assert recshuf.PileStore(store).num_records == 40
    with pytest.raises(UsedNameError, match="name='later'"):
        append(store, "later")


def test_appends_to_one_snapshot_with_a_compaction_between_have_keys_of_their_own(store: Path) -> None:
    with PileStore(store).update() as slower:
        append_to_newest(store)
        recshuf.compact(store, sets=1)
        slower.append({"id": range(20)}, time=2)
    piles = StoredPiles(store)
    records = piles.load([(k, j) for k in range(len(piles.names)) for j in range(piles.info.pile_count)])
    piles.close()
    assert records is not None
    assert len(set(records.keys.tolist())) == len(records) == 100


def append_to_newest(store: Path) -> None:
    with PileStore(store).update() as update:
        update.append({"id": range(20)}, time=1)


def test_a_snapshot_with_compacted_sets_comes_back_as_it_was(store: Path) -> None:
    recshuf.compact(store, sets=2)
    folder = StoreFolder(store)
    made = folder.commit(lambda newest: newest)
    assert folder.find() == made
    assert made.names >= {"a", "b", "c"}
    assert made.drop({one.name for one in made.sets}).names == set()


def test_a_compaction_that_another_overtakes_says_to_run_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_piles = StoredPiles.__init__

    def open_and_be_overtaken(self: StoredPiles, path: Path) -> None:
        monkeypatch.setattr(StoredPiles, "__init__", open_piles)
        open_piles(self, path)
        recshuf.compact(store, sets=1)

    monkeypatch.setattr(StoredPiles, "__init__", open_and_be_overtaken)
    with pytest.raises(OutputError, match=r"store: another process has compacted it meanwhile; run again$"):
        recshuf.compact(store, sets=1)
    recshuf.compact(store, sets=1)
    assert recshuf.PileStore(store).num_records == 60


def test_a_compaction_takes_no_name_that_a_writer_has(store: Path) -> None:
    write(store, "compact-000006-000")
    recshuf.compact(store, sets=1)
    assert StoredPiles(store).names == ("compact-000006-001-00000",)
