"""A container of Azure as it is written to."""

import os
import time
from datetime import UTC, datetime, timedelta

import pytest

from recshuf.errors import MissingInputError, UsageError
from recshuf.interfaces import Stamp
from recshuf.storage import StorageOptions, Url
from recshuf.storage.reading.stores import ObstoreStore
from recshuf.storage.writing import Match, MissingUpload
from recshuf.storage.writing.azure import AzureBucket
from tests.support.objects.bucket_suite import BucketSuite, upload
from tests.support.objects.other_buckets import ACCOUNT, ACCOUNT_KEY, AzureTestBucket


@pytest.fixture
def bucket(
    azure_bucket: AzureTestBucket, no_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> AzureTestBucket:
    # The library sleeps when the body of an answer is cut.
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return azure_bucket


@pytest.fixture
def store(bucket: AzureTestBucket) -> AzureBucket:
    return AzureBucket(bucket.name, StorageOptions())


class TestAzure(BucketSuite):
    put_request = "PUT .*/a([?]|$)"
    other_etag = "0x7"
    busy = (503, "ServerBusy")
    lists_uploads = False
    refusals = (
        (403, "AuthenticationFailed", r"access is denied \((AuthenticationFailed|403)\); check the cred"),
        (503, "ServerBusy", r"the store is busy \((ServerBusy|503)\), after 8 attempts; run again later"),
        (418, "Teapot", "the store answers (Teapot|418): .*; check the URL, the endpoint URL and the cred"),
    )

    def open_missing(self) -> AzureBucket:
        return AzureBucket("no-such-container", StorageOptions())

    @pytest.mark.skip(reason="blocks that are not committed expire, and cannot be aborted")
    def test_an_aborted_upload_is_missing(self):
        """See below for blocks that others removed."""


def test_an_unknown_account_and_option_are_told(monkeypatch: pytest.MonkeyPatch):
    for name in ("NAME", "KEY"):
        monkeypatch.delenv(f"AZURE_STORAGE_ACCOUNT_{name}", raising=False)
    for open_it in (
        lambda: AzureBucket("c", StorageOptions()),
        lambda: ObstoreStore(Url.parse("az://c/"), StorageOptions()),
    ):
        with pytest.raises(
            UsageError, match=r"^az://: the account is unknown; set AZURE_STORAGE_ACCOUNT_NAME$"
        ):
            open_it()
    with pytest.raises(UsageError, match="--storage-option colour: is not taken for outputs in az://"):
        AzureBucket("c", StorageOptions(None, {"colour": "blue"}))
    AzureBucket("c", StorageOptions(None, {"azure_storage_account_name": "a", "account_key": "a2V5"}))


def test_a_signature_is_taken_in_place_of_a_key(bucket: AzureTestBucket, monkeypatch: pytest.MonkeyPatch):
    from azure.storage.blob import generate_container_sas

    endpoint = os.environ["AZURE_STORAGE_ENDPOINT"]
    for name in ("STORAGE_ACCOUNT_NAME", "STORAGE_ACCOUNT_KEY", "STORAGE_ENDPOINT"):
        monkeypatch.delenv(f"AZURE_{name}")
    until = datetime.now(UTC) + timedelta(hours=1)
    key = generate_container_sas(
        ACCOUNT, bucket.name, account_key=ACCOUNT_KEY, permission="rcwd", expiry=until
    )
    options = StorageOptions(endpoint, {"account_name": ACCOUNT, "sas_key": key})
    AzureBucket(bucket.name, options).put("a", b"one", Match())
    inputs = ObstoreStore(Url.parse(f"{bucket.url}/"), options)
    assert bytes(inputs.get("a", 0, 3, inputs.find("a") or Stamp())) == b"one"


def test_a_key_that_is_no_base64_is_refused_at_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "a")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "secret!")
    with pytest.raises(UsageError, match=r"^az://: the account key is no base64; check AZURE_STO") as told:
        AzureBucket("c", StorageOptions())
    assert "secret" not in str(told.value)


def test_a_container_of_inputs_that_does_not_exist_is_told(bucket: AzureTestBucket):
    inputs = ObstoreStore(Url.parse("az://no-such-container/"), StorageOptions())
    for ask in (lambda: inputs.list("a/"), lambda: inputs.get("k", 0, 1, Stamp(1))):
        with pytest.raises(MissingInputError, match=r"^az://no-such-container: there is no such container"):
            ask()


def test_blocks_that_others_removed_are_missing(bucket: AzureTestBucket, store: AzureBucket):
    (first, parts), (second, others) = upload(store, [b"mine"]), upload(store, [b"mine"])
    assert store.is_whole("a", first, parts, 4)
    store.complete_upload("a", second, others, Match())
    bucket.delete("a")
    with pytest.raises(MissingUpload):
        store.complete_upload("a", first, parts, Match())
    with pytest.raises(MissingUpload):
        store.is_whole("a", first, parts, 4)
