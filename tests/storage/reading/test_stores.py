"""The store that inputs are read from: which server is asked, and what is said of a wrong choice."""

from __future__ import annotations

from functools import partial

import pytest

from recshuf.errors import UsageError
from recshuf.storage.reading.stores import ObstoreStore
from recshuf.storage.settings import StorageOptions
from recshuf.storage.urls import Url
from recshuf.storage.writing.buckets import open_bucket
from recshuf.storage.writing.s3 import S3Bucket

pytestmark = pytest.mark.usefixtures("s3_credentials")

PRIVATE = "https://bucket.vpce-1a2b-3c4d.s3.us-east-1.vpce.amazonaws.com"
WAYS = (partial(ObstoreStore, Url.parse("s3://bucket/")), partial(S3Bucket, "bucket"))
"""Open a bucket to read and to write."""


@pytest.mark.parametrize(
    ("endpoint_url", "variables", "expected"),
    [
        (PRIVATE, {}, PRIVATE),
        (None, {"AWS_ENDPOINT_URL": PRIVATE}, PRIVATE),
        (None, {"AWS_REGION": "cn-north-1"}, "https://s3.cn-north-1.amazonaws.com.cn"),
        (
            None,
            {"AWS_REGION": "us-east-2", "AWS_USE_FIPS_ENDPOINT": "true"},
            "https://s3-fips.us-east-2.amazonaws.com",
        ),
    ],
)
def test_inputs_are_read_from_the_server_that_outputs_are_written_to(
    monkeypatch: pytest.MonkeyPatch, endpoint_url: str | None, variables: dict[str, str], expected: str
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    options = StorageOptions(endpoint_url)
    # These servers cannot be asked: what the libraries were given is looked at.
    read = ObstoreStore(Url.parse("s3://bucket/"), options)._store.config["endpoint"]
    written = S3Bucket("bucket", options)._client.meta.endpoint_url
    assert read == written == expected


@pytest.mark.parametrize(
    ("url", "variable"),
    [
        ("127.0.0.1:9000", None),
        ("host", "AWS_ENDPOINT_URL"),
        ("ftp://host", None),
        ("http://", "AWS_ENDPOINT_URL"),
        ("http://host:port", None),
    ],
)
def test_an_endpoint_that_is_no_url_of_a_server_is_named(
    monkeypatch: pytest.MonkeyPatch, url: str, variable: str | None
):
    if variable:
        monkeypatch.setenv(variable, url)
    said = f"^{variable or '--endpoint-url'}: .*{url}.*; give one of http:// or https://, such as http://127"
    for open_it in WAYS:
        with pytest.raises(UsageError, match=said):
            open_it(StorageOptions(None if variable else url))


def test_a_storage_option_that_is_not_known_is_named_once_with_those_that_are():
    said = r"^--storage-option regoin: is not taken for s3:// here; known are .* skip_signature$"
    with pytest.raises(UsageError, match=said):
        ObstoreStore(Url.parse("s3://bucket/"), StorageOptions(None, {"regoin": "eu-west-1"}))


def test_an_option_of_public_inputs_is_refused_for_outputs_with_the_remedy():
    options = StorageOptions(None, {"skip_signature": "true"})
    ObstoreStore(Url.parse("s3://bucket/"), options)
    said = r"for the bucket of the inputs alone, s3://BUCKET:skip_signature=true$"
    with pytest.raises(UsageError, match=said):
        S3Bucket("bucket", options)
    url = Url.parse("s3://out/")
    for given in ({"s3://in:skip_signature": "true"}, {"skip_signature": "false"}):
        open_bucket(url, StorageOptions(None, given), url.key)
