"""A container of Azure: conditions hold, faults are overcome or told, blocks are invisible until committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from recshuf.errors import MissingInputError, OutputError, UsageError
from recshuf.interfaces import Stamp
from recshuf.storage import requests
from recshuf.storage.reading.stores import ObstoreStore
from recshuf.storage.settings import StorageOptions
from recshuf.storage.urls import Url
from recshuf.storage.writing.azure import AzureBucket
from recshuf.storage.writing.bucket import Conflict, Match, MissingUpload

if TYPE_CHECKING:
    from tests.support.objects.azure_buckets import AzureTestBucket


@pytest.fixture
def store(azure_bucket: AzureTestBucket, monkeypatch: pytest.MonkeyPatch) -> AzureBucket:
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0.001)
    return AzureBucket(azure_bucket.name, StorageOptions())


def test_an_object_is_made_once_and_replaced_only_as_it_was(store: AzureBucket):
    etag = store.put("a", b"one", Match())
    assert store.read("a") == (b"one", etag)
    assert [(one.key, one.byte_count, one.etag) for one in store.list("")] == [("a", 3, etag)]
    for match in (Match(), Match("0x7")):
        with pytest.raises(Conflict):
            store.put("a", b"two", match)
    with pytest.raises(Conflict):
        store.put("none", b"two", Match(etag))
    store.put("a", b"two", Match(etag))
    assert (store.read("a") or [None])[0] == b"two"
    assert store.read("none") is None


@pytest.mark.parametrize("match", ["new", "old"])
def test_a_put_whose_reply_is_lost_has_succeeded(
    azure_bucket: AzureTestBucket, store: AzureBucket, match: str
):
    old = None if match == "new" else store.put("a", b"old", Match())
    azure_bucket.proxy.lose_reply("PUT .*/a")
    etag = store.put("a", b"mine", Match(old))
    assert store.read("a") == (b"mine", etag)


def test_a_store_that_is_busy_is_asked_again(azure_bucket: AzureTestBucket, store: AzureBucket):
    azure_bucket.proxy.answer("PUT ", 503, "ServerBusy", times=2)
    azure_bucket.proxy.reset("PUT ", times=1)
    store.put("a", b"one", Match())
    assert azure_bucket.read("a") == b"one"
    assert (store.requests.count, store.requests.retries) == (4, 3)


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (
            403,
            "AuthenticationFailed",
            r"access is denied \((AuthenticationFailed|403)\); check the credentials",
        ),
        (503, "ServerBusy", r"the store is busy \((ServerBusy|503)\), after 8 attempts; run again later"),
        (
            418,
            "Teapot",
            "the store answers (Teapot|418): .*; check the URL, --endpoint-url and the credentials",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    azure_bucket: AzureTestBucket, store: AzureBucket, status: int, code: str, said: str
):
    azure_bucket.proxy.answer("", status, code, times=100)
    calls = [
        lambda: store.put("k", b"", Match()),
        lambda: store.read("k"),
        lambda: list(store.list("k")),
        lambda: store.send_part("k", "id-", 1, b"x"),
        lambda: store.find_token("k"),
        lambda: store.delete(["k"]),
    ]
    for call in calls:
        with pytest.raises(OutputError, match=rf"^az://{azure_bucket.name}/k: {said}") as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("cuts", ["dropped", "closed"])
def test_an_answer_whose_body_is_cut_is_asked_for_again_and_then_told_in_a_line(
    azure_bucket: AzureTestBucket, store: AzureBucket, cuts: str
):
    for call in (lambda: store.read("k"), lambda: list(store.list("k"))):
        whole: object = call()
        azure_bucket.proxy.cut_body("", 2, cuts)
        assert call() == whole
        azure_bucket.proxy.cut_body("", 100, cuts)
        with pytest.raises(
            OutputError, match=rf"^az://{azure_bucket.name}/k: the store cannot be reached: .*"
        ) as told:
            call()
        assert "\n" not in str(told.value)
        azure_bucket.proxy.clear()


def test_a_container_that_does_not_exist_is_told(store: AzureBucket):
    store = AzureBucket("no-such-container", StorageOptions())
    for call in (lambda: store.put("k", b"x", Match()), lambda: list(store.list("k"))):
        with pytest.raises(
            OutputError, match=r"^az://no-such-container: there is no such container; create it"
        ):
            call()


def test_an_unknown_account_and_option_are_told(monkeypatch: pytest.MonkeyPatch):
    for name in ("NAME", "KEY"):
        monkeypatch.delenv(f"AZURE_STORAGE_ACCOUNT_{name}", raising=False)
    with pytest.raises(UsageError, match="az://: the account is unknown; set AZURE_STORAGE_ACCOUNT_NAME"):
        AzureBucket("c", StorageOptions())
    with pytest.raises(UsageError, match="--storage-option colour: is not taken for outputs in az://"):
        AzureBucket("c", StorageOptions(None, {"colour": "blue"}))
    AzureBucket("c", StorageOptions(None, {"azure_storage_account_name": "a", "account_key": "a2V5"}))


def test_a_key_that_is_no_base64_is_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "a")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "secret!")
    with pytest.raises(
        UsageError, match=r"^az://: the account key is no base64; check AZURE_STORAGE_A"
    ) as told:
        AzureBucket("c", StorageOptions())
    assert "secret" not in str(told.value)


def test_a_container_of_inputs_that_does_not_exist_is_told(store: AzureBucket):
    inputs = ObstoreStore(Url.parse("az://no-such-container/"), StorageOptions())
    for ask in (lambda: inputs.list("a/"), lambda: inputs.get("k", 0, 1, Stamp(1))):
        with pytest.raises(
            MissingInputError, match=r"^az://no-such-container: there is no such container; ch"
        ):
            ask()


def test_an_upload_is_seen_when_it_is_completed(azure_bucket: AzureTestBucket, store: AzureBucket):
    upload, bodies = store.begin_upload("a", "token", Match()), [bytes(1 << 20), b"end"]
    parts = [store.send_part("a", upload, number, body) for number, body in enumerate(bodies, 1)]
    size = sum(map(len, bodies))
    assert store.is_whole("a", upload, parts, size)
    assert not store.is_whole("a", upload, parts, size + 1)
    assert not store.is_whole("a", upload, parts[:1], size)
    assert azure_bucket.list_keys() == []
    assert store.find_token("a") is None
    store.complete_upload("a", upload, parts, Match())
    assert azure_bucket.read("a") == b"".join(bodies)
    assert store.find_token("a") == "token"
    with pytest.raises(MissingUpload):
        store.is_whole("a", upload, parts, size)
    store.abort_upload("a", upload)
    assert azure_bucket.list_keys() == ["a"]


def test_an_upload_may_have_no_bytes(azure_bucket: AzureTestBucket, store: AzureBucket):
    upload = store.begin_upload("a", "token", Match())
    parts = [store.send_part("a", upload, 1, b"")]
    assert store.is_whole("a", upload, parts, 0)
    store.complete_upload("a", upload, parts, Match())
    assert azure_bucket.read("a") == b""
    assert store.find_token("a") == "token"


@pytest.mark.parametrize("old", [False, True])
def test_an_upload_replaces_only_what_it_may(azure_bucket: AzureTestBucket, store: AzureBucket, old: bool):
    match = Match(store.put("a", b"old", Match())) if old else Match()
    upload = store.begin_upload("a", "token", match)
    parts = [store.send_part("a", upload, 1, b"mine")]
    store.complete_upload("a", upload, parts, match)
    assert azure_bucket.read("a") == b"mine"
    upload = store.begin_upload("a", "token", match)
    parts = [store.send_part("a", upload, 1, b"again")]
    with pytest.raises(Conflict):
        store.complete_upload("a", upload, parts, match)
    assert azure_bucket.read("a") == b"mine"


def test_blocks_that_others_removed_are_missing(azure_bucket: AzureTestBucket, store: AzureBucket):
    first, second = (store.begin_upload("a", "token", Match()) for _ in range(2))
    parts = {upload: [store.send_part("a", upload, 1, b"mine")] for upload in (first, second)}
    assert store.is_whole("a", first, parts[first], 4)
    store.complete_upload("a", second, parts[second], Match())
    azure_bucket.delete("a")
    with pytest.raises(MissingUpload):
        store.complete_upload("a", first, parts[first], Match())
    with pytest.raises(MissingUpload):
        store.is_whole("a", first, parts[first], 4)


def test_an_object_is_deleted_as_it_was(azure_bucket: AzureTestBucket, store: AzureBucket):
    old = store.put("a", b"one", Match())
    new = store.put("a", b"two", Match(old))
    store.delete_if("a", old)
    assert azure_bucket.list_keys() == ["a"]
    store.delete_if("a", new)
    store.delete_if("none", new)
    store.delete(["none"])
    assert azure_bucket.list_keys() == []
