"""A bucket of Google Cloud Storage: conditions hold, faults are overcome or told, uploads are invisible until completed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.errors import OutputError, UsageError
from recshuf.storage import requests
from recshuf.storage.settings import StorageOptions
from recshuf.storage.writing import gcs
from recshuf.storage.writing.bucket import Conflict, Match, MissingUpload, OpenUpload
from recshuf.storage.writing.gcs import GcsBucket

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.support.objects.gcs_buckets import GcsTestBucket

QUANTUM = 256 << 10
CHUNK = "PUT .*upload_id"


@pytest.fixture
def store(gcs_bucket: GcsTestBucket, monkeypatch: pytest.MonkeyPatch) -> GcsBucket:
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0.001)
    return GcsBucket(gcs_bucket.name, StorageOptions(), ".scratch/")


def upload(store: GcsBucket, bodies: Sequence[bytes], match: Match | None = None) -> str:
    """Upload parts, check that they are noted, and complete the upload."""
    session = store.begin_upload("a", "token", match or Match())
    parts = [store.send_part("a", session, number, body) for number, body in enumerate(bodies, 1)]
    size = sum(map(len, bodies))
    assert store.is_whole("a", session, parts, size)
    assert not store.is_whole("a", session, parts, size + 1)
    store.complete_upload("a", session, parts, match or Match())
    return session


def test_an_object_is_made_once_and_replaced_only_as_it_was(store: GcsBucket):
    generation = store.put("a", b"one", Match())
    assert store.read("a") == (b"one", generation)
    for match in (Match(), Match("7")):
        with pytest.raises(Conflict):
            store.put("a", b"two", match)
    with pytest.raises(Conflict):
        store.put("none", b"two", Match(generation))
    store.put("a", b"two", Match(generation))
    assert (store.read("a") or [None])[0] == b"two"
    assert store.read("none") is None


@pytest.mark.parametrize("url", ["https://storage.googleapis.com/", "http://127.0.0.1/"])
def test_connections_are_kept_for_all_threads(url: str):
    bucket = GcsBucket("bucket", StorageOptions(None, {"skip_signature": "true"}), ".scratch/")
    assert bucket._session.get_adapter(url)._pool_maxsize == gcs._CONNECTIONS


def test_a_key_file_that_is_not_read_is_refused():
    options = {"google_service_account": "/nope", "skip_signature": "yes"}
    with pytest.raises(UsageError, match=r"^--storage-option service_account: contradicts skip_signature"):
        GcsBucket("bucket", StorageOptions(None, options), ".scratch/")
    with pytest.raises(
        UsageError, match=r"skip_signature: 'maybe' is neither true nor false; give one of them$"
    ):
        GcsBucket("bucket", StorageOptions(None, {"skip_signature": "maybe"}), ".scratch/")


@pytest.mark.parametrize("match", ["new", "old"])
def test_a_put_whose_reply_is_lost_has_succeeded(gcs_bucket: GcsTestBucket, store: GcsBucket, match: str):
    old = None if match == "new" else store.put("a", b"old", Match())
    gcs_bucket.proxy.lose_reply("POST .*name=a")
    assert store.read("a") == (None if old is None else (b"old", old))
    generation = store.put("a", b"mine", Match(old))
    assert store.read("a") == (b"mine", generation)


def test_a_store_that_is_busy_is_asked_again(gcs_bucket: GcsTestBucket, store: GcsBucket):
    gcs_bucket.proxy.answer("POST ", 503, "busy", times=2)
    gcs_bucket.proxy.reset("POST ", times=1)
    store.put("a", b"one", Match())
    assert gcs_bucket.read("a") == b"one"
    assert (store.requests.count, store.requests.retries) == (4, 3)


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (401, r"access is denied \(401\); check the credentials"),
        (403, r"access is denied \(403\)"),
        (503, r"the store is busy \(503\), after 8 attempts; run again later"),
        (418, "the store answers 418: .*; check the URL, --endpoint-url and the credentials, or run"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(gcs_bucket: GcsTestBucket, store: GcsBucket, status: int, said: str):
    session = store.begin_upload("k", "token", Match())
    gcs_bucket.proxy.answer("", status, "no", times=100)
    calls = [
        lambda: store.put("k", b"", Match()),
        lambda: store.read("k"),
        lambda: list(store.list("k")),
        lambda: store.begin_upload("k", "token", Match()),
        lambda: store.send_part("k", session, 1, b"x"),
        lambda: store.abort_upload("k", session),
        lambda: list(store.find_uploads("k", [OpenUpload("k", session, "")])),
        lambda: store.delete(["k"]),
    ]
    for call in calls:
        with pytest.raises(OutputError, match=rf"^gs://{gcs_bucket.name}/(k|\.scratch/.*): {said}") as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cuts", ["dropped", "closed"])
@pytest.mark.parametrize("key", ["a", "none"])
def test_every_answer_whose_body_is_cut_is_asked_for_again_and_then_told_in_a_line(
    gcs_bucket: GcsTestBucket, store: GcsBucket, key: str, cuts: str
):
    store.put("a", b"one", Match())
    for call in (lambda: store.read(key), lambda: list(store.list(key))):
        whole: object = call()
        gcs_bucket.proxy.cut_body("", 2, cuts)
        assert call() == whole
        gcs_bucket.proxy.cut_body("", 100, cuts)
        with pytest.raises(
            OutputError, match=rf"^gs://{gcs_bucket.name}/{key}: the store cannot be reached: .*"
        ) as told:
            call()
        assert "\n" not in str(told.value)
        gcs_bucket.proxy.clear()


def test_a_bucket_that_does_not_exist_is_told(store: GcsBucket):
    store = GcsBucket("no-such-bucket", StorageOptions(), "")
    for call in (lambda: store.put("k", b"x", Match()), lambda: list(store.list("k"))):
        with pytest.raises(
            OutputError, match=r"^gs://no-such-bucket: there is no such bucket; create it first"
        ):
            call()


def test_missing_credentials_and_unknown_options_are_told(
    gcs_bucket: GcsTestBucket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("GOOGLE_SKIP_SIGNATURE")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
    with pytest.raises(
        UsageError, match="no valid credentials for gs://; set GOOGLE_APPLICATION_CREDENTIALS"
    ):
        GcsBucket(gcs_bucket.name, StorageOptions(), "")
    with pytest.raises(UsageError, match="no valid credentials for gs://"):
        GcsBucket(gcs_bucket.name, StorageOptions(None, {"service_account": "/nowhere"}), "")
    with pytest.raises(UsageError, match="--storage-option colour: is not taken for outputs in gs://"):
        GcsBucket(gcs_bucket.name, StorageOptions(None, {"colour": "blue"}), "")
    GcsBucket(gcs_bucket.name, StorageOptions(None, {"google_skip_signature": "true"}), "")


def test_an_upload_is_seen_when_it_is_completed(gcs_bucket: GcsTestBucket, store: GcsBucket):
    session = store.begin_upload("a", "token", Match())
    bodies = [bytes(4 * QUANTUM), b"x" * QUANTUM + b"end"]
    parts = [store.send_part("a", session, number, body) for number, body in enumerate(bodies, 1)]
    known = [OpenUpload("a", session, ""), OpenUpload("other", session, "")]
    assert list(store.find_uploads("a", known)) == known[:1]
    assert gcs_bucket.list_keys("a") == []
    assert store.find_token("a") is None
    store.complete_upload("a", session, parts, Match())
    assert gcs_bucket.read("a") == b"".join(bodies)
    assert store.find_token("a") == "token"
    assert list(store.find_uploads("a", known)) == []
    with pytest.raises(MissingUpload):
        store.is_whole("a", session, parts, sum(map(len, bodies)))
    store.abort_upload("a", session)
    assert gcs_bucket.list_keys() == ["a"]


@pytest.mark.parametrize(
    "sizes",
    [[0], [1], [QUANTUM - 1], [QUANTUM], [QUANTUM + 1], [2 * QUANTUM, QUANTUM], [QUANTUM, QUANTUM, 7]],
)
def test_an_upload_has_the_bytes_of_its_parts(gcs_bucket: GcsTestBucket, store: GcsBucket, sizes: list[int]):
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]
    upload(store, bodies)
    assert gcs_bucket.read("a") == b"".join(bodies)
    assert store.part_sizes == sizes


@pytest.mark.parametrize("fault", ["busy", "reset", "lost"])
@pytest.mark.parametrize("number", range(4))
def test_faults_of_an_upload_are_overcome(
    gcs_bucket: GcsTestBucket, store: GcsBucket, fault: str, number: int
):
    """Requests of an upload: two parts, a question, and the completion."""
    gcs_bucket.proxy.add(CHUNK, lambda _: False, number)
    {
        "busy": lambda: gcs_bucket.proxy.answer(CHUNK, 503, "busy"),
        "reset": lambda: gcs_bucket.proxy.reset(CHUNK),
        "lost": lambda: gcs_bucket.proxy.lose_reply(CHUNK),
    }[fault]()
    bodies = [b"x" * QUANTUM, b"y" * (QUANTUM + 5)]
    try:
        upload(store, bodies)
    except MissingUpload:
        assert fault == "lost"  # the completion was done
    assert gcs_bucket.read("a") == b"".join(bodies)
    assert store.find_token("a") == "token"


@pytest.mark.parametrize("old", [False, True])
def test_an_upload_does_not_replace_an_object(gcs_bucket: GcsTestBucket, store: GcsBucket, old: bool):
    match = Match(store.put("a", b"old", Match())) if old else Match()
    session = store.begin_upload("a", "token", match)
    parts = [store.send_part("a", session, 1, b"mine")]
    gcs_bucket.put("a", b"theirs")
    with pytest.raises(Conflict):
        store.complete_upload("a", session, parts, match)
    assert gcs_bucket.read("a") == b"theirs"
    with pytest.raises(Conflict):
        store.begin_upload("a", "token", match)


def test_an_upload_replaces_an_object_that_is_as_it_was(gcs_bucket: GcsTestBucket, store: GcsBucket):
    upload(store, [b"new"], Match(store.put("a", b"old", Match())))
    assert gcs_bucket.read("a") == b"new"


def test_an_aborted_upload_is_missing(gcs_bucket: GcsTestBucket, store: GcsBucket):
    session = store.begin_upload("a", "token", Match())
    part = store.send_part("a", session, 1, b"x" * (QUANTUM + 1))
    store.abort_upload("a", session)
    store.abort_upload("a", session)
    assert gcs_bucket.list_uploads() == gcs_bucket.list_keys() == []
    for call in (
        lambda: store.complete_upload("a", session, [part], Match()),
        lambda: store.send_part("a", session, 2, bytes(QUANTUM)),
        lambda: store.is_whole("a", session, [part], QUANTUM + 1),
    ):
        with pytest.raises(MissingUpload):
            call()


def test_an_upload_without_its_tail_is_not_whole(gcs_bucket: GcsTestBucket, store: GcsBucket):
    session = store.begin_upload("a", "token", Match())
    part = store.send_part("a", session, 1, b"x")
    gcs_bucket.delete(gcs_bucket.list_keys(".scratch/")[0])
    assert not store.is_whole("a", session, [part], 1)
    with pytest.raises(MissingUpload):
        store.complete_upload("a", session, [part], Match())


def test_objects_are_deleted_and_listed_beyond_a_page(gcs_bucket: GcsTestBucket, store: GcsBucket):
    keys = [f"a/{number:04d} #?" for number in range(110)]
    for key in keys:
        gcs_bucket.put(key, b"x")
    assert [(one.key, one.byte_count) for one in store.list("a/")] == [(key, 1) for key in keys]
    store.delete([*keys[3:], "none"])
    assert [one.key for one in store.list("a/")] == keys[:3]


def test_an_object_is_deleted_as_it_was(gcs_bucket: GcsTestBucket, store: GcsBucket):
    old = store.put("a", b"one", Match())
    new = store.put("a", b"two", Match(old))
    store.delete_if("a", old)
    assert gcs_bucket.list_keys() == ["a"]
    store.delete_if("a", new)
    store.delete_if("none", new)
    assert gcs_bucket.list_keys() == []
