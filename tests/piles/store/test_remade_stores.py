"""A store that is deleted, and another one made at its path: who had opened the first changes nothing in the second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import OutputError, OutputExistsError
from recshuf.piles.kept.folder import StoreFolder
from recshuf.piles.kept.upkeep import drop_store, verify_store
from recshuf.run.stores import scatter_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CHANGES: dict[str, Callable[[Any, Path], None]] = {
    "append inputs": lambda update, path: update.append(path),
    "append records": lambda update, _: update.append({"id": range(3)}),
    "expire": lambda update, _: update.expire(records=1),
}


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "in.parquet")
    return tmp_path / "in.parquet"


def list_files(store: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}


@pytest.mark.parametrize("change", CHANGES)
def test_an_update_changes_only_the_store_that_it_opened(tmp_path: Path, inputs: Path, change: str) -> None:
    store = tmp_path / "store"
    recshuf.scatter(inputs, store)
    made: dict[Path, bytes] = {}

    def update_remade() -> None:
        with recshuf.PileStore(store).update() as update:
            drop_store(store)
            recshuf.scatter(inputs, store)
            made.update(list_files(store))
            CHANGES[change](update, inputs)

    with pytest.raises(OutputError, match=r"store: another store was made here meanwhile; run again$"):
        update_remade()
    assert list_files(store) == made
    assert verify_store(store, lambda *_: None) == 10


def test_a_scatter_into_a_store_that_another_has_made_meanwhile_says_so(
    tmp_path: Path, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, resolve = tmp_path / "store", scatter_store.resolve_inputs

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(scatter_store, "resolve_inputs", resolve)
        recshuf.scatter(inputs, store)
        return resolve(*args)

    monkeypatch.setattr(scatter_store, "resolve_inputs", overtaken)
    with pytest.raises(OutputExistsError, match="store: is a pile store already"):
        recshuf.scatter(inputs, store)
    assert verify_store(store, lambda *_: None) == 10


def test_a_scatter_deletes_what_a_dead_one_left_before_its_first_snapshot(
    tmp_path: Path, inputs: Path
) -> None:
    store = tmp_path / "store"
    (store / "sets").mkdir(parents=True)
    for name in (f".snapshot-{1:032x}", "sets/dead.lock", "sets/dead-00000.piles"):
        (store / name).touch()
    recshuf.scatter(inputs, store)
    assert {path.name for path in list_files(store)} == {"snapshot-000001.json", "scatter-00000.piles"}


def test_a_snapshot_is_that_of_the_store_that_is_leased(
    tmp_path: Path, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, find = tmp_path / "store", StoreFolder.find
    recshuf.scatter(inputs, store)

    def overtaken(folder: StoreFolder) -> Any:
        monkeypatch.setattr(StoreFolder, "find", find)
        found = folder.find()
        drop_store(store)
        recshuf.scatter(inputs, store)
        return found

    monkeypatch.setattr(StoreFolder, "find", overtaken)
    opened, lease = StoreFolder(store).open()
    lease.close()
    assert opened == StoreFolder(store).find()
