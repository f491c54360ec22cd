"""A store that is deleted, or made anew, while others have it open: each says what has happened, and nothing is left for ever."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import OutputError, OutputExistsError, RecshufError, UsageError
from recshuf.piles.kept import folder
from recshuf.piles.kept.folder import StoreFolder
from recshuf.piles.kept.upkeep import drop_store, verify_store
from recshuf.run.stores import new_stores
from recshuf.system.files import lock_existing
from tests.support.effort import mostly_slow
from tests.support.small_runs import read_files
from tests.support.stores.small_stores import write

BUSY = "store: a process reads or writes it; wait for its end"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write(tmp_path / "store", "a", {"id": range(10)})
    return tmp_path / "store"


def write_beside(store: Path, monkeypatch: pytest.MonkeyPatch, *, first: bool, buffer_bytes: int = 1) -> Any:
    """Delete a store, and write to it before or after its sets are deleted; return the writer."""
    rmtree, writers = shutil.rmtree, list[recshuf.PileWriter]()

    def begin() -> None:
        writers.append(recshuf.PileWriter(store, "b", buffer_bytes=buffer_bytes))
        writers[0].write({"id": range(10)})

    def interrupted(path: Path) -> None:
        monkeypatch.setattr(shutil, "rmtree", rmtree)
        if first:
            begin()
        rmtree(path)
        if not first:
            begin()

    monkeypatch.setattr(shutil, "rmtree", interrupted)
    with nullcontext() if first else pytest.raises(OutputError, match=BUSY):
        drop_store(store)
    return writers[0]


@pytest.mark.parametrize("buffer_bytes", mostly_slow([1, 10_000], 1))
def test_a_writer_whose_store_is_deleted_says_so(
    store: Path, monkeypatch: pytest.MonkeyPatch, buffer_bytes: int
) -> None:
    writer = write_beside(store, monkeypatch, first=True, buffer_bytes=buffer_bytes)
    with pytest.raises(RecshufError, match=r"store: [^\n]*; [^\n]*$"):
        writer.close()
    assert not store.exists() or StoreFolder(store).is_rest


@pytest.mark.parametrize("ends", [True, False])
def test_what_a_writer_leaves_that_begins_in_a_store_that_is_deleted_can_be_deleted(
    store: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    writer = write_beside(store, monkeypatch, first=False)
    with pytest.raises(OutputError, match=BUSY):
        drop_store(store)
    if ends:
        with pytest.raises(UsageError, match="holds no snapshot"):
            writer.close()
    else:  # its lock is given back as the system does when a process dies
        writer._cleanup.pop_all()
        StoreFolder(store).lock_file("b").unlink()
        StoreFolder(store).lock_file("b").touch()
        writer._is_open = False
    drop_store(store)
    assert not store.exists()


def test_records_that_are_committed_while_locks_are_taken_are_not_deleted(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their writer dies before it deletes the snapshot that is about to be locked."""

    def overtaken(path: Path) -> int:
        monkeypatch.setattr(folder, "lock_existing", lock_existing)
        with monkeypatch.context() as patch:
            patch.setattr(StoreFolder, "collect", lambda _: [])
            write(store, "b", {"id": [10]})
        return lock_existing(path)

    monkeypatch.setattr(folder, "lock_existing", overtaken)
    with pytest.raises(OutputError, match=BUSY):
        drop_store(store)
    assert verify_store(store, lambda *_: None) == 11


@pytest.mark.parametrize("foreign", ["notes.txt", "sets/notes.txt"])
def test_a_folder_with_other_files_and_no_snapshot_is_not_deleted(tmp_path: Path, foreign: str) -> None:
    (tmp_path / "other" / "sets").mkdir(parents=True)
    (tmp_path / "other" / foreign).write_text("x")
    with pytest.raises(UsageError, match="is no pile store"):
        drop_store(tmp_path / "other")
    assert (tmp_path / "other" / foreign).read_text() == "x"


# Another store at its path: who had opened the first changes nothing in the second

CHANGES: dict[str, Callable[[Any, Path], None]] = {
    "append inputs": lambda update, path: update.append(path),
    "append records": lambda update, _: update.append({"id": range(3)}),
    "expire": lambda update, _: update.expire(records=1),
}


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "in.parquet")
    return tmp_path / "in.parquet"


@pytest.mark.parametrize("change", CHANGES)
def test_an_update_changes_only_the_store_that_it_opened(tmp_path: Path, inputs: Path, change: str) -> None:
    store = tmp_path / "store"
    recshuf.scatter(inputs, store)
    made: dict[str, bytes] = {}

    def update_remade() -> None:
        with recshuf.PileStore(store).update() as update:
            drop_store(store)
            recshuf.scatter(inputs, store)
            made.update(read_files(store))
            CHANGES[change](update, inputs)

    with pytest.raises(OutputError, match=r"store: another store was made here meanwhile; run again$"):
        update_remade()
    assert read_files(store) == made
    assert verify_store(store, lambda *_: None) == 10


def test_a_scatter_into_a_store_that_another_has_made_meanwhile_says_so(
    tmp_path: Path, inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, resolve = tmp_path / "store", new_stores.resolve_inputs

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(new_stores, "resolve_inputs", resolve)
        recshuf.scatter(inputs, store)
        return resolve(*args)

    monkeypatch.setattr(new_stores, "resolve_inputs", overtaken)
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
    assert {name.rpartition("/")[2] for name in read_files(store)} == {
        "snapshot-000001.json",
        "scatter-00000.piles",
    }


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
