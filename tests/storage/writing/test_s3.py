"""A bucket as it is written to: conditions hold, faults are overcome or told, uploads are invisible until completed."""

from __future__ import annotations

import base64
import hashlib
import io
import zlib
from typing import TYPE_CHECKING

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from urllib3 import HTTPResponse

from recshuf.errors import MissingBucketError, OutputError, UsageError
from recshuf.storage import requests, s3_session
from recshuf.storage.settings import StorageOptions
from recshuf.storage.writing import s3
from recshuf.storage.writing.bucket import Conflict, Match, MissingUpload
from recshuf.storage.writing.s3 import S3Bucket

if TYPE_CHECKING:
    from tests.support.objects.object_server import Bucket, ProxiedRequest


@pytest.fixture
def store(bucket: Bucket) -> S3Bucket:
    return S3Bucket(bucket.name, StorageOptions())


def test_an_object_is_made_once_and_replaced_only_as_it_was(store: S3Bucket):
    etag = store.put("a", b"one", Match())
    assert store.read("a") == (b"one", etag)
    with pytest.raises(Conflict):
        store.put("a", b"two", Match())
    with pytest.raises(Conflict):
        store.put("a", b"two", Match('"another"'))
    with pytest.raises(Conflict):
        store.put("none", b"two", Match(etag))
    store.put("a", b"two", Match(etag))
    found = store.read("a")
    assert found
    assert found[0] == b"two"
    assert store.read("none") is None


@pytest.mark.parametrize("match", ["new", "old"])
def test_a_put_whose_reply_is_lost_has_succeeded(bucket: Bucket, store: S3Bucket, match: str):
    old = None if match == "new" else store.put("a", b"old", Match())
    bucket.proxy.lose_reply("PUT .*/a")
    etag = store.put("a", b"mine", Match(old))
    assert store.read("a") == (b"mine", etag)


def test_a_put_whose_reply_is_lost_is_no_excuse_for_others(bucket: Bucket, store: S3Bucket):
    bucket.put("a", b"theirs")
    bucket.proxy.reset("PUT .*/a")
    with pytest.raises(Conflict):
        store.put("a", b"mine", Match())
    assert bucket.read("a") == b"theirs"


@pytest.mark.parametrize(
    "status", [(503, "SlowDown"), (500, "InternalError"), (409, "ConditionalRequestConflict")]
)
def test_a_store_that_is_busy_is_asked_again(bucket: Bucket, store: S3Bucket, status: tuple[int, str]):
    bucket.proxy.answer("PUT .*/a", *status, times=2)
    store.put("a", b"one", Match())
    assert bucket.read("a") == b"one"
    assert bucket.proxy.count("PUT .*/a") == 3
    assert store.requests.count == (1 if status[0] == 409 else 3)


def test_retries_are_counted(bucket: Bucket, store: S3Bucket):
    bucket.proxy.answer("PUT .*/a", 503, "SlowDown", times=1)
    bucket.proxy.reset("PUT .*/a", times=1)
    store.put("a", b"one", Match())
    assert store.requests.retries == 2


def test_a_body_that_ends_early_is_asked_for_again(
    bucket: Bucket, store: S3Bucket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0.001)
    etag = store.put("a", b"one", Match())
    bucket.proxy.cut_body("GET .*/a", times=2)
    assert store.read("a") == (b"one", etag)
    assert store.requests.retries == 2
    bucket.proxy.cut_body("GET .*/a", times=100)
    with pytest.raises(OutputError, match=rf"^s3://{bucket.name}/a: the store cannot be reached: "):
        store.read("a")


