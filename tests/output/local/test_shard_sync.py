"""Finished shards: synced and noted behind the writers, all that wait at once together."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import recshuf
import recshuf.run.shards as shards
import recshuf.system.page_cache as page_cache
from recshuf.output.local import shard_sync
from recshuf.output.local.destination import LocalDestination
from recshuf.output.local.log import read_journal
from recshuf.output.local.shard_sync import ShardSyncer
from recshuf.output.stage import FinishedShard
from recshuf.records.digests import Digest
from recshuf.run.header import Earlier, describe_shard
from recshuf.system.threads import Pool
from tests.support.formats.format_tools import find_open_files
from tests.support.output_tools import open_work

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable, Iterator

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


def noting(work: WorkFolder) -> Callable[[FinishedShard], None]:
    """Return what notes a shard in the journal, as a run does."""
    return lambda shard: work.journal.note(describe_shard(shard))


def list_noted(work: WorkFolder) -> list[int]:
    earlier = Earlier.of(read_journal(work.journal.path))
    assert earlier
    return list(earlier.shards)


class Syncs:
    """Stands in for what begins and syncs: says what was done in which order, and waits with some until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *held: int) -> None:
        self.steps: list[str] = []
        self.is_entered = {number: threading.Event() for number in held}
        self.may_go = {number: threading.Event() for number in held}
        monkeypatch.setattr(
            shard_sync, "begin_writing", lambda path: self.steps.append(f"begin {number_of(path)}")
        )
        monkeypatch.setattr(shard_sync, "sync", self._sync)

    def _sync(self, path: Path) -> None:
        number = number_of(path)
        if number in self.may_go:
            self.is_entered[number].set()
            assert self.may_go[number].wait(60)
        self.steps.append(f"sync {number}")


def number_of(path: Path) -> int:
    return int(path.stem.removeprefix("shard-"))


def test_shards_are_synced_and_then_noted(work: WorkFolder, monkeypatch: pytest.MonkeyPatch):
    synced = []

    def sync(path: Path) -> None:
        synced.append(path.name)
        assert list_noted(work) == list(range(len(synced) - 1))

    monkeypatch.setattr(shard_sync, "sync", sync)
    syncer = ShardSyncer(noting(work), drop_page_cache=False)
    for number in range(3):
        syncer.add(make_shard(work, number))
    syncer.finish()
    syncer.close()
    assert synced == ["shard-00000.txt", "shard-00001.txt", "shard-00002.txt"]
    assert list_noted(work) == [0, 1, 2]


def test_a_noted_shard_is_found_again(work: WorkFolder):
    shard = make_shard(work, 7)
    syncer = ShardSyncer(noting(work), drop_page_cache=True)
    syncer.add(shard)
    syncer.finish()
    earlier = Earlier.of(read_journal(work.journal.path))
    assert earlier
    names = [work.path_of(number, ".txt").name for number in range(8)]
    found, damaged = earlier.find_shards([0] * 8 + [7], names, None, work)
    assert found == {7: shard.digest}
    assert not damaged


@pytest.mark.parametrize(("output", "noted"), [("out/", [0]), ("out.txt", [])])
def test_an_output_file_is_synced_and_not_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, noted: list[int]
):
    synced: list[str] = []
    found: list[int] = []
    describe = shards.describe_shard

    def note(shard: FinishedShard) -> dict[str, Any]:
        found.append(shard.number)
        return describe(shard)

    monkeypatch.setattr(shard_sync, "sync", lambda path: synced.append(path.name))
    monkeypatch.setattr(shards, "describe_shard", note)
    (tmp_path / "in.txt").write_text("a\nb\nc\n")
    recshuf.shuffle([tmp_path / "in.txt"], f"{tmp_path}/{output}", workers=1)
    assert synced == ["shard-00000.txt" if noted else "out.txt"]
    assert found == noted


@pytest.mark.parametrize("drop_page_cache", [False, True])
def test_a_shard_is_given_up_in_memory_where_that_is_wanted(
    work: WorkFolder, monkeypatch: pytest.MonkeyPatch, *, drop_page_cache: bool
):
    forgotten: list[Path] = []
    monkeypatch.setattr(shard_sync, "drop_file_pages", forgotten.append)
    syncer = ShardSyncer(noting(work), drop_page_cache=drop_page_cache)
    shard = make_shard(work, 0)
    syncer.add(shard)
    syncer.finish()
    assert forgotten == [shard.path] * drop_page_cache


def test_a_shard_is_begun_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls = []

    def call(descriptor: int, place: ctypes.c_int64, size: ctypes.c_int64, flags: int) -> None:
        calls.append((Path(f"/proc/self/fd/{descriptor}").readlink(), place.value, size.value, flags))

    (tmp_path / "shard").write_bytes(b"a")
    monkeypatch.setattr(page_cache, "_find_call", lambda name: {"sync_file_range": call}[name])
    page_cache.begin_writing(tmp_path / "shard")
    page_cache.begin_writing(tmp_path / "none")
    assert calls == [
        (tmp_path / "shard", 0, 0, 2)
    ]  # SYNC_FILE_RANGE_WRITE of linux/fs.h; size 0 is to the end
    monkeypatch.setattr(page_cache, "_find_call", lambda _: None)
    page_cache.begin_writing(tmp_path / "shard")
    assert find_open_files(tmp_path) == []


