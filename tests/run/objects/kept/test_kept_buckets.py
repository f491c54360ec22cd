"""Kept stores in buckets: what is written and read there is what a store on a disk gives."""

import itertools
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import recshuf
from recshuf.errors import BusyNameError, OutputError, PileError, UsageError, UsedNameError
from recshuf.piles.kept.bucket import StoreBucket
from recshuf.piles.kept.upkeep import verify_store
from recshuf.storage.writing import StoredObject
from tests.support.numbered_files import SUFFIXES, make_inputs
from tests.support.objects.object_outputs import AnyBucket
from tests.support.processes.deaths import fork, join
from tests.support.stores.small_stores import ids_of, write

pytestmark = pytest.mark.usefixtures("no_pauses")
ROWS = 500
TABLE = pa.table({"id": range(50)})


@pytest.mark.parametrize("name", ["parquet", "text"])
def test_a_store_in_a_bucket_is_gathered_and_loaded_as_one_on_a_disk(
    tmp_path: Path, bucket: AnyBucket, name: str
) -> None:
    url, suffix = f"{bucket.url}/some/store", SUFFIXES[name]
    inputs = make_inputs(tmp_path / "in", name, (ROWS,))
    for place in (str(tmp_path / "store"), url):
        recshuf.scatter(inputs, place, seed=5, piles=7)
        recshuf.gather(place, tmp_path / f"out-{place == url}{suffix}")
    outputs = [(tmp_path / f"out-{is_url}{suffix}").read_bytes() for is_url in (False, True)]
    assert outputs[0] == outputs[1]
    for epoch in (0, 1):
        batches = [read_batches(place, epoch) for place in (tmp_path / "store", url)]
        assert batches[0] == batches[1]
    kept = pc.field("_id", "row") < ROWS // 3
    local, far = [read_batches(place, 1, filter=kept) for place in (tmp_path / "store", url)]
    assert local == far
    stores = [recshuf.PileStore(place) for place in (tmp_path / "store", url)]
    local, far = [one.take(ids=one.take([3, -1], columns=["_id"])["_id"]) for one in stores]
    assert local == far
    assert local.to_pylist() == [stores[1][3], stores[1][len(stores[1]) - 1]]


def test_a_writer_that_has_uploaded_nothing_asks_nothing_when_it_is_left(bucket: AnyBucket) -> None:
    """At the exit of the interpreter, when most are left, no request can be made."""
    writer = recshuf.PileWriter(f"{bucket.url}/store", "a", seed=5, piles=4, buffer_bytes=1)
    writer.write(TABLE)
    bucket.proxy.clear()
    del writer
    assert bucket.proxy.requests == []
    write(f"{bucket.url}/store", "a", TABLE, seed=5)


def read_batches(store: Any, epoch: int, first_step: int = 0, **options: Any) -> list[Any]:
    loader = recshuf.PileLoader(store, 32, epoch=epoch, drop_last=False, output="arrow", **options)
    loader.seek(epoch, first_step)
    return [batch.to_pydict() for batch in loader]


@pytest.fixture
def url(tmp_path: Path, bucket: AnyBucket) -> str:
    """Return the URL of a store of a table."""
    recshuf.scatter(make_inputs(tmp_path / "in", "parquet", (ROWS,)), f"{bucket.url}/store", seed=5, piles=7)
    return f"{bucket.url}/store"


SETS, SNAPSHOTS = r"GET .*\.piles", r"GET .*snapshot-\d+\.json"


def test_a_store_is_opened_with_a_listing_and_read_with_a_request_a_region(
    url: str, bucket: AnyBucket
) -> None:
    bucket.proxy.clear()
    loader = recshuf.PileLoader(url, 32, drop_last=False)
    requests = bucket.requests
    assert bucket.proxy.count(requests["list"]) == 1
    assert bucket.proxy.count(SNAPSHOTS) == 1
    assert bucket.proxy.count(SETS) == 0  # the snapshot has the footer
    bucket.proxy.clear()
    state = {}
    for step, batch in enumerate(loader):
        assert batch
        if step == 8:
            state = loader.state_dict()
            break
    bucket.proxy.clear()
    loader.load_state_dict(state)
    assert next(iter(loader))
    assert bucket.proxy.count(requests["list"]) == bucket.proxy.count(SNAPSHOTS) == 0


