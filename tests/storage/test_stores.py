"""The choice of the store that inputs are read from: its server, and what is said of a wrong choice."""

from __future__ import annotations

from functools import partial

import pytest

from recshuf.errors import UsageError
from recshuf.storage.s3 import S3Bucket
from recshuf.storage.settings import StorageOptions
from recshuf.storage.stores import ObstoreStore
from recshuf.storage.urls import Url
from tests.support.object_server import CREDENTIALS


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set those of no server, and no server."""
    for name in ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


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


@pytest.mark.parametrize(
    ("endpoint_url", "variables", "said"),
    [
        (
            "127.0.0.1:9000",
            {},
            "--endpoint-url: Invalid endpoint: 127.0.0.1:9000; give a URL, such as http://",
        ),
        (None, {"AWS_ENDPOINT_URL": "host"}, "AWS_ENDPOINT_URL: Invalid endpoint: host; give a URL, such as"),
    ],
)
def test_an_endpoint_that_is_no_url_is_named(
    monkeypatch: pytest.MonkeyPatch, endpoint_url: str | None, variables: dict[str, str], said: str
):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for open_it in (partial(ObstoreStore, Url.parse("s3://bucket/")), partial(S3Bucket, "bucket")):
        with pytest.raises(UsageError, match=f"^{said}"):
            open_it(StorageOptions(endpoint_url))


def test_a_storage_option_that_is_not_known_is_named_once_with_those_that_are():
    with pytest.raises(
        UsageError,
        match=r"^--storage-option regoin: is not taken for s3:// here; known are .* skip_signature$",
    ):
        ObstoreStore(Url.parse("s3://bucket/"), StorageOptions(None, {"regoin": "eu-west-1"}))


def test_an_account_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(UsageError, match=r"^az://: the account is unknown; set AZURE_STORAGE_ACCOUNT_NAME$"):
        ObstoreStore(Url.parse("az://container/"), StorageOptions())
