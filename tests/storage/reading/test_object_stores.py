"""Objects of each store as they are read: the bytes that were asked for, of the version that was listed, or an error."""

import pickle
import re
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from recshuf.errors import ForbiddenInputError, InputError, UnavailableInputError
from recshuf.interfaces import Stamp
from recshuf.storage import StorageOptions, Url, requests
from recshuf.storage.reading.objects import Stores
from recshuf.storage.reading.stores import ObstoreStore
from recshuf.storage.requests import ATTEMPTS, ChangedObject, MissingObject
from tests.support.objects.object_outputs import STORES, AnyBucket, shuffle
from tests.support.objects.object_server import Bucket

pytestmark = pytest.mark.usefixtures("no_pauses")

OBJECT = r"GET .*/a\b"
UNREADABLE = "has a key that cannot be read: "


def open_store(bucket: AnyBucket) -> ObstoreStore:
    return ObstoreStore(Url.parse(f"{bucket.url}/"), StorageOptions())


def find(store: ObstoreStore, key: str = "a") -> Stamp:
    stamp = store.find(key)
    assert stamp is not None
    return stamp


def test_a_listing_has_what_is_below_a_prefix_with_the_stamps_of_single_answers(any_bucket: AnyBucket):
    for key in ("a", "a/b", "a/c/d", "ab", "b/a/e"):
        any_bucket.put(key, key.encode())
    store = open_store(any_bucket)
    listed = {one.key: one.stamp for one in store.list("a/")}
    assert {key: stamp.size for key, stamp in listed.items()} == {"a/b": 3, "a/c/d": 5}
    for key, stamp in listed.items():
        assert stamp.etag == find(store, key).etag
        assert stamp.modified_ns // 10**9 == find(store, key).modified_ns // 10**9
    assert store.list("none/") == []
    assert {one.key for one in store.list("")} == {"a", "a/b", "a/c/d", "ab", "b/a/e"}


def test_a_file_that_was_sent_to_another_process_reads_the_same(any_bucket: AnyBucket):
    any_bucket.put("a", b"content")
    url, stores = Url.parse(f"{any_bucket.url}/a"), Stores(StorageOptions(), 1 << 28, 2)
    file = stores.make_file(str(url), url, find(open_store(any_bucket)))
    assert pickle.loads(pickle.dumps(file)).open().read_at(2, 9) == b"ntent"


def test_a_store_that_sends_its_first_page_for_ever_is_told(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    import obstore

    bucket.put("a/b", b"content")
    store, pages = open_store(bucket), obstore.list
    monkeypatch.setattr(obstore, "list", lambda *given, **options: [*pages(*given, **options)] * 50)
    with pytest.raises(InputError, match="lists its keys again and again; check the endpoint URL"):
        store.list("a/")


def test_another_version_is_no_answer_whatever_its_size(any_bucket: AnyBucket):
    any_bucket.put("a", b"one")
    store = open_store(any_bucket)
    stamp = find(store)
    for content in (b"two", b"longer"):
        any_bucket.put("a", content)
        with pytest.raises(ChangedObject):
            store.get("a", 0, 1, stamp)
        assert find(store).etag != stamp.etag
    any_bucket.delete("a")
    assert store.find("a") is None
    # Azure compares ETags first.
    with pytest.raises(ChangedObject if any_bucket.url.startswith("az") else MissingObject):
        store.get("a", 0, 1, stamp)


def test_a_store_that_ignores_conditions_gives_no_bytes_of_another_size(bucket: Bucket):
    bucket.put("a", b"one")
    store = open_store(bucket)
    stamp = find(store)
    bucket.put("a", b"longer")
    bucket.proxy.ignore_conditions("GET")
    with pytest.raises(ChangedObject):
        store.get("a", 0, 1, stamp)


@pytest.mark.parametrize("cuts", ["stated", "dropped"])
def test_a_short_reply_is_asked_for_again_and_then_told(any_bucket: AnyBucket, cuts: str):
    any_bucket.put("a", b"content")
    store = open_store(any_bucket)
    stamp = find(store)
    any_bucket.proxy.cut_body(OBJECT, 2, cuts)
    any_bucket.proxy.reset(OBJECT)
    assert bytes(store.get("a", 0, 7, stamp)) == b"content"
    assert store.requests.retries == 3
    assert store.requests.read_sizes == [7]
    any_bucket.proxy.cut_body(OBJECT, 100, cuts)
    with pytest.raises(UnavailableInputError, match=rf"^{any_bucket.url}/a: the store cannot be reached: .*"):
        store.get("a", 0, 7, stamp)
    assert store.requests.retries == 3 + ATTEMPTS - 1
    store.requests.patience = -1.0
    with pytest.raises(UnavailableInputError):
        store.get("a", 0, 7, stamp)
    assert store.requests.retries == 3 + ATTEMPTS - 1


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (400, "RequestTimeout"), (429, "Too")])
def test_a_request_that_the_store_took_no_time_for_is_tried_again(bucket: Bucket, status: int, code: str):
    bucket.put("a", b"one")
    store = open_store(bucket)
    bucket.proxy.answer("GET .*", status, code, times=2)
    ((_, stamp),) = store.list("")
    bucket.proxy.answer(OBJECT, status, code, times=2)
    assert bytes(store.get("a", 0, 3, stamp)) == b"one"
    assert store.requests.retries == 4
    bucket.proxy.answer(OBJECT, status, code, times=100)
    said = rf"/a: the store is busy \({code}\), after 8 attempts; run again later$"
    with pytest.raises(UnavailableInputError, match=said):
        store.get("a", 0, 3, stamp)