def test_an_object_that_is_replaced_or_deleted_is_noticed(
    url: str, bucket: AnyBucket, tmp_path: Path
) -> None:
    key, name = "store/sets/scatter-00000.piles", rf"^{url}/sets/scatter-00000\.piles"
    content = bucket.read(key)
    recshuf.scatter(tmp_path / "in", f"{bucket.url}/other", seed=6, piles=7)
    other = bucket.read("other/sets/scatter-00000.piles")
    opened = recshuf.PileLoader(url, 32)
    assert len(list(opened)) == ROWS // 32
    for put, problem in (
        (bytes(len(content)), "is no complete pile set"),
        (other, "is another pile set|is no complete pile set"),
        (None, "is missing; put it back, or delete"),
    ):
        bucket.delete(key) if put is None else bucket.put(key, put)
        for loader, found in (
            (
                opened,
                "was replaced since" if put is not None else "is gone since it was opened: the snapshot",
            ),
            (recshuf.PileLoader(url, 32), problem),
        ):
            with pytest.raises(PileError, match=f"{name}: ({found})"):
                list(loader)
        with pytest.raises(PileError, match=f"{name}: ({problem})"):
            verify_store(url, lambda *_: None)
    # A loader needs no more than the regions, which are whole.
    bucket.put(key, content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])
    assert len(list(recshuf.PileLoader(url, 32))) == ROWS // 32
    with pytest.raises(PileError, match=f"{name}: its footer does not read back"):
        verify_store(url, lambda *_: None)


def test_footers_of_a_large_store_are_read_in_its_sets(
    bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket.url}/store"
    for most, count in ((1 << 20, 0), (0, 2), (1 << 20, 0)):
        monkeypatch.setattr("recshuf.piles.kept.bucket._MOST_FOOTER_BYTES", most)
        write(url, f"with-{most}-{len(bucket.list_keys())}", TABLE)
        bucket.proxy.clear()
        loader = recshuf.PileLoader(url, 50)
        assert bucket.proxy.count(SETS) == count
        assert len(list(loader)) == recshuf.PileStore(url).num_records // 50


def test_writers_at_once_are_all_in_the_store(bucket: AnyBucket) -> None:
    url = f"{bucket.url}/store"
    writers = [recshuf.PileWriter(url, f"w{number}", seed=3, piles=4) for number in range(3)]
    for writer in writers:
        writer.write(TABLE)
    # The first one has read which snapshot is the newest when the others put theirs.
    bucket.proxy.call(r"(PUT|POST) .*snapshot-000002", lambda: [writer.close() for writer in writers[1:]])
    writers[0].close()
    store = recshuf.PileStore(url)
    assert (store.snapshot, store.num_records) == (4, 150)
    assert sorted(store.sources) == ["w0", "w1", "w2"]


def test_a_name_is_that_of_one_writer(bucket: AnyBucket) -> None:
    url = f"{bucket.url}/store"
    first, second = (recshuf.PileWriter(url, "w", seed=3, piles=4) for _ in range(2))
    first.write(TABLE)
    second.write(TABLE)
    first.close()
    with pytest.raises(BusyNameError, match=rf"^{url}: another process writes 'w' into it, or has died"):
        second.close()
    with pytest.raises(UsedNameError, match=rf"^name='w': {url} has records of this name"):
        recshuf.PileWriter(url, "w")
    store = recshuf.PileStore(url)
    assert store.num_records == 50
    assert sum(len(batch["id"]) for batch in recshuf.PileLoader(url, 10)) == 50
    # The set of one that gives up may have been cleaned away, and be that of another one by then.
    late, other = (recshuf.PileWriter(url, "x") for _ in range(2))
    late.write(TABLE)
    other.write(TABLE)
    late.seal()
    bucket.delete("store/sets/x-00000.piles")
    other.seal()
    late.abort()
    assert "store/sets/x-00000.piles" in bucket.list_keys()
    other.abort()
    assert "store/sets/x-00000.piles" not in bucket.list_keys()


