"""A bucket of Google Cloud Storage as it is written to."""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

import recshuf
from recshuf.errors import OutputError, UsageError
from recshuf.storage import StorageOptions, requests
from recshuf.storage import writing as file_parts
from recshuf.storage.writing import Conflict, Match, MissingUpload, OpenUpload, Part
from recshuf.storage.writing.gcs import GcsBucket
from tests.support.objects.bucket_suite import BucketSuite, upload
from tests.support.objects.object_server import FaultProxy, ProxiedRequest
from tests.support.objects.other_buckets import GcsTestBucket

QUANTUM = 256 << 10
"""A session takes multiples of these bytes before its end."""
CHUNK = "PUT .*upload_id"


@pytest.fixture
def bucket(gcs_bucket: GcsTestBucket, no_pauses: None) -> GcsTestBucket:
    return gcs_bucket


@pytest.fixture
def store(bucket: GcsTestBucket) -> GcsBucket:
    return GcsBucket(bucket.name, StorageOptions(), ".scratch/")


class TestGoogle(BucketSuite):
    put_request = "POST .*name=a(&|$)"
    other_etag = "7"
    refusals = (
        (401, "no", r"access is denied \(401\); check the credentials"),
        (403, "no", r"access is denied \(403\)"),
        (503, "no", r"the store is busy \(503\), after 8 attempts; run again later"),
        (418, "no", "the store answers 418: .*; check the URL, the endpoint URL and the credentials, or run"),
    )

    def open_missing(self) -> GcsBucket:
        return GcsBucket("no-such-bucket", StorageOptions(), "")

    def list_calls(self, store: GcsBucket) -> list[Callable[[], object]]:
        begun = store.begin_upload("k", "token", Match())
        return [
            *super().list_calls(store),
            lambda: store.begin_upload("k", "token", Match()),
            lambda: store.abort_upload("k", begun),
            lambda: list(store.find_uploads("k", [OpenUpload("k", begun, "")])),
        ]


@pytest.mark.parametrize("sizes", [[QUANTUM - 1], [QUANTUM], [2 * QUANTUM, QUANTUM], [QUANTUM, QUANTUM, 7]])
def test_an_upload_has_the_bytes_of_its_parts(bucket: GcsTestBucket, store: GcsBucket, sizes: list[int]):
    bodies, sums = [bytes([number]) * size for number, size in enumerate(sizes)], []
    last = bucket.requests["complete"]
    bucket.proxy.add(last, lambda one: bool(sums.append(one.headers["X-Goog-Hash"])), 100)
    begun, parts = upload(store, bodies)
    assert store.is_whole("a", begun, parts, sum(sizes))
    store.complete_upload("a", begun, parts, Match())
    assert bucket.read("a") == b"".join(bodies)
    assert store.part_sizes == sizes
    # The emulator does not compare it.
    digest = hashlib.md5(b"".join(bodies), usedforsecurity=False).digest()
    assert sums[-1] == f"md5={base64.b64encode(digest).decode()}"


# Requests of an upload: two parts, a question, and the completion.
@pytest.mark.parametrize(
    ("fault", "number"),
    [("busy", 0), ("reset", 1), ("lost", 0), ("lost", 1), ("busy", 2), ("reset", 3), ("lost", 3)],
)
def test_faults_of_an_upload_are_overcome(bucket: GcsTestBucket, store: GcsBucket, fault: str, number: int):
    bucket.proxy.add(CHUNK, lambda _: False, number)
    strikes = {
        "busy": lambda: bucket.proxy.answer(CHUNK, 503, "busy"),
        "reset": lambda: bucket.proxy.reset(CHUNK),
        "lost": lambda: bucket.proxy.lose_reply(CHUNK),
    }
    strikes[fault]()
    bodies = [b"x" * QUANTUM, b"y" * (QUANTUM + 5)]
    begun, parts = upload(store, bodies)
    assert store.is_whole("a", begun, parts, 2 * QUANTUM + 5)
    try:
        store.complete_upload("a", begun, parts, Match())
    except MissingUpload:
        assert (fault, number) == ("lost", 3)  # the completion was done
    assert bucket.read("a") == b"".join(bodies)
    assert store.find_token("a") == "token"


@pytest.mark.parametrize("is_told", [False, True])
def test_a_part_that_has_arrived_in_pieces_is_continued(
    bucket: GcsTestBucket, store: GcsBucket, is_told: bool
):
    body = b"x" * QUANTUM + b"y" * QUANTUM

    def cut(request: ProxiedRequest) -> bool:
        span = {"Content-Range": f"bytes 0-{QUANTUM - 1}/*"}
        bucket.client.put(f"{bucket.server}{request.path}", data=body[:QUANTUM], headers=span)
        return request.reply(308, {"Range": f"bytes=0-{QUANTUM - 1}"}) if is_told else request.drop()

    bucket.proxy.add(CHUNK, cut, 1)
    begun, parts = upload(store, [body, b"z"])
    store.complete_upload("a", begun, parts, Match())
    assert bucket.read("a") == body + b"z"


