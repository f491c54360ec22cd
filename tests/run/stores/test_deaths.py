"""What changes or reads a store may die before any change on disk: all is old or new, and the same call goes on."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

import recshuf
from recshuf.errors import AlreadyCompleteError
from recshuf.piles.kept.folder import StoreFolder
from tests.support.effort import TRIES_ALL
from tests.support.processes.deaths import die_everywhere, list_files
from tests.support.small_runs import read_files
from tests.support.stores.small_stores import read_ids

CHANGES: dict[str, Callable[[Path, Path], object]] = {
    "scatter": lambda store, given: recshuf.scatter(given, store, seed=5, piles=4),
    "window": lambda store, given: recshuf.window(store, given, time=2, keep_records=100),
    "compact": lambda store, _: recshuf.compact(store, sets=1),
}


def write_input(path: Path, first: int) -> Path:
    path.write_text("".join(f'{{"id": {row}}}\n' for row in range(first, first + 100)))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store of two sets in a folder of its own."""
    path = tmp_path / "data" / "store"
    CHANGES["scatter"](path, write_input(tmp_path / "0.jsonl", 0))
    recshuf.window(path, write_input(tmp_path / "1.jsonl", 100), time=1)
    return path


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_that_dies_leaves_the_old_or_the_new_records_and_is_made_again(
    store: Path, tmp_path: Path, name: str
) -> None:
    given, twin = write_input(tmp_path / "more.jsonl", 200), tmp_path / "twin"

    def read(path: Path) -> list[int]:
        return read_ids(path) if StoreFolder(path).is_store else []

    if name == "scatter":
        StoreFolder(store).drop()
    else:
        shutil.copytree(store, twin)
    CHANGES[name](twin, given)
    old, new, deaths = read(store), read(twin), 0
    for step in die_everywhere(
        lambda: CHANGES[name](store, given), store.parent, every=1 if TRIES_ALL else 3
    ):
        found = read(store)
        assert found in (old, new), step
        if found == old:
            CHANGES[name](store, given)
        StoreFolder(store).commit(lambda newest: newest)  # which deletes what a dead process left
        assert (read(store), list_files(store)) == (new, list_files(twin)), step
        deaths += 1
    assert deaths > 3


def test_a_gather_that_dies_is_continued_to_the_same_bytes(store: Path, tmp_path: Path) -> None:
    def gather(folder: Path, *, resume: bool = False) -> dict[str, bytes]:
        recshuf.gather(store, f"{folder}/out/", epoch=1, shards=3, workers=1, resume=resume)
        return read_files(folder / "out")

    files, whole, deaths = read_files(store), gather(tmp_path / "whole"), 0
    folder = tmp_path / "killed"
    folder.mkdir()
    for step in die_everywhere(lambda: gather(folder), folder, every=1 if TRIES_ALL else 5):
        with suppress(AlreadyCompleteError):
            gather(folder, resume=True)
        assert read_files(folder / "out") == whole, step
        deaths += 1
    assert deaths > 2
    assert read_files(store) == files
