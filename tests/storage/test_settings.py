"""URLs, storage options and variables: credentials, which are never shown, servers, and the stores that an option holds for."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import compress, product
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import SSOTokenLoadError

from recshuf.errors import InputError, UsageError
from recshuf.storage import StorageOptions, Url, is_url, parse_storage_options, refuse_unknown_scheme
from recshuf.storage.reading.stores import ObstoreStore
from recshuf.storage.writing import open_bucket
from recshuf.storage.writing.s3 import S3Bucket
from tests.support.objects.object_server import Bucket

pytestmark = pytest.mark.usefixtures("s3_credentials")


def list_ways(scheme: str) -> tuple[Callable[[StorageOptions], object], ...]:
    """Return what opens a bucket to read, and to write."""
    url = Url.parse(f"{scheme}://bucket/")
    return partial(ObstoreStore, url), lambda options: open_bucket(url, options, ".scratch/")


WAYS = list_ways("s3")
KEYS = {"access_key_id": "hidden", "secret_access_key": "hidden", "session_token": "hidden"}
NAMES = [f"AWS_{name.upper()}" for name in KEYS]


@pytest.fixture
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("scheme", "name", "variable", "broken"),
    [
        ("s3", "access_key_id", "AWS_ACCESS_KEY_ID", "hidden\n"),
        ("s3", "secret_access_key", "AWS_SECRET_ACCESS_KEY", "hidd\u00e9n"),
        ("s3", "session_token", "AWS_SESSION_TOKEN", "hid\x7fden"),
        ("az", "account_name", "AZURE_STORAGE_ACCOUNT_NAME", "\nhidden"),
        ("az", "azure_storage_sas_key", "AZURE_STORAGE_SAS_KEY", "hid\rden"),
        ("gs", "bearer_token", "GOOGLE_BEARER_TOKEN", "hidden\n"),
        ("gs", "service_account", "GOOGLE_SERVICE_ACCOUNT", '{"private_key": "hidden"}'),
    ],
)
def test_credentials_that_no_request_can_send_are_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, scheme: str, name: str, variable: str, broken: str
):
    def check(label: str, options: dict[str, str]) -> None:
        said = f"^{r's3://: .* of the credentials' if scheme == 's3' else label}.*(has a line break or|is JSON; give)"
        for open_it in list_ways(scheme):
            with pytest.raises(UsageError, match=said) as told:
                open_it(StorageOptions(None, options))
            assert str(told.value).isprintable()
            assert broken.strip() not in str(told.value)

    check(f"--storage-option {name}", (KEYS if scheme == "s3" else {}) | {name: broken})
    monkeypatch.setenv(variable, broken)
    check(variable, {})


SETTINGS = {
    "sso": "sso_start_url=https://x\nsso_region=us-east-1\nsso_account_id=1\nsso_role_name=r\n",
    "process": "credential_process=false\n",
    "role": "role_arn=arn:aws:iam::1:role/x\nweb_identity_token_file=/no/such/file\n",
}


def test_a_credential_that_the_library_refuses_is_told_and_not_shown():
    for scheme, options, said in (
        ("gs", {"service_account_key": "hidden"}, "Unable to decode service account"),
        ("az", {"account_name": "a", "account_key": "hidden!"}, "Invalid Access Key"),
    ):
        with pytest.raises(UsageError, match=f"^--storage-option for {scheme}://: .*{said}") as told:
            ObstoreStore(Url.parse(f"{scheme}://bucket/"), StorageOptions(None, options))
        assert "hidden" not in str(told.value)


def test_credentials_that_cannot_be_had_are_an_error_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_credentials: None
):
    path = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(path))
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind, open_it in product(SETTINGS, WAYS):
        path.write_text(f"[profile p]\nregion=us-east-1\n{SETTINGS[kind]}")
        with pytest.raises(UsageError, match=r"^s3://: there are no valid credentials: .*; renew") as told:
            open_it(StorageOptions(None, {"profile": "p"}))
        assert "/no/such/file" in str(told.value) or kind != "role"


def test_credentials_are_not_used_after_they_have_expired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_credentials: None
):
    expiry = datetime.now(UTC) + timedelta(minutes=5)  # botocore renews them ten minutes before
    answer = tmp_path / "answer.json"
    keys = {"Version": 1, "AccessKeyId": "a", "SecretAccessKey": "b", "SessionToken": "first"}
    answer.write_text(json.dumps(keys | {"Expiration": expiry.isoformat()}))
    config = tmp_path / "config"
    config.write_text(f"[profile p]\nregion=us-east-1\ncredential_process=cat {answer}\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    given: dict[str, Any] = {}
    # The library asks its provider when it likes.
    monkeypatch.setattr("obstore.store.S3Store", lambda *_, **arguments: given.update(arguments))
    ObstoreStore(Url.parse("s3://bucket/"), StorageOptions(None, {"profile": "p"}))
    found = given["credential_provider"]()
    assert found["token"] == "first"
    assert found["expires_at"] <= expiry
    answer.write_text(answer.read_text().replace("first", "second"))
    assert given["credential_provider"]()["token"] == "second"


def test_credentials_that_cannot_be_renewed_later_are_an_error_at_once(
    s3_bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    from obstore.auth.boto3 import Boto3CredentialProvider

    def fail(_: object) -> None:
        raise SSOTokenLoadError(error_msg="the token has expired")

    store = ObstoreStore(Url.parse(f"{s3_bucket.url}/"), StorageOptions())
    monkeypatch.setattr(Boto3CredentialProvider, "__call__", fail)
    said = r"/a: there are no valid credentials: .* expired; renew them, and run"
    with pytest.raises(InputError, match=said):
        store.list("a")
    assert store.requests.count == 1


def test_parts_of_credentials_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    for options in ({"secret_access_key": "S"}, {"aws_access_key_id": "S"}, {"token": "S"}, {}):
        for open_it in WAYS:
            with pytest.raises(UsageError, match=r"^s3://: the credentials are incomplete.* together$"):
                open_it(StorageOptions(None, options))


def test_flags_are_read_in_many_words_and_values_that_say_nothing_are_refused(no_credentials: None):
    for value in ("YES", "True", "1"):
        ObstoreStore(Url.parse("s3://bucket/"), StorageOptions(None, {"skip_signature": value}))
    neither = "is neither true nor false; give one of them$"
    for name, value, said in (
        *(("skip_signature", value, "there are no credentials") for value in ("False", "no", "0")),
        ("region", "", "^--storage-option region: is empty; give a value, or leave it out$"),
        ("skip_signature", "", f"^--storage-option skip_signature: '' {neither}"),
        ("skip_signature", "maybe", f"^--storage-option skip_signature: 'maybe' {neither}"),
    ):
        with pytest.raises(UsageError, match=said):
            ObstoreStore(Url.parse("s3://bucket/"), StorageOptions(None, {name: value}))


# Servers

PRIVATE = "https://bucket.vpce-1a2b-3c4d.s3.us-east-1.vpce.amazonaws.com"


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


@pytest.mark.parametrize("url", ["127.0.0.1:9000", "host", "ftp://host", "http://", "http://host:port", ""])
def test_an_endpoint_that_is_no_url_of_a_server_is_named(monkeypatch: pytest.MonkeyPatch, url: str):
    def check(name: str, make: Callable[[], object]) -> None:
        with pytest.raises(UsageError, match=f"^{name}: .*{url}.*; give one of http:// or https://, such as"):
            make()

    check("--endpoint-url", lambda: StorageOptions(url))
    for name in ("endpoint_url", "gs:endpoint_url", "s3://bucket:endpoint_url"):
        check(f"--storage-option {name}", partial(StorageOptions, None, {name: url}))
    if url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        for open_it in WAYS:
            check("AWS_ENDPOINT_URL", partial(open_it, StorageOptions()))


def test_a_storage_option_that_is_not_known_is_named_once_with_those_that_are():
    for open_it, last in zip(WAYS, ("skip_signature", "profile"), strict=True):
        said = f"^--storage-option regoin: is not taken for s3:// here; known are .* {last}$"
        with pytest.raises(UsageError, match=said):
            open_it(StorageOptions(None, {"regoin": "eu-west-1"}))


def test_an_option_of_public_inputs_is_refused_for_outputs_with_the_remedy():
    options = StorageOptions(None, {"skip_signature": "true"})
    ObstoreStore(Url.parse("s3://bucket/"), options)
    said = r"for the bucket of the inputs alone, s3://BUCKET:skip_signature=true$"
    with pytest.raises(UsageError, match=said):
        S3Bucket("bucket", options)
    url = Url.parse("s3://out/")
    for given in ({"s3://in:skip_signature": "true"}, {"skip_signature": "false"}):
        open_bucket(url, StorageOptions(None, given), url.key)


# Options

BUCKET = Url.parse("s3://bucket/key")


def test_storage_options_are_parsed():
    assert parse_storage_options(["a=b", "c=d=e", "f="]) == {"a": "b", "c": "d=e", "f": ""}
    assert parse_storage_options({"a": "b"}) == {"a": "b"}
    for text in ("a", "=b"):
        with pytest.raises(UsageError, match="write NAME=VALUE"):
            parse_storage_options([text])
    with pytest.raises(UsageError, match=r"--storage-option: give a dict, such as {'region': 'eu-west-1'}"):
        parse_storage_options("region=eu-west-1")


SCOPES = ("gs:", "gs://bucket:", "s3://bucket2:", "s3://buck:", "hf:", "", "s3:", "s3://bucket:")
"""The last three are of `BUCKET`, the narrowest last."""


@pytest.mark.parametrize("name", ["region", "endpoint_url"])
def test_the_narrowest_scope_wins(name: str):
    for chosen in product([False, True], repeat=3):
        given = {f"{SCOPES[at]}{name}": f"http://{at}" for at in compress(range(8), [True] * 5 + [*chosen])}
        own = [at for at in (5, 6, 7) if chosen[at - 5]]
        expected = {name: f"http://{own[-1]}"} if own else {}
        url = expected.pop("endpoint_url", "http://all")
        for pairs in (given.items(), reversed(given.items())):
            assert StorageOptions("http://all", dict(pairs)).of(BUCKET) == StorageOptions(url, expected)


def test_a_scope_that_is_no_store_is_refused():
    for name in ("s4:region", "s3://bucket/:region", "s3://bucket/a:region", "s3://:region"):
        said = rf"^--storage-option {name}: is an option of no store; write s3:NAME=VALUE"
        with pytest.raises(UsageError, match=said):
            StorageOptions(None, {name: "x"})


# URLs


def test_urls_are_told_from_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A path that exists has no unknown scheme."""
    texts = ["s3://b/a", "S3://b", "https://h", "a/b", "s3:/b", "ftp://b"]
    assert [is_url(text) for text in texts] == [True, True, True, False, False, False]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="URLs of ftp:// are not known"):
        refuse_unknown_scheme("ftp://b/a")
    (tmp_path / "ftp:").mkdir()
    refuse_unknown_scheme("ftp://b/a")


def test_a_url_has_parts_and_is_what_it_was():
    for text in ("s3://b/", "s3://b/a", "s3://b/a/", "gs://b/a//c d?e=f#g"):
        assert str(Url.parse(text)) == text
    url = Url.parse("S3://b/a/c.txt")
    assert (url.scheme, url.bucket, url.key) == ("s3", "b", "a/c.txt")
    assert str(Url.parse("s3://b/a/").join("d")) == str(Url.parse("s3://b/a").join("d")) == "s3://b/a/d"
    with pytest.raises(UsageError, match="s3:///a: has no bucket; write for example s3://bucket/prefix/"):
        Url.parse("s3:///a")


def test_a_name_that_no_store_takes_is_refused_in_a_line():
    names = ("no bucket", "a\nb", "a?b", "a#b", "a%20b", "b*", "bücket")
    for scheme, bucket in product(("s3", "gs", "az"), names):
        with pytest.raises(UsageError, match=rf"^'{scheme}://.*': no bucket has such a name; check") as told:
            Url.parse(f"{scheme}://{bucket}/x/")
        assert "\n" not in str(told.value)
