"""Credentials: what is wrong with them is said at once, in the same words for inputs and outputs."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import SSOTokenLoadError

from recshuf.errors import InputError, UsageError
from recshuf.storage.reading.stores import ObstoreStore, open_store
from recshuf.storage.settings import StorageOptions
from recshuf.storage.urls import Url
from recshuf.storage.writing.azure import AzureBucket
from recshuf.storage.writing.gcs import GcsBucket
from recshuf.storage.writing.s3 import S3Bucket

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.objects.object_server import Bucket

pytestmark = pytest.mark.usefixtures("s3_credentials")

WAYS = (partial(ObstoreStore, Url.parse("s3://bucket/")), partial(S3Bucket, "bucket"))
"""Open a bucket to read and to write."""
KEYS = {"access_key_id": "hidden", "secret_access_key": "hidden", "session_token": "hidden"}
NAMES = [f"AWS_{name.upper()}" for name in KEYS]


@pytest.mark.parametrize("broken", ["hidden\n", "\nhidden", "hid\rden", "hidd\u00e9n", "hid\x7fden"])
@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("way", ["option", "variable"])
def test_credentials_that_no_request_can_send_are_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: str, way: str
):
    if way == "option":
        label, options = f"--storage-option {name}", KEYS | {name: broken}
    else:
        label, options = f"AWS_{name.upper()}", {}
        monkeypatch.setenv(label, broken)
    for open_it in WAYS:
        with pytest.raises(UsageError, match=f"^{label}: has a line break or another character") as told:
            open_it(StorageOptions(None, options))
        assert str(told.value).isprintable()
        assert broken.strip() not in str(told.value)


def test_a_profile_that_no_request_can_send_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "credentials"
    path.write_text("[default]\naws_access_key_id=a\naws_secret_access_key=\u00e9\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(path))
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for open_it in WAYS:
        with pytest.raises(
            UsageError, match=r"^aws_secret_access_key of the credentials \(shared-cred.*\): has"
        ):
            open_it(StorageOptions())


BUCKETS = {
    "az": lambda options: AzureBucket("bucket", options),
    "gs": lambda options: GcsBucket("bucket", options, ".scratch/"),
}
OTHERS = [
    ("az", "account_name", "AZURE_STORAGE_ACCOUNT_NAME"),
    ("az", "account_key", "AZURE_STORAGE_ACCOUNT_KEY"),
    ("az", "azure_storage_sas_key", "AZURE_STORAGE_SAS_KEY"),
    ("az", "sas_token", "AZURE_STORAGE_SAS_TOKEN"),
    ("az", "bearer_token", "AZURE_STORAGE_TOKEN"),
    ("az", "client_secret", "AZURE_CLIENT_SECRET"),
    ("gs", "bearer_token", "GOOGLE_BEARER_TOKEN"),
    ("gs", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT"),
    ("gs", "application_credentials", "GOOGLE_APPLICATION_CREDENTIALS"),
]


@pytest.mark.parametrize("broken", ["hidden\n", "\nhidden", "hid\rden", "hid\x7fden"])
@pytest.mark.parametrize("way", ["option", "variable"])
@pytest.mark.parametrize(("scheme", "name", "variable"), OTHERS)
def test_credentials_of_azure_and_google_are_refused_in_the_same_way(
    monkeypatch: pytest.MonkeyPatch, scheme: str, name: str, variable: str, way: str, broken: str
):
    label, options = f"--storage-option {name}", {name: broken}
    if way == "variable":
        label, options = variable, {}
        monkeypatch.setenv(variable, broken)
    for open_it in (partial(ObstoreStore, Url.parse(f"{scheme}://bucket/")), BUCKETS[scheme]):
        with pytest.raises(UsageError, match=f"^{label}: has a line break or another") as told:
            open_it(StorageOptions(None, options))
        assert str(told.value).isprintable()
        assert broken.strip() not in str(told.value)


def test_a_token_of_the_hub_is_refused_and_not_shown():
    options = StorageOptions(None, {"token": "hid\nden"})
    with pytest.raises(UsageError, match=r"^--storage-option token: has a line break .*$") as told:
        open_store(Url.parse("hf://datasets/a/b/c"), options)
    assert "hid" not in str(told.value)


@pytest.mark.parametrize("way", ["option", "variable"])
def test_the_content_of_a_key_file_of_google_is_no_path_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, way: str
):
    content, name = '{"private_key": "hidden"}', "service_account"
    label, options = f"--storage-option {name}", {name: content}
    if way == "variable":
        label, options = "GOOGLE_SERVICE_ACCOUNT", {}
        monkeypatch.setenv(label, content)
    for open_it in (partial(ObstoreStore, Url.parse("gs://bucket/")), BUCKETS["gs"]):
        with pytest.raises(UsageError, match=f"^{label}: is JSON; give the path of a file that holds it$"):
            open_it(StorageOptions(None, options))


def test_the_path_of_a_key_file_may_have_any_letters(tmp_path: Path):
    path = tmp_path / "cl\u00e9.json"
    path.write_text("{}")
    for open_it in (partial(ObstoreStore, Url.parse("gs://bucket/")), BUCKETS["gs"]):
        with pytest.raises(UsageError, match=r"private_key|client_email|no valid credentials"):
            open_it(StorageOptions(None, {"service_account": str(path)}))


SETTINGS = {
    "sso": "sso_start_url=https://x\nsso_region=us-east-1\nsso_account_id=1\nsso_role_name=r\n",
    "process": "credential_process=false\n",
    "role": "role_arn=arn:aws:iam::1:role/x\nweb_identity_token_file=/no/such/file\n",
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_credentials_that_cannot_be_had_are_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    path = tmp_path / "config"
    path.write_text(f"[profile p]\nregion=us-east-1\n{SETTINGS[kind]}")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for open_it in WAYS:
        with pytest.raises(
            UsageError, match=r"^s3://: there are no valid credentials: .*; renew them"
        ) as told:
            open_it(StorageOptions(None, {"profile": "p"}))
        assert "/no/such/file" in str(told.value) or kind != "role"


def test_credentials_are_not_used_after_they_have_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    expiry = datetime.now(UTC) + timedelta(minutes=5)  # botocore renews them ten minutes before
    answer = tmp_path / "answer.json"
    answer.write_text(
        json.dumps(
            {
                "Version": 1,
                "AccessKeyId": "a",
                "SecretAccessKey": "b",
                "SessionToken": "first",
                "Expiration": expiry.isoformat(),
            }
        )
    )
    config = tmp_path / "config"
    config.write_text(f"[profile p]\nregion=us-east-1\ncredential_process=cat {answer}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    given: dict[str, Any] = {}
    monkeypatch.setattr("obstore.store.S3Store", lambda *_, **arguments: given.update(arguments))
    ObstoreStore(Url.parse("s3://bucket/"), StorageOptions(None, {"profile": "p"}))
    found = given["credential_provider"]()
    assert found["token"] == "first"
    assert found["expires_at"] <= expiry
    answer.write_text(answer.read_text().replace("first", "second"))
    assert given["credential_provider"]()["token"] == "second"


def test_missing_credentials_are_an_error_of_usage(monkeypatch: pytest.MonkeyPatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for open_it in WAYS:
        with pytest.raises(UsageError, match=r"^there are no credentials; set AWS_ACCESS_KEY_ID"):
            open_it(StorageOptions())


def test_credentials_that_cannot_be_renewed_later_are_an_error_at_once(
    s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    from obstore.auth.boto3 import Boto3CredentialProvider

    def fail(_: object) -> None:
        raise SSOTokenLoadError(error_msg="the token has expired")

    store = ObstoreStore(Url.parse(f"{s3_bucket.url}/"), StorageOptions())
    monkeypatch.setattr(Boto3CredentialProvider, "__call__", fail)
    with pytest.raises(
        InputError, match=r"/a: there are no valid credentials: .* expired; renew them, and run"
    ):
        store.list("a")
    assert store.requests.count == 1


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("region", "", "is empty; give a value, or leave it out"),
        ("skip_signature", "", "'' is neither true nor false; give one of them"),
        ("skip_signature", "maybe", "'maybe' is neither true nor false; give one of them"),
    ],
)
def test_a_value_that_says_nothing_is_refused(name: str, value: str, said: str):
    with pytest.raises(UsageError, match=f"^--storage-option {name}: {said}$"):
        ObstoreStore(Url.parse("s3://bucket/"), StorageOptions(None, {name: value}))


@pytest.mark.parametrize(("value", "needs"), [("False", True), ("no", True), ("0", True), ("YES", False)])
def test_a_flag_is_read_in_many_words(monkeypatch: pytest.MonkeyPatch, value: str, needs: bool):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    options = StorageOptions(None, {"skip_signature": value})
    if needs:
        with pytest.raises(UsageError, match="there are no credentials"):
            ObstoreStore(Url.parse("s3://bucket/"), options)
    else:
        ObstoreStore(Url.parse("s3://bucket/"), options)