def test_an_upload_is_not_begun_in_place_of_an_object_of_others(bucket: GcsTestBucket, store: GcsBucket):
    bucket.put("a", b"theirs")
    for match in (Match(), Match("7")):
        with pytest.raises(Conflict):
            store.begin_upload("a", "token", match)


def test_an_upload_whose_old_object_is_gone_never_becomes_one(bucket: GcsTestBucket, store: GcsBucket):
    match = Match(store.put("a", b"old", Match()))
    begun, parts = upload(store, [b"mine"], match)
    bucket.delete("a")
    with pytest.raises(MissingUpload):
        store.complete_upload("a", begun, parts, match)
    assert bucket.list_uploads() == bucket.list_keys() == []


def test_missing_credentials_and_wrong_options_are_told(
    bucket: GcsTestBucket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("GOOGLE_SKIP_SIGNATURE")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
    cases = [
        ({}, "no valid credentials for gs://; set GOOGLE_APPLICATION_CREDENTIALS"),
        ({"service_account": "/nowhere"}, "no valid credentials for gs://"),
        ({"colour": "blue"}, "--storage-option colour: is not taken for outputs in gs://"),
        (
            {"google_service_account": "/nope", "skip_signature": "yes"},
            "^--storage-option service_account: contradicts skip_signature",
        ),
        ({"skip_signature": "maybe"}, "skip_signature: 'maybe' is neither true nor false; give one of them$"),
    ]
    for options, said in cases:
        with pytest.raises(UsageError, match=said):
            GcsBucket(bucket.name, StorageOptions(None, options), "")
    GcsBucket(bucket.name, StorageOptions(None, {"google_skip_signature": "true"}), "")


def test_options_come_before_variables(
    bucket: GcsTestBucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("GOOGLE_BASE_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "false")
    (tmp_path / "a.txt").write_text("a\n")
    options = {"google_base_url": bucket.proxy.url, "skip_signature": "true"}
    recshuf.shuffle(tmp_path / "a.txt", f"{bucket.url}/b.txt", storage_options=options)
    assert bucket.read("b.txt") == b"a\n"


@pytest.mark.parametrize("in_order", [True, False])
def test_a_part_is_sent_after_the_one_before_where_the_store_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_order: bool
):
    """The pool does what is submitted when its result is asked for."""
    monkeypatch.setattr(file_parts, "PART_BYTES", 1 << 20)
    content = bytes(range(256)) * (5 << 11)
    (tmp_path / "a").write_bytes(content)
    log, sent = [], {}

    def submit(function: Callable[..., Part], number: int, start: int) -> SimpleNamespace:
        log.append(f"submit {number}")
        return SimpleNamespace(result=cache(partial(function, number, start)), cancel=lambda: None)

    def send(number: int, body: bytes) -> Part:
        log.append(f"send {number}")
        sent[number] = body
        return Part(str(number), "")

    made = file_parts.send_file(tmp_path / "a", send, SimpleNamespace(submit=submit), in_order=in_order)
    assert [part.etag for part in made] == ["1", "2", "3"]
    assert (list(sent), b"".join(sent.values())) == ([1, 2, 3], content)
    expected = [f"{verb} {number}" for number in (1, 2, 3) for verb in ("submit", "send")]
    assert log == (expected if in_order else [*expected[::2], *expected[1::2]])
    (tmp_path / "a").write_bytes(b"")
    (empty,) = file_parts.send_file(tmp_path / "a", send, SimpleNamespace(submit=submit), in_order=in_order)
    assert (empty.etag, sent[1]) == ("1", b"")


# Tokens: a server of them that cannot be reached is no denied access


@pytest.fixture
def tokens() -> Iterator[FaultProxy]:
    """Return a server that gives tokens."""
    given = json.dumps({"access_token": "a token", "expires_in": "3600"}).encode()
    with closing(FaultProxy(lambda *_: (200, [], given))) as server:
        yield server


@pytest.fixture
def signed(
    bucket: GcsTestBucket, tokens: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> GcsBucket:
    """Return the bucket, opened with an account whose tokens come from the server."""
    monkeypatch.delenv("GOOGLE_SKIP_SIGNATURE")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    account = {
        "type": "service_account",
        "client_email": "me@project.iam.gserviceaccount.com",
        "private_key": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
        "token_uri": f"{tokens.url}/token",
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    options = StorageOptions(None, {"service_account": str(tmp_path / "account.json")})
    return GcsBucket(bucket.name, options, ".scratch/")


@pytest.mark.parametrize("breaks", [0, requests.ATTEMPTS - 1])
def test_a_connection_that_breaks_is_tried_again(signed: GcsBucket, tokens: FaultProxy, breaks: int):
    tokens.reset("", breaks)
    signed.put("a", b"content", Match())
    found = signed.read("a")
    assert found is not None
    assert (found[0], tokens.count("POST")) == (b"content", breaks + 1)


def test_refused_credentials_are_denied_access(signed: GcsBucket, tokens: FaultProxy):
    tokens.add("", lambda one: one.reply(400, {}, b'{"error": "invalid_grant"}'), 100)
    with pytest.raises(OutputError, match=r"^gs://.*/a: access is denied \(401\); check the credentials"):
        signed.read("a")
