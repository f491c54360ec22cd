"""The choice of the store that inputs are read from: its server, and what is said of a wrong choice."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING

import pytest

from recshuf.errors import InputError, UsageError
from recshuf.storage import requests
from recshuf.storage.reading.stores import ObstoreStore
from recshuf.storage.settings import StorageOptions
from recshuf.storage.urls import Url
from recshuf.storage.writing.buckets import open_bucket
from recshuf.storage.writing.s3 import S3Bucket
from tests.support.objects.s3_server import PAGE_KEYS

if TYPE_CHECKING:
    from tests.support.objects.object_server import Bucket, ProxiedRequest


pytestmark = pytest.mark.usefixtures("s3_credentials")

PRIVATE = "https://bucket.vpce-1a2b-3c4d.s3.us-east-1.vpce.amazonaws.com"


@pytest.mark.parametrize(
    ("endpoint_url", "variables", "expected"),
    [
        (PRIVATE, {}, PRIVATE),
        (None, {"AWS_ENDPOINT_URL": PRIVATE}, PRIVATE),
        (None, {"AWS_REGION": "eu-west-1"}, "https://s3.eu-west-1.amazonaws.com"),
        (None, {"AWS_REGION": "cn-north-1"}, "https://s3.cn-north-1.amazonaws.com.cn"),
        (
            None,
            {"AWS_REGION": "us-east-2", "AWS_USE_FIPS_ENDPOINT": "true"},
            "https://s3-fips.us-east-2.amazonaws.com",
        ),
        (
            None,
            {"AWS_REGION": "us-east-2", "AWS_USE_DUALSTACK_ENDPOINT": "true"},
            "https://s3.dualstack.us-east-2.amazonaws.com",
        ),
    ],
)
def test_inputs_are_read_from_the_server_that_outputs_are_written_to(
    monkeypatch: pytest.MonkeyPatch, endpoint_url: str | None, variables: dict[str, str], expected: str
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    options = StorageOptions(endpoint_url)
    read = ObstoreStore(Url.parse("s3://bucket/"), options)._store.config["endpoint"]
    written = S3Bucket("bucket", options)._client.meta.endpoint_url
    assert read == written == expected


WAYS = (partial(ObstoreStore, Url.parse("s3://bucket/")), partial(S3Bucket, "bucket"))
"""Open a bucket to read and to write."""


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", None])
@pytest.mark.parametrize("url", ["127.0.0.1:9000", "host", "ftp://host", "http://", "http://host:port"])
def test_an_endpoint_that_is_no_url_of_a_server_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, variable: str | None
):
    if variable:
        monkeypatch.setenv(variable, url)
    said = f"^{variable or '--endpoint-url'}: .*{url}.*; give one of http:// or https://, such as http://127"
    for open_it in WAYS:
        with pytest.raises(UsageError, match=said):
            open_it(StorageOptions(None if variable else url))


def test_an_empty_endpoint_is_refused():
    with pytest.raises(UsageError, match=r"^--endpoint-url: '' is no URL of a server"):
        StorageOptions("")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"secret_access_key": "S"}, "secret_access_key: access_key_id is missing"),
        ({"aws_access_key_id": "S"}, "access_key_id: secret_access_key is missing"),
        ({"session_token": "S"}, "session_token: access_key_id and secret_access_key are missing"),
        ({"token": "S", "access_key_id": "A"}, "access_key_id: secret_access_key is missing"),
    ],
)
def test_options_that_are_a_part_of_credentials_are_refused(given: dict[str, str], said: str):
    for open_it in WAYS:
        with pytest.raises(UsageError, match=f"^--storage-option {said}; give access_key_id and"):
            open_it(StorageOptions(None, given))


def test_variables_that_are_a_part_of_credentials_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for open_it in WAYS:
        with pytest.raises(
            UsageError, match=r"^s3://: the credentials are incomplete: .*; set AWS_ACCESS_KEY_ID"
        ):
            open_it(StorageOptions())


def test_a_storage_option_that_is_not_known_is_named_once_with_those_that_are():
    with pytest.raises(
        UsageError,
        match=r"^--storage-option regoin: is not taken for s3:// here; known are .* skip_signature$",
    ):
        ObstoreStore(Url.parse("s3://bucket/"), StorageOptions(None, {"regoin": "eu-west-1"}))


def test_an_option_of_public_inputs_is_refused_for_outputs_with_the_remedy():
    options = StorageOptions(None, {"skip_signature": "true"})
    ObstoreStore(Url.parse("s3://bucket/"), options)
    with pytest.raises(
        UsageError, match=r"for the bucket of the inputs alone, s3://BUCKET:skip_signature=true$"
    ):
        S3Bucket("bucket", options)
    url = Url.parse("s3://out/")
    for given in ({"s3://in:skip_signature": "true"}, {"skip_signature": "false"}):
        open_bucket(url, StorageOptions(None, given), url.key)


def test_an_account_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(UsageError, match=r"^az://: the account is unknown; set AZURE_STORAGE_ACCOUNT_NAME$"):
        ObstoreStore(Url.parse("az://container/"), StorageOptions())


@pytest.mark.parametrize("key", ["a/tab\tx", "a/./x", "a/../x", "a//x"])
def test_a_key_that_cannot_be_read_is_told_in_a_line_with_a_remedy(s3_bucket: Bucket, key: str):
    s3_bucket.put("a/good/x", b"x")
    s3_bucket.put(key, b"x")
    store = ObstoreStore(Url.parse(f"{s3_bucket.url}/"), StorageOptions())
    for ask in (partial(store.list, "a/"), partial(store.find, key)):
        with pytest.raises(
            InputError, match=r"has a key that cannot be read: .*; (leave out a slash, or )?rename the object"
        ) as told:
            ask()
        assert str(told.value).isprintable()
    assert [one.key for one in store.list("a/good/")] == ["a/good/x"]


def test_a_store_that_lists_its_first_page_for_ever_is_told(bucket: Bucket):
    def forget(one: ProxiedRequest) -> bool:
        one.path = re.sub("&?continuation-token=[^&]*", "", one.path)
        return False

    for number in range(PAGE_KEYS + 1):
        bucket.put(f"in/{number}", b"x")
    url = Url.parse(f"{bucket.url}/in/")
    assert len(ObstoreStore(url, StorageOptions()).list(url.key)) == PAGE_KEYS + 1
    bucket.proxy.add("GET .*list-type", forget, 10**6)
    with pytest.raises(
        InputError, match=rf"^{url}: the store lists its keys again and again; check --endpoint-url$"
    ):
        ObstoreStore(url, StorageOptions()).list(url.key)


@pytest.mark.parametrize("code", ["SlowDown", "RequestTimeout"])
def test_a_request_that_the_store_took_no_time_for_is_tried_again(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, code: str
):
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0.001)
    bucket.put("a", b"one")
    store = ObstoreStore(Url.parse(f"{bucket.url}/a"), StorageOptions())
    status = {"SlowDown": 503, "RequestTimeout": 400}[code]
    bucket.proxy.answer("GET .*", status, code, times=2)
    ((_, stamp),) = store.list("")
    bucket.proxy.answer("GET .*/a", status, code, times=2)
    assert bytes(store.get("a", 0, 3, stamp)) == b"one"
    assert store.requests.retries == 4
    bucket.proxy.answer("GET .*/a", status, code, times=100)
    with pytest.raises(
        InputError, match=rf"/a: the store is busy \({code}\), after 8 attempts; run again later$"
    ):
        store.get("a", 0, 3, stamp)
