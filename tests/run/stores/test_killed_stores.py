"""kill -9 of what changes a store, at any moment: it holds the old or the new records, and everything goes on."""

from __future__ import annotations

import random
import shutil
import time
from signal import SIGKILL
from typing import TYPE_CHECKING

import pytest

import recshuf
from recshuf.piles.kept.folder import StoreFolder
from tests.support.stores.killed_stores import fork, join, list_files, read_ids

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = 4_000
COUNTS = [
    pytest.param(4, id="short"),
    pytest.param(20, id="long", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
]


def write_input(path: Path, first: int) -> Path:
    path.write_text("".join(f'{{"id":{row},"text":"row {row}"}}\n' for row in range(first, first + ROWS)))
    return path


class Moments:
    """Draws seconds after which a job is killed, over all of its time."""

    def __init__(self, job: Callable[[], object]) -> None:
        started = time.perf_counter()
        assert join(fork(job)) == 0
        self._longest = 1.1 * (time.perf_counter() - started)
        self._random = random.Random(5)

    def draw(self) -> float:
        return self._random.uniform(0, self._longest)


@pytest.mark.parametrize("kills", [COUNTS[0], pytest.param(60, id="long", marks=COUNTS[1].marks)])
def test_a_killed_append_leaves_the_old_or_the_new_window(tmp_path: Path, kills: int) -> None:
    begun, store = tmp_path / "begun", tmp_path / "store"
    recshuf.scatter(write_input(tmp_path / "old.jsonl", 0), begun, seed=5, piles=16)
    new = write_input(tmp_path / "new.jsonl", ROWS)

    def append() -> None:
        recshuf.window(store, new, time=1, keep_records=ROWS)

    def begin() -> None:
        shutil.rmtree(store, ignore_errors=True)
        shutil.copytree(begun, store)

    begin()
    old = read_ids(store)
    moments = Moments(append)
    expected, files = read_ids(store), list_files(store)
    assert (sorted(old), sorted(expected)) == (list(range(ROWS)), list(range(ROWS, 2 * ROWS)))
    for _ in range(kills):
        begin()
        assert join(fork(append), moments.draw()) in (0, -SIGKILL)
        found = read_ids(store)
        assert found in (old, expected)
        if found == old:
            append()
        else:
            StoreFolder(store).commit(lambda newest: newest)
        assert (read_ids(store), list_files(store)) == (expected, files)


@pytest.mark.parametrize("kills", COUNTS)
def test_a_killed_scatter_leaves_no_store_or_a_whole_one(tmp_path: Path, kills: int) -> None:
    store, given = tmp_path / "store", write_input(tmp_path / "in.jsonl", 0)

    def scatter() -> None:
        recshuf.scatter(given, store, seed=5, piles=16)

    moments = Moments(scatter)
    expected, files = read_ids(store), list_files(store)
    for _ in range(kills):
        shutil.rmtree(store)
        assert join(fork(scatter), moments.draw()) in (0, -SIGKILL)
        if StoreFolder(store).find() is None:
            scatter()
        else:
            StoreFolder(store).commit(lambda newest: newest)
        assert (read_ids(store), list_files(store)) == (expected, files)