def test_pauses_between_attempts_grow(monkeypatch: pytest.MonkeyPatch):
    """A busy store gets half a minute."""
    now, asked = [0.0], list[float]()

    def ask() -> None:
        asked.append(now[0])
        raise ConnectionError

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(requests, "time", clock)
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0.2)
    with pytest.raises(UnavailableInputError, match="after 8 attempts"):
        requests.Requests().call("s3://bucket/a", ask)
    pauses = [after - before for before, after in pairwise(asked)]
    assert [0.1 <= pause / 2**attempt <= 0.3 for attempt, pause in enumerate(pauses)] == [True] * 7


def test_what_is_refused_is_asked_for_once(bucket: Bucket):
    bucket.put("a", b"one")
    store = open_store(bucket)
    stamp = find(store)
    bucket.proxy.clear()
    bucket.proxy.answer("", 403, "AccessDenied", times=100)
    for ask in (partial(store.get, "a", 0, 1, stamp), partial(store.list, "")):
        with pytest.raises(ForbiddenInputError, match=r"access is denied \(AccessDenied\)"):
            ask()
    assert len(bucket.proxy.requests) == 2
    # An answer without a body: the object may be there.
    with pytest.raises(ForbiddenInputError):
        store.find("a")


# Keys that the library does not read as they are


@pytest.mark.parametrize("key", ["a/tab\tx", "a/./x", "a/../x", "a//x"])
def test_a_key_that_cannot_be_read_is_told_in_a_line_with_a_remedy(bucket: Bucket, key: str):
    bucket.put("a/good/x", b"x")
    bucket.put(key, b"x")
    store = open_store(bucket)
    for ask in (partial(store.list, "a/"), partial(store.find, key)):
        with pytest.raises(InputError, match=rf"{UNREADABLE}.*; (leave out a slash, or )?rename the") as told:
            ask()
        assert str(told.value).isprintable()
    assert [one.key for one in store.list("a/good/")] == ["a/good/x"]


@pytest.mark.parametrize("key", ["/x", "//", "d//x"])
def test_a_key_with_an_empty_part_is_refused_at_once(bucket: Bucket, tmp_path: Path, key: str):
    store = open_store(bucket)
    asks = [
        partial(store.find, key),
        partial(store.list, f"{key.removesuffix('/')}/"),
        partial(store.get, key, 0, 1, Stamp(6)),
        partial(shuffle, f"{bucket.url}/{key}", tmp_path / "out.txt", shards=None),
    ]
    for ask in asks:
        with pytest.raises(InputError, match=f"^{bucket.url}/{key}/?: {UNREADABLE}it has an empty part; le"):
            ask()
    assert bucket.proxy.requests == []


SIZES = ("absent", "empty", "full")
PAIRS = [(one, other, (one + other) % 3) for one in range(3) for other in range(3)]
"""Each two of three values together."""


@pytest.mark.parametrize(("prefix", "forms"), [("", ("/x", "x", "x/")), ("d/", ("d/x", "d/x/", "d/"))])
def test_no_record_of_a_listing_is_lost_without_a_word(bucket: Bucket, prefix: str, forms: tuple[str, ...]):
    for chosen in PAIRS:
        sizes = dict(zip(forms, (SIZES[index] for index in chosen), strict=True))
        records = {form: form.encode() for form, size in sizes.items() if size == "full"}
        for key in bucket.list_keys():
            bucket.delete(key)
        for form, size in sizes.items():
            if size != "absent":
                bucket.put(form, records.get(form, b""))
        store, others = open_store(bucket), {form for form in forms if form != form.strip("/")}
        try:
            for key, stamp in store.list(prefix):
                content = bytes(store.get(key, 0, stamp.size, stamp) if stamp.size else b"")
                assert content == records.pop(key, b"")
        except (InputError, MissingObject, ChangedObject):
            assert records.keys() & others, sizes
        else:
            assert not records, sizes


@pytest.mark.parametrize("any_bucket", STORES[:2], indirect=True)
@pytest.mark.parametrize("pattern", ["d/", "d/*"])
@pytest.mark.parametrize("others", [{}, {"d/x": b""}, {"d/x/y": b"b\n"}])
def test_an_object_with_bytes_and_a_slash_at_the_end_of_its_key_is_told(
    tmp_path: Path, any_bucket: AnyBucket, pattern: str, others: dict[str, bytes]
):
    """Listings of Azure lack what is called as their prefix."""
    for key, content in ({"d/x/": b"a\n"} | others).items():
        any_bucket.put(key, content)
    said = f"^{any_bucket.url}/d/x: {UNREADABLE}an object has it with a slash at an end; rename"
    with pytest.raises(InputError, match=said):
        shuffle(f"{any_bucket.url}/{pattern}", tmp_path / "out.txt", shards=None, format="text")


def test_a_changed_object_is_told_without_a_right_to_list(bucket: Bucket):
    bucket.put("a", b"old\n")
    store = open_store(bucket)
    stamp = find(store)
    bucket.put("a", b"new\n")
    bucket.proxy.answer("GET .*list-type", 403, "AccessDenied")
    with pytest.raises(ChangedObject):
        store.get("a", 0, 4, stamp)


def test_an_object_like_another_but_for_a_slash_is_not_lost(bucket: Bucket):
    """Stores give times in seconds."""
    bucket.put("d/x", b"a\n")
    bucket.put("d/x/", b"a\n")
    listed = bucket.server.answer("GET", f"/{bucket.name}?list-type=2", {"Authorization": "test"}, b"")[2]
    content = re.sub(rb"(?<=T)[^<]*(?=Z</LastModified>)", b"01:02:03", listed)
    bucket.proxy.add("GET .*list-type", lambda one: one.reply(200, {}, content), 1)
    with pytest.raises(InputError, match=f"^{bucket.url}/d/x: .*an object has it with a slash at an end"):
        open_store(bucket).list("d/")