def test_nothing_is_seen_of_a_writer_that_ends_before_its_snapshot(
    bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket.url}/store"
    write(url, "a", TABLE)
    keys = bucket.list_keys()
    dead = recshuf.PileWriter(url, "dead")
    dead.write(pa.table({"id": range(7)}))
    dead.seal()  # uploaded
    held = dead._cleanup.pop_all()
    dead._is_open = False
    assert held
    assert bucket.list_keys() == sorted([*keys, "store/sets/dead-00000.piles"])
    assert recshuf.PileStore(url).num_records == 50
    with pytest.raises(BusyNameError, match=f"recshuf clean {url}$"):
        recshuf.PileWriter(url, "dead")
    write(url, "b", TABLE)
    assert "store/sets/dead-00000.piles" in bucket.list_keys()
    old = recshuf.PileLoader(url, 10)
    monkeypatch.setattr("recshuf.piles.kept.bucket.LEASE_SECONDS", -2)
    recshuf.compact(url, sets=1)
    assert len(bucket.list_keys("store/snapshot-")) == 1
    assert [key.rpartition("/")[2] for key in bucket.list_keys("store/sets/")] == [
        "compact-000004-000-00000.piles"
    ]
    with pytest.raises(PileError, match=rf"^{url}: has no snapshot 3; it was replaced since"):
        list(old)
    with pytest.raises(UsageError, match=rf"^{url}: has no snapshot 3; it was replaced since"):
        pickle.loads(pickle.dumps(old))


def age_sets(monkeypatch: pytest.MonkeyPatch, writer: str) -> None:
    """Have the sets of some names be old, and all snapshots new."""
    list_now = StoreBucket.list_sets

    def list_old(store: StoreBucket) -> dict[str, StoredObject]:
        found = list_now(store)
        old = {name: one._replace(modified=0.0) for name, one in found.items() if name.startswith(writer)}
        return found | old

    monkeypatch.setattr(StoreBucket, "list_sets", list_old)


def append(url: str, number: int, *, by_writer: bool) -> None:
    if by_writer:
        write(url, f"w{number}", TABLE)
        return
    with recshuf.PileStore(url).update() as update:
        update.append(TABLE, time=number)
        update.expire(records=50)


@pytest.mark.parametrize("by_writer", [True, False])
def test_each_append_makes_as_many_requests(
    bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch, *, by_writer: bool
) -> None:
    age_sets(monkeypatch, "first")
    url, counts = f"{bucket.url}/store", []
    write(url, "first", TABLE)
    bucket.delete("store/snapshot-000001.json")  # so that the oldest one has the old set
    for number in range(4):
        bucket.proxy.clear()
        append(url, number, by_writer=by_writer)
        counts.append(len(bucket.proxy.requests))
    assert counts[-2:] == counts[1:3]


