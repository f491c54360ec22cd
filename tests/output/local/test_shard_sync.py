"""Finished shards are synced and noted behind the writers; see `test_durability` for whole runs."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from recshuf.output.local import shard_sync
from recshuf.output.local.destination import LocalDestination
from recshuf.output.local.log import read_journal
from recshuf.output.local.shard_sync import MANY, ShardSyncer
from recshuf.output.stage import FinishedShard
from recshuf.records.digests import Digest
from recshuf.run.header import Earlier, describe_shard
from recshuf.system.threads import Pool
from tests.support.output_tools import open_work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recshuf.output.local.stage import WorkFolder


@pytest.fixture
def work(tmp_path: Path) -> Iterator[WorkFolder]:
    work = open_work(LocalDestination(tmp_path / "out", is_directory=True))
    work.journal.note({"piles": None})
    yield work
    work.remove()


def make_shard(work: WorkFolder, number: int) -> FinishedShard:
    path = work.shards.path_of(number, ".txt")
    path.write_bytes(b"%d\n" % number)
    return FinishedShard(number, path, Digest(number, 2, 3), None)


def open_syncer(work: WorkFolder, *, drop_page_cache: bool = False) -> ShardSyncer:
    """Return what notes shards in the journal, as a run does."""
    return ShardSyncer(
        lambda shard: work.journal.note(describe_shard(shard)), drop_page_cache=drop_page_cache
    )


def find_noted(work: WorkFolder) -> Earlier:
    earlier = Earlier.of(read_journal(work.journal.path))
    assert earlier
    return earlier


class HeldSync:
    """A sync of a file that goes on only when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
        self.is_entered, self.may_go = threading.Event(), threading.Event()
        self._name = f"shard-{number:05d}.txt"
        monkeypatch.setattr(os, "fsync", self._sync)

    def _sync(self, file: int) -> None:
        if Path(f"/proc/self/fd/{file}").readlink().name == self._name:
            self.is_entered.set()
            assert self.may_go.wait(60)


@pytest.mark.parametrize("drop_page_cache", [False, True])
def test_a_noted_shard_is_found_again(
    work: WorkFolder, monkeypatch: pytest.MonkeyPatch, *, drop_page_cache: bool
) -> None:
    forgotten: list[Path] = []
    monkeypatch.setattr(shard_sync, "drop_file_pages", forgotten.append)  # nothing else shows it
    shard, syncer = make_shard(work, 7), open_syncer(work, drop_page_cache=drop_page_cache)
    syncer.add(shard)
    syncer.finish()
    names = [work.path_of(number, ".txt").name for number in range(8)]
    found, damaged = find_noted(work).find_shards([0] * 8 + [7], names, None, work)
    assert found == {7: shard.digest}
    assert not damaged
    assert forgotten == [shard.path] * drop_page_cache


def test_after_close_only_the_shard_in_progress_is_kept(
    work: WorkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that was begun together with it, nor one that waits behind them."""
    first, shutting, shutdown = HeldSync(monkeypatch, 0), threading.Event(), Pool.shutdown

    def shut_down(pool: Pool, *args: bool, **options: bool) -> None:
        shutting.set()
        shutdown(pool, *args, **options)

    monkeypatch.setattr(Pool, "shutdown", shut_down)
    syncer = open_syncer(work)
    syncer.add(make_shard(work, 0))
    assert first.is_entered.wait(60)
    second = HeldSync(monkeypatch, 1)
    for number in (1, 2):
        syncer.add(make_shard(work, number))
    first.may_go.set()
    assert second.is_entered.wait(60)
    syncer.add(make_shard(work, 3))
    closing = threading.Thread(target=syncer.close)
    closing.start()
    assert shutting.wait(60)
    second.may_go.set()
    closing.join(60)
    assert list(find_noted(work).shards) == [0, 1]


def fail(*_: Any) -> None:
    raise OSError(errno.EIO, "broken")


def test_an_error_reaches_who_adds_and_who_finishes(
    work: WorkFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", fail)
    syncer = open_syncer(work)
    syncer.add(make_shard(work, 0))
    with pytest.raises(OSError, match="broken"):
        syncer.finish()
    with pytest.raises(OSError, match="broken"):
        syncer.add(make_shard(work, 1))
    assert not find_noted(work).shards


@pytest.mark.parametrize("sync_all", [fail, lambda _: False], ids=["fails", "is not possible"])
def test_a_file_system_that_cannot_be_synced_ends_the_run_or_its_files_are_synced_one_by_one(
    work: WorkFolder, monkeypatch: pytest.MonkeyPatch, sync_all: Any
) -> None:
    synced = HeldSync(monkeypatch, 0)
    monkeypatch.setattr(shard_sync, "sync_file_system", sync_all)
    syncer = open_syncer(work)
    syncer.add(make_shard(work, 0))
    assert synced.is_entered.wait(60)
    monkeypatch.setattr(os, "fsync", lambda file: done.append(Path(f"/proc/self/fd/{file}").readlink().name))
    done: list[str] = []
    names = [
        (syncer.add(shard), shard.path.name)[1] for shard in (make_shard(work, n) for n in range(1, MANY + 1))
    ]
    synced.may_go.set()
    if sync_all is fail:
        with pytest.raises(OSError, match="broken"):
            syncer.finish()
        assert list(find_noted(work).shards) == [0]
    else:
        syncer.finish()
        assert done == names
        assert list(find_noted(work).shards) == [*range(MANY + 1)]
