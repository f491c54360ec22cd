"""A cache of regions: each is fetched once by all processes, and what is damaged, cut short or another set's is never served."""

import errno
import os
import pickle
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import recshuf
from recshuf.errors import DamagedSetError, OutputError, RecshufWarning, UsageError
from recshuf.piles.epochs import EpochOrder
from recshuf.piles.groups import Groups
from recshuf.piles.kept import region_cache
from recshuf.piles.kept.region_cache import RegionCache
from recshuf.piles.kept.stored import StoredPiles
from recshuf.piles.set_folder import PileFile
from recshuf.system.paths import free_bytes
from tests.support.processes.deaths import fork, join
from tests.support.small_runs import put_in_place
from tests.support.stores.small_stores import ids_of, write

SIZE = 1000


class FarFile(PileFile):
    """A file of regions of 1,000 bytes, whose bytes are the number of the region; `asked` are the offsets read."""

    def __init__(self, on_read: Callable[[], object] = lambda: None) -> None:
        super().__init__("far")
        self.asked: list[int] = []
        self._on_read = on_read

    @property
    def size(self) -> int:
        return 256 * SIZE

    def _read_into(self, view: memoryview, offset: int) -> int:
        self.asked.append(offset)
        self._on_read()
        view[:] = bytes([offset // SIZE]) * len(view)
        return len(view)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        raise AssertionError

    def close(self) -> None: ...


def open_far(tmp_path: Path, most_bytes: int = 1 << 20, **how: Any) -> tuple[FarFile, PileFile]:
    """Return a file that is far away, and one that keeps its regions, as another process has them."""
    far = FarFile(**how)
    return far, RegionCache(tmp_path / "cache", most_bytes).wrap(far, "0" * 32, "a.1")


def read(file: PileFile, *regions: int) -> None:
    for region in regions:
        assert set(file.read(region * SIZE, SIZE).tolist()) == {region}


def list_kept(tmp_path: Path) -> list[int]:
    """Return the regions in the cache, whose bytes are counted; nothing else may be left in it."""
    folder = tmp_path / "cache" / "recshuf-regions"
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "used"]
    assert not list((folder / "parts").iterdir())
    assert int((folder / "used").read_text()) >= sum(path.stat().st_size for path in files)
    return sorted(int(path.name) // SIZE for path in files)


def test_regions_are_fetched_once_and_those_used_least_recently_go(tmp_path: Path) -> None:
    far, file = open_far(tmp_path, 16 * SIZE)
    read(file, *range(16), 0, 1)
    assert len(far.asked) == 16
    other, again = open_far(tmp_path, 16 * SIZE)
    read(again, *range(16))
    assert not other.asked
    read(again, 0, 3)
    (tmp_path / "cache" / "recshuf-regions" / "parts" / "dead").write_bytes(b"of a process that died")
    read(again, 100)
    kept = list_kept(tmp_path)
    assert {0, 3, 100} <= set(kept)
    assert len(kept) * SIZE <= 16 * SIZE
    assert 1 not in kept
    read(again, *range(200, 240))
    assert len(list_kept(tmp_path)) <= 16
    _, small = open_far(tmp_path / "small", SIZE - 1)
    read(small, 1)
    assert list_kept(tmp_path / "small") == []


def test_threads_and_processes_that_need_a_region_at_once_fetch_it_once(tmp_path: Path) -> None:
    both_wait = threading.Event()
    files = [open_far(tmp_path, on_read=lambda: both_wait.wait(30)) for _ in range(4)]
    threads = [threading.Thread(target=read, args=(file, *range(6))) for _, file in files]
    for thread in threads:
        thread.start()
    files[0][1].expect([(region * SIZE, SIZE) for region in range(4, 8)])
    both_wait.set()
    for thread in threads:
        thread.join()
    read(files[0][1], 7)
    asked = Counter(offset for far, _ in files for offset in far.asked)
    assert asked == {region * SIZE: 1 for region in range(8)}
    assert list_kept(tmp_path) == list(range(8))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_that_is_forked_does_not_wait_for_a_thread_of_its_parent(tmp_path: Path) -> None:
    parent, begun, may_end = os.getpid(), threading.Event(), threading.Event()

    def wait_in_parent() -> None:
        if os.getpid() == parent:
            begun.set()
            assert may_end.wait(60)

    _, file = open_far(tmp_path, on_read=wait_in_parent)
    file.expect([(SIZE, SIZE)])
    assert begun.wait(60)
    child = fork(lambda: read(file, 1, 2))
    may_end.set()
    assert join(child, 60) == 0
    assert list_kept(tmp_path) == [1, 2]


@pytest.mark.parametrize(
    ("call", "count"),
    [("pwrite", 1), ("ftruncate", 1), ("ftruncate", 2), ("makedirs", 1), ("rename", 1), ("rename", 3), ("flock", 2), ("flock", 3)],
)  # fmt: skip
def test_a_kill_leaves_nothing_half(call: str, count: int, tmp_path: Path) -> None:
    open_far(tmp_path)

    def read_and_die() -> None:
        _, file = open_far(tmp_path)
        module: Any = region_cache.fcntl if call == "flock" else os
        given, calls = getattr(module, call), iter(range(count, 0, -1))

        def die(*arguments: Any, **named: Any) -> Any:
            if call == "pwrite" and len(arguments[1]) == SIZE:
                given(arguments[0], arguments[1][:700], 0)
                os.kill(os.getpid(), signal.SIGKILL)
            if next(calls, 0) == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return given(*arguments, **named)

        setattr(module, call, die)
        read(file, 1, 2, 3)

    assert join(fork(read_and_die)) == -signal.SIGKILL
    far, file = open_far(tmp_path)
    kept = list_kept(tmp_path)
    read(file, 1, 2, 3)
    assert sorted([*kept, *(offset // SIZE for offset in far.asked)]) == [1, 2, 3]
    assert list_kept(tmp_path) == [1, 2, 3]


@pytest.mark.parametrize(
    ("call", "number"), [("pwrite", errno.ENOSPC), ("pwrite", errno.EDQUOT), ("rename", errno.EIO), ("ftruncate", errno.EROFS)]
)  # fmt: skip
def test_reading_goes_on_when_nothing_can_be_kept(
    call: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    far, file = open_far(tmp_path)
    read(file, 1)

    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.warns(RecshufWarning) as said:
            read(file, 2, 2, 3, 1)
    assert [str(one.message) for one in said] == [
        f"{tmp_path}/cache: {os.strerror(number)}; reading goes on, and no more regions are kept there"
    ]
    assert [offset // SIZE for offset in far.asked][1:] in ([2, 2, 3], [2, 2, 2, 3])
    assert list_kept(tmp_path) == [1]


def test_no_more_of_a_region_than_a_piece_is_in_memory_while_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of which a write may take a part."""
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, content, at: whole(file, content[:70], at))
    monkeypatch.setattr(region_cache, "_PIECE_BYTES", 300)
    far, file = open_far(tmp_path)
    read(file, 1)
    file.expect([(2 * SIZE, SIZE)])
    read(file, 2, 1)
    assert sorted(far.asked) == [at + region * SIZE for region in (1, 2) for at in (0, 334, 668)]


# Whole stores.


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return a store of two sets of four piles."""
    path = tmp_path / "store"
    for name, start in (("a", 0), ("b", 500)):
        write(path, name, pa.table({"id": range(start, start + 500), "text": ["x" * 40] * 500}))
    return path


def load(store: Path, **options: Any) -> list[int]:
    """Return the numbers of an epoch."""
    return ids_of(recshuf.PileLoader(store, 50, **{"cache": store.parent / "cache"} | options))


def find_files(store: Path) -> list[Path]:
    """Return the files of regions."""
    return sorted((store.parent / "cache").glob("recshuf-regions/*/*.*/*"))


def test_a_loader_reads_a_store_once(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = [load(store, cache=None, epoch=epoch, mix=2) for epoch in (0, 1)]
    assert load(store, mix=2) == given[0]
    assert len(find_files(store)) == 8
    for path in store.glob("sets/*.piles"):  # all but the footers
        with path.open("r+b") as file:
            file.write(bytes(100))
    loader = recshuf.PileLoader(store, 50, epoch=1, mix=2, cache=store.parent / "cache")
    assert ids_of(pickle.loads(pickle.dumps(loader))) == ids_of(loader) == given[1]
    with pytest.raises(DamagedSetError, match=r"store/sets/a-00000\.piles"):
        load(store, cache=None)
    mixed = recshuf.MixLoader({store: 1}, 50, columns=["id"], cache=store.parent / "cache")
    assert sorted(ids_of(mixed)) == list(range(1000))


def test_a_cache_of_no_given_size_holds_a_group_on_a_full_disk(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_place(monkeypatch, free_bytes, lambda _: 0)
    assert load(store) == load(store, cache=None)
    assert find_files(store)


def test_what_follows_is_not_expected_when_it_may_have_been_read(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    piles, expected = StoredPiles(store), list[tuple[int, int]]()
    piles.use_cache(RegionCache(store.parent / "cache"))
    monkeypatch.setattr(piles, "expect", expected.extend)
    Groups(piles, EpochOrder(1, 0, "rotate", store_seed=1)).load([2], [3])
    piles.close()
    assert expected == [(0, 2), (1, 2)]


@pytest.mark.parametrize("damage", ["flip", "cut", "empty"])
def test_a_damaged_region_is_fetched_again(damage: str, store: Path) -> None:
    given = load(store)
    path = find_files(store)[3]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"flip": content, "cut": content[:-8], "empty": b""}[damage])
    with pytest.warns(
        RecshufWarning, match=f"{path}: does not read back as it was written; it is fetched again"
    ) as said:
        assert load(store) == given
    assert len(said) == 1
    assert load(store) == given


def test_a_store_that_is_damaged_itself_is_named_and_not_kept(store: Path) -> None:
    (path, *_) = sorted(store.glob("sets/*.piles"))
    content = path.read_bytes()
    path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])
    with pytest.warns(RecshufWarning), pytest.raises(DamagedSetError, match=str(path)):
        load(store)
    path.write_bytes(content)
    assert load(store) == load(store, cache=None)


def test_another_store_of_the_same_path_and_name_is_read_anew(store: Path) -> None:
    load(store)
    shutil.rmtree(store)
    write(store, "a", pa.table({"id": range(2000, 3000)}))
    assert sorted(load(store)) == list(range(2000, 3000))


def test_what_a_loader_refuses_and_takes(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for options, error, message in (
        (
            {"cache": None, "cache_bytes": 5},
            UsageError,
            "cache_bytes=5: there is no cache; give its folder, too",
        ),
        ({"cache_bytes": 5}, UsageError, r"cache_bytes=5: give at least \d+ \(.* KB\), the bytes of a group"),
        ({"cache": ""}, UsageError, "cache='': give a folder, or None"),
        ({"cache_bytes": 0}, UsageError, "cache_bytes=0"),
        ({"cache_bytes": "much"}, UsageError, "'much' is not a size"),
        ({"cache": "s3://bucket/cache"}, UsageError, "give a local path here"),
        ({"cache": tmp_path / "file"}, OutputError, "is a file, not a directory; choose another cache"),
        (
            {"cache": tmp_path / "file" / "below"},
            OutputError,
            "is a file, not a directory; choose another cache",
        ),
    ):
        with pytest.raises(error, match=message):
            load(store, **options)
    assert load(store, cache_bytes="1MB") == load(store, cache=None)
    needed = []
    for mix in (1, 2):
        with pytest.raises(UsageError, match="the bytes of a group") as refused:
            load(store, cache_bytes=5, mix=mix)
        needed += map(int, re.findall(r"at least (\d+)", str(refused.value)))
    assert needed[1] == 2 * needed[0]
    (tmp_path / "in.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in range(100)))
    loader = recshuf.PileLoader.from_files(
        tmp_path / "in.jsonl",
        10,
        cache=tmp_path / "stores",
        local_cache=tmp_path / "near",
        cache_bytes="1MB",
        piles=2,
    )
    assert sorted(ids_of(loader)) == list(range(100))
    assert len(list((tmp_path / "near").glob("recshuf-regions/*/*.*/*"))) == 2
    sent = pickle.loads(pickle.dumps(RegionCache(tmp_path / "near", 10**6)))
    assert sent.most_bytes == 10**6