def test_old_sets_stay_while_a_snapshot_between_others_refers_to_them(
    bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    age_sets(monkeypatch, "append")
    url = f"{bucket.url}/store"
    write(url, "first", TABLE)
    for number in range(2):
        append(url, number, by_writer=False)
    assert len(bucket.list_keys("store/sets/")) == 3
    monkeypatch.setattr("recshuf.piles.kept.bucket.LEASE_SECONDS", -2)
    append(url, 2, by_writer=False)
    assert len(bucket.list_keys("store/sets/")) == 1


def test_a_store_that_does_not_answer_is_told(bucket: AnyBucket) -> None:
    bucket.proxy.answer("", 503, "SlowDown", times=10**6)
    with pytest.raises(OutputError, match=rf"^{bucket.url}/store/snapshot-: the store is busy"):
        recshuf.PileLoader(f"{bucket.url}/store", 1)


def test_mixes_filters_and_sequences_come_from_buckets_as_from_disks(
    bucket: AnyBucket, tmp_path: Path
) -> None:
    """Two stores, each of two sets."""
    kinds: dict[str, Any] = {
        "mix": lambda a, b: recshuf.MixLoader({a: 1, b: 2}, 20, columns=["id"]),
        "filter": lambda a, _: recshuf.PileLoader(a, 20, filter=pc.field("id") < 100),
        "sequences": lambda a, _: recshuf.PileLoader(a, 4, epoch=1).packed(16, column="tokens"),
        "lanes": lambda a, _: recshuf.PileLoader(a, 20, epoch=2, lanes=2, rank=1, world_size=2, mix=2),
    }
    found: dict[str, list[Any]] = {}
    for place in (str(tmp_path), bucket.url):
        stores = [f"{place}/{name}" for name in "ab"]
        for store in stores:
            for name, first in (("x", 0), ("y", 1000)):
                ids = range(first, first + 150)
                records = {"id": ids, "tokens": [list(range(one % 9)) for one in ids]}
                write(store, f"{store[-1]}{name}", records, piles=5)
        found[place] = [read_some(kinds[kind](*stores)) for kind in kinds]
    assert found[str(tmp_path)] == found[bucket.url]
    assert all(found[bucket.url])


def read_some(loader: Any) -> list[Any]:
    return [
        {name: list(map(str, column)) for name, column in batch.items()}
        for batch in itertools.islice(loader, 12)
    ]


def test_whoever_makes_a_store_first_keeps_it(bucket: AnyBucket) -> None:
    """Another writer makes it before one that opens it looks for a snapshot, or when that one puts its own."""
    for number, request in enumerate((".*snapshot-", "(PUT|POST) .*snapshot-000001")):
        url, made = f"{bucket.url}/made-{number}", list[str]()

        def make(url: str = url, made: list[str] = made) -> None:
            recshuf.PileWriter(url, "a").abort()
            made.append(recshuf.PileStore(url).id)

        bucket.proxy.call(request, make)
        recshuf.PileWriter(url, "b").abort()
        assert [recshuf.PileStore(url).id] == made


def test_a_store_in_forked_children_and_threads_reads_its_own_replies(url: str) -> None:
    store, loader = recshuf.PileStore(url), recshuf.PileLoader(url, 32, drop_last=False, output="arrow")

    def take_all(_: int = 0) -> list[Any]:
        return [store.take([row]) for row in range(0, ROWS, 100)]

    expected, batches = take_all(), list(loader)
    assert list(pickle.loads(pickle.dumps(loader))) == batches

    def read_at_once() -> None:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(take_all, range(2))) == [expected, expected]
        assert list(loader) == batches

    children = [fork(read_at_once) for _ in range(2)]
    read_at_once()
    assert list(map(join, children)) == [0, 0]


def test_regions_are_asked_for_once_with_a_cache_and_what_is_kept_needs_no_bucket(
    tmp_path: Path, bucket: AnyBucket
) -> None:
    url, count = f"{bucket.url}/store", bucket.proxy.count
    places: list[Path | str] = [url, tmp_path / "store"]
    for place in places:
        write(place, "a", pa.table({"id": range(600)}), piles=6)
    given = [ids_of(recshuf.PileLoader(tmp_path / "store", 50, epoch=epoch)) for epoch in (0, 1)]

    def open_loader(**options: Any) -> recshuf.PileLoader:
        return recshuf.PileLoader(url, 50, **{"cache": tmp_path / "cache"} | options)

    half = open_loader(lanes=2, world_size=2)
    bucket.proxy.clear()
    ids_of(half)
    assert count(SETS) == 3
    loader = open_loader()
    bucket.proxy.clear()
    assert ids_of(loader) == given[0]
    assert count(SETS) == 3
    again = pickle.loads(pickle.dumps(open_loader(epoch=1)))
    for key in bucket.list_keys("store/sets/"):
        bucket.delete(key)
    bucket.proxy.clear()
    loader.set_epoch(1)
    assert ids_of(loader) == ids_of(again) == given[1]
    assert not count(SETS)
