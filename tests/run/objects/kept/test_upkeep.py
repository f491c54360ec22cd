"""Upkeep of kept stores in buckets, by the commands and by programs, and the parts of a split there."""

import base64
import itertools
import json
import os
import time
import zipfile
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recshuf
from recshuf.errors import BusyNameError, OutputError, OutputExistsError, RecshufError, UsageError
from recshuf.piles.kept.bucket import StoreRemains
from recshuf.storage import Url, parse_storage
from tests.conftest import Run
from tests.support.effort import TRIES_ALL, mostly_slow
from tests.support.objects.object_outputs import AnyBucket, put_files
from tests.support.stores.small_stores import write
from tests.support.stores.store_reader import read_footer, read_snapshot, read_store

GOLDEN = Path(__file__).parents[3] / "golden" / "stores-2.zip"
"""A store of version 2: what `make_golden` put into a bucket."""
ROWS = 60


def make_table(first: int) -> pa.Table:
    rows = range(first, first + ROWS)
    return pa.table({"id": rows, "text": [f"row {row}" for row in rows]})


def make_golden(url: str) -> None:
    for name, first in (("first", 0), ("second", ROWS)):
        write(url, name, make_table(first), seed=2**100 + 7, piles=3)


def download(bucket: AnyBucket, prefix: str, folder: Path) -> Path:
    for key in bucket.list_keys(prefix):
        path = folder / key.removeprefix(prefix)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bucket.read(key))
    return folder


def read_ids(store: Any, **options: Any) -> list[int]:
    loader = recshuf.PileLoader(store, 7, drop_last=False, **options)
    return sorted(int(one) for batch in loader for one in batch["id"])


def test_a_store_that_is_copied_opens_on_the_other_side(bucket: AnyBucket, tmp_path: Path) -> None:
    url = f"{bucket.url}/store"
    make_golden(url)
    fresh = download(bucket, "store/", tmp_path / "fresh")
    with zipfile.ZipFile(GOLDEN) as packed:
        packed.extractall(tmp_path / "golden")
    put_files(bucket, tmp_path / "golden", "golden/")
    for store in (fresh, tmp_path / "golden"):
        snapshot = read_snapshot(store)
        assert snapshot["version"] == 2
        for entry in snapshot["sets"]:  # its footer is in the snapshot, and before it there are regions only
            parts, footer = (
                read_footer((store / "sets" / f"{entry['name']}.piles").read_bytes())[1],
                entry["footer"],
            )
            assert parts[:, 2].sum() + len(base64.b64decode(footer)) == entry["file_bytes"]
        assert sorted(row.record["id"] for row in read_store(store)) == list(range(2 * ROWS))
        recshuf.gather(store, store.with_suffix(".parquet"))
    recshuf.gather(f"{bucket.url}/golden", tmp_path / "bucket.parquet")
    outputs = {name: pq.read_table(tmp_path / f"{name}.parquet") for name in ("fresh", "golden", "bucket")}
    assert outputs["fresh"] == outputs["golden"] == outputs["bucket"]
    # On a disk, it goes on as a store of a disk does, and back.
    write(fresh, "third", make_table(2 * ROWS), seed=None, piles=None)
    assert read_snapshot(fresh)["version"] == 1
    put_files(bucket, fresh, "back/")
    assert read_ids(f"{bucket.url}/back") == list(range(3 * ROWS))


