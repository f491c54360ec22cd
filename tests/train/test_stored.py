"""The loader over real stores: the order and values of gather for every format, in any process."""

import multiprocessing
import pickle
import shutil
from itertools import chain
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import ConversionError, RecshufWarning, UsageError
from recshuf.loader import MixLoader
from recshuf.train import batch_reader as cutting
from recshuf.train.loader import PileLoader
from tests.support.effort import mostly_slow
from tests.support.golden_inputs import make_inputs
from tests.support.processes.deaths import fork, join
from tests.support.stores.small_stores import ids_of, write


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store of three sets in seven piles."""
    path = tmp_path_factory.mktemp("numbers") / "store"
    for index, count in enumerate((40, 35, 50)):
        write(path, f"{index}", {"id": range(100 * index, 100 * index + count)}, seed=7, piles=7)
    return path


def test_copies_that_were_changed_apart_do_not_take_each_others_states(tmp_path: Path) -> None:
    """Though they have one identifier, and snapshots of one number."""
    a, b, same = (tmp_path / name for name in ("a", "b", "same"))
    write(a, "0", {"id": range(40)}, seed=7, piles=7)
    shutil.copytree(a, b)
    for store, first in ((a, 100), (b, 200)):
        write(store, "1", {"id": range(first, first + 10)}, seed=7, piles=7)
    shutil.copytree(a, same)
    for make in (
        lambda *stores: PileLoader(stores[0], 4),
        lambda *stores: MixLoader(dict.fromkeys(stores, 1), 4),
    ):
        state = make(a).state_dict()
        make(same).load_state_dict(state)
        with pytest.raises(
            UsageError, match=r"^load_state_dict: 'sets' is .*; the store and .* changed apart; open"
        ):
            make(b).load_state_dict(state)
        for store in (a, b):
            make(store).load_state_dict({name: value for name, value in state.items() if name != "sets"})


def read_epoch(loader: PileLoader) -> str:
    """Return names and values of all records of an epoch of a loader of record batches, as text."""
    return show(pa.Table.from_batches(list(loader)))


def show(table: pa.Table) -> str:
    return f"{table.schema.names}\n{table.to_pylist()}"  # in which a NaN equals a NaN


@pytest.mark.parametrize(
    ("name", "mix"),
    mostly_slow(
        [("utf8", 1), ("quoted", 3), ("documents", 1), ("rich", 3), ("union", 1), ("arrays", 3)],
        ("documents", 1),
        ("rich", 3),
    ),
)
def test_the_first_epoch_is_what_gather_writes(name: str, mix: int, tmp_path: Path) -> None:
    make_inputs(tmp_path, name)
    recshuf.scatter(sorted((tmp_path / name).iterdir()), tmp_path / "store", seed=5, piles=6)
    recshuf.gather(tmp_path / "store", tmp_path / "out.parquet", to="parquet", shards=1, mix=mix)
    loader = PileLoader(tmp_path / "store", 7, output="arrow", drop_last=False, mix=mix)
    expected = show(pq.read_table(tmp_path / "out.parquet"))
    assert read_epoch(loader) == expected
    assert read_epoch(pickle.loads(pickle.dumps(loader))) == expected


@pytest.mark.parametrize("method", ["fork", "spawn", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_other_processes_get_the_same_batches(store: Path, method: str) -> None:
    loader = PileLoader(store, 4, epoch=1)
    expected = ids_of(loader)
    running = iter(loader)
    next(running)
    loader.seek(1, 3)
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply(ids_of, (loader,)) == expected[12:]
        assert pool.apply(ids_of, (PileLoader(store, 4, epoch=1),)) == expected
    assert sum(1 for _ in running) == len(loader) - 1


def test_an_iterator_taken_over_a_fork_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "BUNDLE_BYTES", 0)
    running = iter(PileLoader(store, 1))
    next(running)

    def go_on() -> None:
        said = r"^this iterator belongs to another process: call iter\(loader\) in this one$"
        with pytest.raises(UsageError, match=said):
            list(running)

    assert join(fork(go_on)) == 0
    assert sum(1 for _ in running) == 124


@pytest.mark.parametrize("lanes", [4, 6, 7])
def test_what_is_written_to_a_batch_is_not_seen_in_one_that_repeats_its_records(
    store: Path, lanes: int
) -> None:
    """As the last one does."""
    loader = PileLoader(store, lanes, lanes=lanes, epoch=1, drop_last=False)
    expected, found = [batch["id"].tolist() for batch in loader], []
    assert sum(map(len, expected)) > len(set(chain.from_iterable(expected))) == 125
    for batch in loader:
        found.append(batch["id"].tolist())
        batch["id"][:] = -1
    assert found == expected


def test_a_pickled_loader_opens_the_same_store_in_any_folder(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(store.parent)
    loader = PileLoader(store.name, 4)
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps(loader)
    shutil.copytree(store, tmp_path / "other" / store.name)
    monkeypatch.chdir(tmp_path / "other")
    shutil.rmtree(store.name)
    assert ids_of(pickle.loads(content)) == ids_of(loader)


def test_a_loader_that_was_pickled_takes_no_other_store(tmp_path: Path) -> None:
    def make() -> None:
        write(tmp_path / "store", "w", {"id": [1, 2, 3]}, piles=2)

    make()
    content = pickle.dumps(PileLoader(tmp_path / "store", 1))
    assert sorted(batch["id"][0] for batch in pickle.loads(content)) == [1, 2, 3]
    shutil.rmtree(tmp_path / "store")
    make()
    with pytest.raises(UsageError, match="store: was made anew since it was opened; open it again"):
        pickle.loads(content)


def test_records_without_a_table_form_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xff\n")
    with pytest.warns(RecshufWarning, match="a.txt: line 1: is not UTF-8"):
        recshuf.scatter(tmp_path / "a.txt", tmp_path / "store")
    with pytest.raises(ConversionError):
        PileLoader(tmp_path / "store", 4)
