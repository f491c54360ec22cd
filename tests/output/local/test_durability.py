"""What syncs there are besides those of `tests.run.test_deaths`: of many shards, and of runs that end early."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import recshuf
from recshuf.errors import OutputError
from recshuf.output.entries import FinishedShard
from recshuf.output.local.log import ShardSyncer
from recshuf.records.digests import Digest
from recshuf.system.files import sync_file_system
from tests.support.numbered_files import make_inputs
from tests.support.small_runs import put_in_place

MANY = 40
"""So many waiting shards are synced together."""


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    return make_inputs(tmp_path / "in", "text", [60, 40])


def path_of(file: Any) -> Path:
    return Path(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}").readlink()


def sync_many(
    patch: pytest.MonkeyPatch, shards: Path, sync_all: Callable[[Path], bool], note: Callable[[Path], object]
) -> None:
    """Have the file system be synced by a function; the sync of the first shard takes until many others wait."""
    is_first = [True]

    def sync(file: Any) -> None:
        while is_first and len(os.listdir(shards)) < MANY:
            os.sched_yield()
        is_first.clear()
        note(path_of(file))

    patch.setattr(os, "fsync", sync)
    put_in_place(patch, sync_file_system, sync_all)


@pytest.mark.parametrize("is_able", [True, False])
def test_many_shards_are_synced_with_their_file_system_or_where_it_cannot_one_by_one(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch, is_able: bool
) -> None:
    shards, synced, asked = tmp_path / ".out.recshuf" / "shards", set[Path](), list[Path]()

    def sync_all(path: Path) -> bool:
        asked.append(path)
        synced.update(shards.iterdir() if is_able else ())
        return is_able

    sync_many(monkeypatch, shards, sync_all, synced.add)
    recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=2, shards=MANY)
    names = os.listdir(tmp_path / "out")
    assert len(names) == MANY
    assert {shards / name for name in names} <= synced
    assert asked
    assert asked[0].parent == shards


@pytest.mark.parametrize("target", ["file", "folder", "file system"])
def test_a_sync_that_fails_ends_the_run_before_anything_is_in_place(
    tmp_path: Path, inputs: list[Path], monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    def fail(kind: str) -> Any:
        if kind == target:
            raise OSError(5, "Input/output error")

    sync_many(
        monkeypatch,
        tmp_path / ".out.recshuf" / "shards",
        lambda _: fail("file system"),
        lambda path: fail("folder" if path.is_dir() else "file"),
    )
    with pytest.raises(OutputError, match="Input/output error"):
        recshuf.shuffle(inputs, f"{tmp_path}/out/", seed=1, shards=MANY)
    assert not (tmp_path / "out").exists()


def test_of_a_run_that_ends_early_only_the_shard_in_progress_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those that wait behind it."""
    noted, has_begun, are_waiting = list[FinishedShard](), threading.Event(), threading.Event()
    syncer = ShardSyncer(noted.append, drop_page_cache=False)
    ending = threading.Thread(target=syncer.close)

    def add(number: int) -> None:
        path = tmp_path / f"{number}"
        path.touch()
        syncer.add(path, FinishedShard(number, path.name, Digest(), None))

    def hold(_: Any) -> None:
        if not has_begun.is_set():
            assert are_waiting.wait(60)
            ending.start()
            has_begun.set()
            with suppress(RuntimeError):
                while True:  # until it takes no more
                    add(9)

    monkeypatch.setattr(os, "fsync", hold)
    for number in range(3):
        add(number)
    are_waiting.set()
    assert has_begun.wait(60)
    ending.join()
    assert [one.number for one in noted] == [0]