@pytest.fixture
def endpoint(bucket: AnyBucket, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the address of the server, which nothing in the environment tells any more."""
    names = {"s3": "AWS_ENDPOINT_URL", "gs": "GOOGLE_BASE_URL", "az": "AZURE_STORAGE_ENDPOINT"}
    name = names[bucket.url.partition(":")[0]]
    address = os.environ[name]
    monkeypatch.delenv(name)
    return address


def test_a_window_in_a_bucket_moves(bucket: AnyBucket, endpoint: str, tmp_path: Path, call: Run) -> None:
    def do(*words: str | Path) -> Any:
        return call(*words, "--endpoint-url", endpoint)

    url = f"{bucket.url}/store"
    for number in range(3):
        pq.write_table(make_table(number * ROWS), tmp_path / f"{number}.parquet")
    assert do("scatter", tmp_path / "0.parquet", "-o", url, "--seed", "3", "-q").returncode == 0
    assert do("clean", url).stdout.decode() == f"{url}: no run left anything\n"
    for number in (1, 2):
        done = do("window", url, "--append", tmp_path / f"{number}.parquet", "--time", str(number), "-q")
        assert done.returncode == 0, done.stderr
    assert read_ids(url, endpoint_url=endpoint) == list(range(3 * ROWS))
    assert do("window", url, "--keep-records", str(2 * ROWS), "-q").returncode == 0
    assert read_ids(url, endpoint_url=endpoint) == list(range(ROWS, 3 * ROWS))
    # Who reads the snapshots before goes on: their sets stay for some days.
    assert len(bucket.list_keys("store/sets/")) == 3
    assert do("store", "compact", url, "--sets", "1", "-q").returncode == 0
    recshuf.compact(url, sets=1, storage_options={f"{bucket.url}:endpoint_url": endpoint})
    about = json.loads(do("store", "info", url, "--json").stdout)
    assert (len(about["sets"]), about["records"], about["path"]) == (1, 2 * ROWS, url)
    assert b"each read by a request" in do("store", "info", url).stdout
    done = call("store", "verify", url, "--storage-option", f"{bucket.url}:endpoint_url={endpoint}")
    assert done.stdout.decode() == f"{url}: whole, 120 records in 1 set\n"
    bucket.begin_upload("store/sets/later-00000.piles")
    assert do("store", "drop", url).returncode == 0
    assert bucket.list_keys() == []
    if bucket.lists_uploads:
        assert bucket.list_uploads() == []
    done = do("store", "info", url)
    assert done.returncode == 2
    assert f"{url}: no such pile store; make one with recshuf scatter" in done.stderr.decode()


def test_what_writers_have_left_is_named_and_removed(bucket: AnyBucket, call: Run) -> None:
    url = f"{bucket.url}/store"
    make_golden(url)
    assert call("clean", url).stdout.decode() == f"{url}: no run left anything\n"
    kept = bucket.list_keys()
    bucket.put("store/sets/dead-00000.piles", b"x")
    bucket.begin_upload("store/sets/later-00000.piles")
    told = call("clean", url).stdout.decode()
    assert f"{url}/sets/dead-00000.piles: 1 B, of " in told
    assert "no snapshot refers to it" in told
    assert "nothing was removed; give --yes to remove this; a process that still writes it fails" in told
    if bucket.lists_uploads:
        assert f"{url}/sets/later-00000.piles: open upload, begun " in told
    assert call("clean", url, "--yes").stdout.decode().endswith("removed\n")
    assert bucket.list_keys() == kept
    if bucket.lists_uploads:
        assert bucket.list_uploads() == []
    remains = StoreRemains(Url.parse(url), parse_storage(None, None))
    with recshuf.PileStore(url).update() as update:
        update.append(make_table(2 * ROWS))
        assert remains.find()
    remains.remove()  # what is committed by then stays
    assert read_ids(url) == list(range(3 * ROWS))


def test_an_upload_that_is_begun_twice_is_not_left_open(bucket: AnyBucket) -> None:
    url, other = f"{bucket.url}/store", "store/sets/a-00000.piles-00000.piles"
    bucket.begin_upload(other)
    bucket.proxy.lose_reply(bucket.requests["begin"])
    write(url, "a", make_table(0))
    assert read_ids(url) == list(range(ROWS))
    assert not bucket.lists_uploads or bucket.list_uploads() == [other]


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("fails", ["before", "after", "later"])
def test_an_append_that_may_be_in_place_is_told(bucket: AnyBucket, call: Run, fails: str) -> None:
    """The store fails when the snapshot is put: nothing arrives, it arrives without a reply, or only what follows fails."""
    url = f"{bucket.url}/store"
    make_golden(url)
    snapshot = r"(PUT|POST) .*snapshot-000004"
    if fails == "after":
        bucket.proxy.lose_reply(snapshot)
    if fails == "later":
        bucket.proxy.call(snapshot, lambda: bucket.proxy.answer("", *bucket.refusal[:2], times=10**6))
    else:
        bucket.proxy.answer(snapshot, 503, "SlowDown", times=10**6)
    told = f"; the records may be in the store all the same: see recshuf store info {url}, and write them again only"
    with pytest.raises(OutputError, match=told), recshuf.PileStore(url).update() as update:
        update.append(make_table(2 * ROWS), time=7)
    bucket.proxy.clear()
    times = [one["time"] for one in json.loads(call("store", "info", url, "--json").stdout)["sets"]]
    assert (7 in times) == (fails != "before")
    assert sum("append-" in key for key in bucket.list_keys("store/sets/")) == 1  # it may arrive yet
    if fails == "before":
        assert b"removed" in call("clean", url, "--yes").stdout
        with recshuf.PileStore(url).update() as update:
            update.append(make_table(2 * ROWS), time=7)
    assert read_ids(url) == list(range(3 * ROWS))


def test_what_is_no_store_is_left_alone(bucket: AnyBucket, tmp_path: Path, call: Run) -> None:
    bucket.put("store/other.txt", b"x")
    (tmp_path / "in.txt").write_text("a\nb\n")
    with pytest.raises(
        OutputError, match=r"store: is not a pile store, and holds 'other.txt'; choose another"
    ):
        recshuf.scatter(tmp_path / "in.txt", f"{bucket.url}/store")
    assert b"is no pile store: it holds no snapshot" in call("store", "drop", f"{bucket.url}/store").stderr
    assert bucket.list_keys() == ["store/other.txt"]
    make_golden(f"{bucket.url}/real")
    done = call(f"{bucket.url}/real", "-o", tmp_path / "out.parquet")
    assert f"real: is a pile store; write it with recshuf gather {bucket.url}/real -o" in done.stderr.decode()
    for names in ((tmp_path / "in.txt", f"{bucket.url}/real"), (f"{bucket.url}/real", tmp_path / "in.txt")):
        told = f"real: is a pile store; recshuf gather {bucket.url}/real -o OUTPUT --verify writes it and compares"
        assert told in call("verify", *names).stderr.decode()
    with pytest.raises(UsageError, match="is a whole bucket; give a prefix"):
        recshuf.scatter(tmp_path / "in.txt", bucket.url)


@pytest.mark.parametrize(
    "name", mostly_slow(["sub/", "one.txt", "sets/out/", "sets/one.txt"], "sub/", "sets/one.txt")
)
def test_a_store_with_an_output_in_it_is_not_dropped(
    bucket: AnyBucket, tmp_path: Path, call: Run, name: str
) -> None:
    """No request of a run that writes there would show that it is in a store."""
    url = f"{bucket.url}/store"
    make_golden(url)
    (tmp_path / "in.txt").write_text("a\nb\n")
    assert call(tmp_path / "in.txt", "-o", f"{url}/{name}").returncode == 0
    keys = bucket.list_keys()
    assert read_ids(url) == list(range(2 * ROWS))
    done = call("store", "drop", url)
    assert done.returncode == 1
    assert b"which is not of the store; move it away" in done.stderr
    assert bucket.list_keys() == keys


def test_files_are_cached_in_a_bucket(
    bucket: AnyBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(make_table(0), tmp_path / "in.parquet")

    def open_loader() -> recshuf.PileLoader:
        return recshuf.PileLoader.from_files(
            tmp_path / "in.parquet", 7, cache=f"{bucket.url}/cache", seed=1, drop_last=False
        )

    first, snapshots = open_loader(), bucket.list_keys("cache/")
    second = open_loader()
    assert first.state_dict() == second.state_dict()
    assert bucket.list_keys("cache/") == snapshots
    assert sum(len(batch["id"]) for batch in second) == ROWS
    # Another machine has begun to make it, and finishes while this one waits.
    contents = {key: bucket.read(key) for key in snapshots}
    snapshot = next(key for key in snapshots if "snapshot-" in key)
    bucket.delete(snapshot)
    monkeypatch.setattr(time, "sleep", lambda _: bucket.put(snapshot, contents[snapshot]))
    assert open_loader().state_dict() == first.state_dict()


def test_a_check_reads_a_store_in_a_bucket(
    bucket: AnyBucket, endpoint: str, tmp_path: Path, call: Run
) -> None:
    pq.write_table(pa.table({"id": range(1200)}), tmp_path / "in.parquet")
    scores = []
    for place in (f"{bucket.url}/store", tmp_path / "store"):
        recshuf.scatter(tmp_path / "in.parquet", place, seed=1, piles=4, endpoint_url=endpoint)
        done = call("check", "--loader", place, "--json", "--endpoint-url", endpoint)
        scores.append(json.loads(done.stdout)["scores"])
    assert scores[0] == scores[1]


# Parts of a split: as on a disk, and all of them or none


SHARES = {"train": 0.7, "val": 0.2, "none": 0.1}
RECORDS = 9
WRITES = "(PUT|POST|DELETE) "


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """Return two files; the parts have 6, 2 and 1 of their records."""
    files = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for number, file in enumerate(files):
        file.write_text("".join(f'{{"id": {row}}}\n' for row in range(number * 4, number * 5 + 4)))
    return files


def scatter(inputs: list[Path], place: Any, **options: Any) -> recshuf.ScatterReport:
    return recshuf.scatter(inputs, place, seed=11, **{"split": SHARES} | options)


def read(store: str) -> list[list[int]]:
    loader = recshuf.PileLoader(store, 1, epoch=1, columns=["_id", "id"])
    return [[int(batch["id"][0]), *batch["_id"][0].tolist()] for batch in loader]


BY_VALUE = {"split_by": "id", "split": {"train": 0.5, "val": 0.5}}


@pytest.mark.parametrize("options", [{"piles": 3}, pytest.param(BY_VALUE, marks=pytest.mark.slow)])
def test_parts_in_a_bucket_are_those_of_a_disk(
    bucket: AnyBucket, tmp_path: Path, inputs: list[Path], options: dict[str, Any]
) -> None:
    url = f"{bucket.url}/some/stores"
    found = [scatter(inputs, place, **options) for place in (tmp_path / "stores", url)]
    assert found[1].path == url
    assert [one.path for one in found[1].parts] == [f"{url}/{name}" for name in options.get("split", SHARES)]
    for local, far in zip(*(one.parts for one in found), strict=True):
        assert local.records == far.records
        outputs = []
        for store in (local.path, far.path):
            recshuf.gather(store, tmp_path / "out.jsonl", overwrite=True)
            outputs.append((tmp_path / "out.jsonl").read_bytes())
        assert outputs[0] == outputs[1]
        assert read(local.path) == read(far.path)
    # A part goes on as any store does, also without its mark.
    recshuf.compact(f"{url}/train", sets=1)
    with recshuf.PileStore(f"{url}/train").update() as update:
        update.append(inputs)
    assert recshuf.PileStore(f"{url}/train").num_records == found[0].parts[0].records + RECORDS
    assert "mark" not in bucket.read(max(bucket.list_keys("some/stores/train/snapshot-"))).decode()
    with pytest.raises(OutputExistsError, match=f"^{url}: exists already; choose another prefix"):
        scatter(inputs, url)


def test_no_part_can_be_opened_before_all_can(bucket: AnyBucket, inputs: list[Path]) -> None:
    url = f"{bucket.url}/stores"

    def look() -> None:
        bucket.proxy.clear()  # of what calls this
        for name in SHARES:
            with pytest.raises(BusyNameError, match=rf"^{url}/{name}: .* recshuf clean {url}$"):
                recshuf.PileLoader(f"{url}/{name}", 1)
            with pytest.raises(BusyNameError):
                recshuf.PileWriter(f"{url}/{name}", "w")
        with pytest.raises(BusyNameError, match=rf"^{url}: another process makes the parts"):
            scatter(inputs, url)
        looked.append(True)

    looked: list[bool] = []
    bucket.proxy.call(r"DELETE .*scatter", look)
    scatter(inputs, url)
    assert looked
    assert [len(read(f"{url}/{name}")) for name in SHARES] == [6, 2, 1]


def test_what_another_process_makes_there_meanwhile_stays(bucket: AnyBucket, inputs: list[Path]) -> None:
    def take_over() -> None:
        bucket.proxy.clear()  # of what calls this
        bucket.put("stores/.scatter", b"of another")

    bucket.proxy.call(r"GET .*scatter", take_over)
    with pytest.raises(OutputError, match="another process has deleted it meanwhile; run again"):
        scatter(inputs, f"{bucket.url}/stores")
    assert bucket.read("stores/.scatter") == b"of another"


@pytest.mark.parametrize(
    ("options", "lasts", "every"),
    [
        ({}, False, 2),
        ({}, True, 5),
        ({"split": SHARES}, False, 11),
        ({"split": SHARES}, True, 23),
        *(pytest.param({"split": SHARES}, lasts, 2, marks=pytest.mark.slow) for lasts in (False, True)),
    ],
)
def test_a_scatter_that_fails_at_any_request_leaves_all_parts_or_none(
    s3_bucket: AnyBucket, inputs: list[Path], call: Run, options: dict[str, Any], lasts: bool, every: int
) -> None:
    """A write fails once, and nothing is left; or all fails from a request on, as if the run were killed."""
    names, counts = (["/train", "/val", "/none"], [6, 2, 1]) if options else ([""], [RECORDS])
    proxy, request, failed, deaths = s3_bucket.proxy, "" if lasts else WRITES, True, 0
    for at in itertools.count(0, 1 if TRIES_ALL else every):
        url, prefix = f"{s3_bucket.url}/{at}", f"{at}/"
        proxy.call(request, lambda: None, times=at)
        proxy.answer(request, *s3_bucket.refusal[:2], times=10**6 if lasts else 1)
        with suppress(RecshufError):
            recshuf.scatter(inputs, url, seed=11, **options)
            failed = False
        proxy.clear()
        if not failed:
            break
        there, left = [is_store(f"{url}{name}") for name in names], s3_bucket.list_keys(prefix)
        assert len({*there}) == 1
        assert lasts or not left or there[0]
        if not there[0]:
            with pytest.raises(BusyNameError, match=f"recshuf clean {url}") if left else nullcontext():
                recshuf.scatter(inputs, url, seed=11, **options)
            call("clean", url, "--yes")
            if not s3_bucket.list_keys(prefix):
                recshuf.scatter(inputs, url, seed=11, **options)
        assert [len(read(f"{url}{name}")) for name in names] == counts
        assert s3_bucket.list_uploads() == []
        deaths += 1
    assert deaths >= 2


def is_store(url: str) -> bool:
    with suppress(BusyNameError, UsageError):
        recshuf.PileStore(url)
        return True
    return False