def test_what_waits_at_once_is_begun_before_it_is_synced(work: WorkFolder, monkeypatch: pytest.MonkeyPatch):
    syncs = Syncs(monkeypatch, 0)
    syncer = ShardSyncer(noting(work), drop_page_cache=False)
    syncer.add(make_shard(work, 0))
    assert syncs.is_entered[0].wait(60)
    for number in (1, 2, 3):
        syncer.add(make_shard(work, number))
    syncs.may_go[0].set()
    syncer.finish()
    assert syncs.steps == ["begin 0", "sync 0", "begin 1", "begin 2", "begin 3", "sync 1", "sync 2", "sync 3"]


def test_after_close_only_the_shard_in_progress_is_kept(work: WorkFolder, monkeypatch: pytest.MonkeyPatch):
    """Neither one that was begun together with it, nor one that waits behind them."""
    syncs, shutting = Syncs(monkeypatch, 0, 1), threading.Event()
    shutdown = Pool.shutdown

    def shut_down(pool: Pool, *args: bool, **options: bool) -> None:
        shutting.set()
        shutdown(pool, *args, **options)

    monkeypatch.setattr(Pool, "shutdown", shut_down)
    syncer = ShardSyncer(noting(work), drop_page_cache=False)
    syncer.add(make_shard(work, 0))
    assert syncs.is_entered[0].wait(60)
    for number in (1, 2):
        syncer.add(make_shard(work, number))
    syncs.may_go[0].set()
    assert syncs.is_entered[1].wait(60)
    syncer.add(make_shard(work, 3))
    closing = threading.Thread(target=syncer.close)
    closing.start()
    assert shutting.wait(60)
    syncs.may_go[1].set()
    closing.join(60)
    assert syncs.steps == ["begin 0", "sync 0", "begin 1", "begin 2", "sync 1"]
    assert list_noted(work) == [0, 1]


@pytest.mark.parametrize("raising", ["add", "finish"])
def test_an_error_reaches_who_adds_and_who_finishes(
    work: WorkFolder, monkeypatch: pytest.MonkeyPatch, raising: str
):
    def fail(_: Path) -> None:
        raise OSError(5, "broken")

    monkeypatch.setattr(shard_sync, "sync", fail)
    syncer = ShardSyncer(noting(work), drop_page_cache=False)
    syncer.add(make_shard(work, 0))
    with pytest.raises(OSError, match="broken"):
        syncer.finish()
    if raising == "add":
        with pytest.raises(OSError, match="broken"):
            syncer.add(make_shard(work, 1))
    assert not list_noted(work)


@pytest.mark.parametrize("is_possible", [True, False])
def test_many_waiting_shards_are_synced_with_their_file_system(
    work: WorkFolder, monkeypatch: pytest.MonkeyPatch, is_possible: bool
):
    """Where the system can; none is noted before."""
    syncs = Syncs(monkeypatch, 0)

    def sync_all(path: Path) -> bool:
        syncs.steps.append(f"all of {path.parent.name}")
        assert list_noted(work) == [0]
        return is_possible

    monkeypatch.setattr(shard_sync, "sync_file_system", sync_all)
    syncer = ShardSyncer(noting(work), drop_page_cache=False)
    syncer.add(make_shard(work, 0))
    assert syncs.is_entered[0].wait(60)
    numbers = range(1, shard_sync.MANY + 1)
    for number in numbers:
        syncer.add(make_shard(work, number))
    syncs.may_go[0].set()
    syncer.finish()
    single = [] if is_possible else [f"{step} {number}" for step in ("begin", "sync") for number in numbers]
    assert syncs.steps == ["begin 0", "sync 0", "all of shards", *single]
    assert list_noted(work) == [0, *numbers]


def test_a_file_system_that_cannot_be_synced_ends_the_run(work: WorkFolder, monkeypatch: pytest.MonkeyPatch):
    syncs = Syncs(monkeypatch, 0)

    def fail(_: Path) -> bool:
        raise OSError(5, "broken")

    monkeypatch.setattr(shard_sync, "sync_file_system", fail)
    syncer = ShardSyncer(noting(work), drop_page_cache=False)
    syncer.add(make_shard(work, 0))
    assert syncs.is_entered[0].wait(60)
    for number in range(1, shard_sync.MANY + 1):
        syncer.add(make_shard(work, number))
    syncs.may_go[0].set()
    with pytest.raises(OSError, match="broken"):
        syncer.finish()
    assert list_noted(work) == [0]