@pytest.mark.parametrize("cuts", ["dropped", "closed"])
@pytest.mark.parametrize("key", ["a", "none"])
def test_every_answer_whose_body_is_cut_is_asked_for_again_and_then_told_in_a_line(
    bucket: Bucket, store: S3Bucket, monkeypatch: pytest.MonkeyPatch, key: str, cuts: str
):
    monkeypatch.setattr(requests, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    store.put("a", b"one", Match())
    for call in (
        lambda: store.read(key),
        lambda: list(store.list(key)),
        lambda: list(store.find_uploads(key, [])),
    ):
        whole: object = call()
        bucket.proxy.cut_body("", 2, cuts)
        assert call() == whole
        bucket.proxy.cut_body("", 100, cuts)
        with pytest.raises(
            OutputError, match=rf"^s3://{bucket.name}/{key}: the store cannot be reached: .*"
        ) as told:
            call()
        assert "\n" not in str(told.value)
        bucket.proxy.clear()


@pytest.mark.parametrize("field", ["ETag", "Size", "UploadId", "PartNumber"])
def test_a_reply_that_lacks_a_field_is_told_in_a_line(bucket: Bucket, store: S3Bucket, field: str):
    upload = store.begin_upload("a", "token", Match())
    part = store.send_part("a", upload, 1, b"x")
    store.put("a", b"one", Match())

    def leave_out(parsed: dict, **_: object) -> None:
        for one in (
            parsed,
            *parsed.get("Contents", ()),
            *parsed.get("Parts", ()),
            *parsed.get("Uploads", ()),
        ):
            one.pop(field, None)

    store._client.meta.events.register("after-call.s3", leave_out)
    calls = {
        "ETag": [
            lambda: store.put("b", b"two", Match()),
            lambda: store.read("a"),
            lambda: list(store.list("a")),
            lambda: store.send_part("a", upload, 2, b"x"),
            lambda: store.is_whole("a", upload, [part], 1),
        ],
        "Size": [lambda: list(store.list("a")), lambda: store.is_whole("a", upload, [part], 1)],
        "UploadId": [
            lambda: store.begin_upload("a", "token", Match()),
            lambda: list(store.find_uploads("a", [])),
        ],
        "PartNumber": [lambda: store.is_whole("a", upload, [part], 1)],
    }
    said = rf"^s3://{bucket.name}/[ab]: the store at {bucket.proxy.url} does not say {field} in its reply"
    for call in calls[field]:
        with pytest.raises(OutputError, match=said):
            call()


@pytest.mark.parametrize("content", [b"", b"<html>Sign in</html>"])
def test_a_listing_that_says_nothing_is_no_empty_one(bucket: Bucket, store: S3Bucket, content: bytes):
    def answer(one: ProxiedRequest) -> bool:
        one.send_response_only(200)
        one.send_header("Content-Length", str(len(content)))
        one.end_headers()
        one.wfile.write(content)
        one.wfile.flush()
        return True

    bucket.proxy.add("GET .*prefix=", answer, 100)
    for call in (store.list, lambda key: store.find_uploads(key, [])):
        with pytest.raises(
            OutputError,
            match=rf"^s3://{bucket.name}/a/: the store at {bucket.proxy.url} sends no listing; .*--endpoint-url$",
        ):
            list(call("a/"))
    bucket.proxy.clear()
    assert list(store.list("a/")) == list(store.find_uploads("a/", [])) == []


def test_a_store_that_stays_busy_is_told(bucket: Bucket, store: S3Bucket, monkeypatch: pytest.MonkeyPatch):
    bucket.proxy.answer("PUT .*/a", 409, "ConditionalRequestConflict", times=100)
    monkeypatch.setattr(s3, "_CONFLICT_SECONDS", 0)
    with pytest.raises(Conflict):
        store.put("a", b"one", Match())


@pytest.mark.parametrize(
    ("status", "code", "said"),
    [
        (400, "ExpiredToken", "the credentials have expired"),
        (403, "AccessDenied", "access is denied"),
        (403, "SignatureDoesNotMatch", "access is denied"),
        (403, "RequestTimeTooSkewed", "the clock of this machine is wrong"),
        (501, "NotImplemented", "the store does not support this request"),
        (301, "PermanentRedirect", r"the bucket is in another region \(PermanentRedirect\); set AWS_REGION"),
        (307, "", r"the bucket is in another region \(PermanentRedirect\); set AWS_REGION"),
        (
            418,
            "Teapot",
            "the store answers Teapot: injected; check the URL, --endpoint-url and the credentials",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_line(bucket: Bucket, store: S3Bucket, status: int, code: str, said: str):
    bucket.proxy.answer("(PUT|GET|HEAD|POST|DELETE) ", status, code, times=100)
    calls = [
        lambda: store.put("k", b"", Match()),
        lambda: store.read("k"),
        lambda: list(store.list("k")),
        lambda: store.begin_upload("k", "token", Match()),
        lambda: store.send_part("k", "id", 1, b""),
        lambda: store.abort_upload("k", "id"),
        lambda: list(store.find_uploads("k", [])),
        lambda: store.delete(["k"]),
    ]
    for call in calls:
        with pytest.raises(OutputError, match=rf"^s3://{bucket.name}/k: {said}") as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "code"), [(404, "NoSuchKey"), (409, "OperationAborted"), (412, "PreconditionFailed")]
)
def test_an_answer_about_a_condition_to_a_request_without_one_is_an_error(
    bucket: Bucket, store: S3Bucket, status: int, code: str
):
    bucket.proxy.answer("(PUT|GET|POST|DELETE) ", status, code, times=100)
    calls = [
        lambda: list(store.list("k")),
        lambda: store.begin_upload("k", "token", Match()),
        lambda: store.send_part("k", "id", 1, b""),
        lambda: store.abort_upload("k", "id"),
        lambda: list(store.find_uploads("k", [])),
        lambda: store.delete(["k"]),
    ]
    for call in calls:
        with pytest.raises(OutputError, match=f"/k: the store answers {code}: injected; check "):
            call()


@pytest.mark.parametrize("code", ["NoSuchKey", "PreconditionFailed"])
def test_a_condition_that_fails_is_no_error(bucket: Bucket, store: S3Bucket, code: str):
    upload = store.begin_upload("k", "token", Match())
    bucket.proxy.answer("(PUT|POST|DELETE) ", 404 if code == "NoSuchKey" else 412, code, times=100)
    store.delete_if("k", '"etag"')
    for call in (
        lambda: store.put("k", b"", Match('"etag"')),
        lambda: store.complete_upload("k", upload, [], Match('"etag"')),
    ):
        with pytest.raises(Conflict):
            call()


@pytest.mark.parametrize(
    ("status", "code"), [(400, "RequestTimeout"), (503, "SlowDown"), (500, "InternalError"), (502, "502")]
)
def test_what_stays_wrong_after_all_attempts_is_told_with_their_number(
    bucket: Bucket, store: S3Bucket, status: int, code: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    bucket.proxy.answer("PUT .*/k", status, code, times=100)
    with pytest.raises(
        OutputError, match=rf"/k: the store is busy \({code}\), after 8 attempts; run again later$"
    ):
        store.put("k", b"", Match())
    assert bucket.proxy.count("PUT .*/k") == requests.ATTEMPTS


def test_a_bucket_that_does_not_exist_is_told(bucket: Bucket):
    with pytest.raises(OutputError, match=r"^s3://no-such-bucket: there is no such bucket; create it first"):
        S3Bucket("no-such-bucket", StorageOptions()).put("k", b"", Match())


def test_a_bucket_that_does_not_exist_is_told_though_the_answer_is_cut(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    bucket.proxy.cut_body("GET .*/k", 2, "closed")
    with pytest.raises(MissingBucketError):
        S3Bucket("no-such-bucket", StorageOptions()).read("k")


def test_a_bucket_whose_name_boto3_does_not_take_is_told_in_a_line(bucket: Bucket):
    with pytest.raises(
        OutputError, match=r'^s3://a:b/k: Invalid bucket name "a:b": .*; check the URL'
    ) as caught:
        S3Bucket("a:b", StorageOptions()).put("k", b"", Match())
    assert "\n" not in str(caught.value)


def test_missing_credentials_are_told(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UsageError, match="there are no credentials; set AWS_ACCESS_KEY_ID"):
        S3Bucket(bucket.name, StorageOptions())


def test_a_server_that_is_not_there_is_told(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(s3_session, "ATTEMPTS", 1)
    store = S3Bucket(bucket.name, StorageOptions("http://127.0.0.1:1"))
    with pytest.raises(OutputError, match=r"the store cannot be reached: .*; check --endpoint-url and"):
        store.put("k", b"", Match())


def test_options_reach_the_store_and_others_are_refused(bucket: Bucket, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    options = {"aws_access_key_id": "a", "AWS_SECRET_ACCESS_KEY": "b", "region": "us-east-1"}
    S3Bucket(bucket.name, StorageOptions(None, options)).put("k", b"", Match())
    with pytest.raises(UsageError, match="--storage-option colour: is not taken"):
        S3Bucket(bucket.name, StorageOptions(None, {"colour": "blue"}))


def test_an_upload_is_seen_when_it_is_completed(bucket: Bucket, store: S3Bucket):
    upload = store.begin_upload("a", "token", Match())
    parts = [store.send_part("a", upload, 1, bytes(5 << 20)), store.send_part("a", upload, 2, b"end")]
    assert store.is_whole("a", upload, parts, (5 << 20) + 3)
    assert not store.is_whole("a", upload, parts, (5 << 20) + 4)
    assert not store.is_whole("a", upload, parts[:1], 5 << 20)
    assert [one[:2] for one in store.find_uploads("", [])] == [("a", upload)]
    assert bucket.list_keys() == []
    assert store.find_token("a") is None
    store.complete_upload("a", upload, parts, Match())
    assert bucket.read("a") == bytes(5 << 20) + b"end"
    assert store.find_token("a") == "token"
    assert list(store.find_uploads("", [])) == []
    with pytest.raises(MissingUpload):
        store.is_whole("a", upload, parts, 0)
    store.abort_upload("a", upload)
    assert bucket.list_keys() == ["a"]


def test_an_upload_does_not_replace_an_object(bucket: Bucket, store: S3Bucket):
    upload = store.begin_upload("a", "token", Match())
    parts = [store.send_part("a", upload, 1, b"mine")]
    bucket.put("a", b"theirs")
    with pytest.raises(Conflict):
        store.complete_upload("a", upload, parts, Match())
    assert bucket.read("a") == b"theirs"


def test_an_aborted_upload_is_missing(bucket: Bucket, store: S3Bucket):
    upload = store.begin_upload("a", "token", Match())
    part = store.send_part("a", upload, 1, b"x")
    store.abort_upload("a", upload)
    store.abort_upload("a", upload)
    assert bucket.list_uploads() == []
    # moto answers 500, unlike S3
    bucket.proxy.answer("(PUT|POST) .*uploadId", 404, "NoSuchUpload", times=2)
    with pytest.raises(MissingUpload):
        store.complete_upload("a", upload, [part], Match())
    with pytest.raises(MissingUpload):
        store.send_part("a", upload, 2, b"x")


def test_objects_are_deleted_and_listed_beyond_a_page(bucket: Bucket, store: S3Bucket):
    keys = [f"a/{number:04d}" for number in range(1100)]
    for key in keys[:3] + keys[-3:]:
        store.put(key, b"x", Match())
    assert [one.key for one in store.list("a/")] == keys[:3] + keys[-3:]
    store.delete(keys)
    store.delete([])
    assert bucket.list_keys() == []


def test_an_object_is_deleted_as_it_was(bucket: Bucket, store: S3Bucket):
    old = store.put("a", b"one", Match())
    new = store.put("a", b"two", Match(old))
    store.delete_if("a", old)
    assert bucket.list_keys() == ["a"]
    store.delete_if("a", new)
    store.delete_if("none", new)
    assert bucket.list_keys() == []


@pytest.mark.parametrize(("url", "is_signed"), [(None, False), ("http://127.0.0.1:9", True)])
def test_parts_are_hashed_once_over_tls_and_signed_without_it(
    monkeypatch: pytest.MonkeyPatch, url: str | None, is_signed: bool
):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    store, sent = S3Bucket("bucket", StorageOptions(url)), []

    def answer(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        sent.append(request.headers)
        return AWSResponse(
            request.url, 200, {"ETag": '"etag"'}, HTTPResponse(io.BytesIO(), preload_content=False)
        )

    store._client.meta.events.register("before-send.s3", answer)
    store.send_part("key", "upload", 1, b"some bytes")
    checksum = base64.b64encode(zlib.crc32(b"some bytes").to_bytes(4, "big"))
    assert sent[0]["x-amz-checksum-crc32"] == checksum
    signed = hashlib.sha256(b"some bytes").hexdigest() if is_signed else "UNSIGNED-PAYLOAD"
    assert sent[0]["X-Amz-Content-SHA256"] == signed.encode()
