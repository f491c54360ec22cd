"""A bucket of S3 as it is written to."""

import base64
import hashlib
import io
import zlib
from collections.abc import Callable

import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from urllib3 import HTTPResponse

from recshuf.errors import MissingBucketError, OutputError
from recshuf.storage import StorageOptions
from recshuf.storage.writing import Conflict, Match, MissingUpload
from recshuf.storage.writing.s3 import S3Bucket
from tests.support.objects.bucket_suite import BucketSuite
from tests.support.objects.object_server import Bucket, ProxiedRequest


@pytest.fixture
def store(bucket: Bucket) -> S3Bucket:
    return S3Bucket(bucket.name, StorageOptions())


class TestS3(BucketSuite):
    put_request = "PUT .*/a([?]|$)"
    other_etag = '"another"'
    refusals = (
        (400, "ExpiredToken", "the credentials have expired"),
        (403, "AccessDenied", "access is denied"),
        (403, "SignatureDoesNotMatch", "access is denied"),
        (403, "RequestTimeTooSkewed", "the clock of this machine is wrong"),
        (501, "NotImplemented", "the store does not support this request"),
        (301, "PermanentRedirect", r"the bucket is in another region \(PermanentRedirect\); set AWS_REGION"),
        (307, "", r"the bucket is in another region \(PermanentRedirect\); set AWS_REGION"),
        (418, "Teapot", "the store answers Teapot: injected; check the URL, the endpoint URL and the cred"),
    )

    def open_missing(self) -> S3Bucket:
        return S3Bucket("no-such-bucket", StorageOptions())

    def forget_upload(self, bucket: Bucket) -> None:
        # moto answers 500.
        bucket.proxy.answer("(PUT|POST|GET) .*uploadId", 404, "NoSuchUpload", times=2)

    def list_calls(self, store: S3Bucket) -> list[Callable[[], object]]:
        # The answer to a HEAD has no code.
        return [
            lambda: store.put("k", b"", Match()),
            lambda: store.read("k"),
            lambda: store.delete_if("k", self.other_etag),
            *list_plain_calls(store),
        ]


def list_plain_calls(store: S3Bucket) -> list[Callable[[], object]]:
    """Return requests without a condition, of what need not exist."""
    return [
        lambda: list(store.list("k")),
        lambda: store.begin_upload("k", "token", Match()),
        lambda: store.send_part("k", "id", 1, b""),
        lambda: store.abort_upload("k", "id"),
        lambda: list(store.find_uploads("k", [])),
        lambda: store.delete(["k"]),
    ]


@pytest.mark.parametrize(
    ("status", "code"), [(404, "NoSuchKey"), (409, "OperationAborted"), (412, "PreconditionFailed")]
)
def test_an_answer_about_a_condition_to_a_request_without_one_is_an_error(
    bucket: Bucket, store: S3Bucket, status: int, code: str
):
    bucket.proxy.answer("(PUT|GET|POST|DELETE) ", status, code, times=100)
    for call in list_plain_calls(store):
        with pytest.raises(OutputError, match=f"/k: the store answers {code}: injected; check "):
            call()


@pytest.mark.parametrize(("status", "code"), [(404, "NoSuchKey"), (412, "PreconditionFailed")])
def test_a_condition_that_fails_is_no_error(bucket: Bucket, store: S3Bucket, status: int, code: str):
    begun = store.begin_upload("k", "token", Match())
    bucket.proxy.answer("(PUT|POST|DELETE) ", status, code, times=100)
    store.delete_if("k", '"etag"')
    with pytest.raises(Conflict):
        store.put("k", b"", Match('"etag"'))
    with pytest.raises(Conflict):
        store.complete_upload("k", begun, [], Match('"etag"'))


def test_two_writers_at_one_moment_try_again_and_then_give_up(bucket: Bucket, store: S3Bucket):
    race = (409, "ConditionalRequestConflict")
    bucket.proxy.answer("PUT .*/a", *race, times=2)
    store.put("a", b"one", Match())
    assert bucket.read("a") == b"one"
    assert bucket.proxy.count("PUT .*/a") == 3
    bucket.proxy.answer("PUT .*/b", *race, times=100)
    with pytest.raises(
        OutputError, match=r"/b: the store is busy \(ConditionalRequestConflict\), after 8 attempts"
    ):
        store.put("b", b"one", Match())


def test_a_part_of_an_upload_that_was_aborted_is_missing(bucket: Bucket, store: S3Bucket):
    begun = store.begin_upload("a", "token", Match())
    bucket.proxy.answer("PUT .*uploadId", 404, "NoSuchUpload")
    with pytest.raises(MissingUpload):
        store.send_part("a", begun, 1, b"x")


def test_an_object_that_the_store_does_not_delete_is_named(bucket: Bucket, store: S3Bucket):
    """The answer is no error, and names it."""
    content = b"<DeleteResult><Error><Key>b</Key><Code>AccessDenied</Code><Message>held</Message></Error></DeleteResult>"
    bucket.proxy.add("POST .*delete", lambda one: one.reply(200, {}, content), 1)
    with pytest.raises(OutputError, match=f"^{bucket.url}/b: cannot be deleted: held"):
        store.delete(["a", "b"])


def test_more_objects_than_a_request_deletes_are_deleted(bucket: Bucket, store: S3Bucket):
    keys = [f"a/{number:04d}" for number in range(2001)]
    kept = [keys[index] for index in (0, 999, 1000, 1001, 1999, 2000)]
    for key in kept:
        bucket.put(key, b"x")
    store.delete(keys)
    assert bucket.list_keys() == []


def test_pages_of_a_listing_are_asked_for_when_they_are_wanted_and_those_that_fail_again(
    bucket: Bucket, store: S3Bucket
):
    keys = [f"a/{number:04d}" for number in range(301)]
    for key in keys:
        bucket.put(key, b"x")
    assert next(store.list("a/")).key == keys[0]
    assert bucket.proxy.count("GET ") == 1
    failed: set[str] = set()

    def fail_once(one: ProxiedRequest) -> bool:
        is_new = one.path not in failed
        failed.add(one.path)
        return is_new and one.answer(503, "SlowDown")

    bucket.proxy.add("GET .*continuation-token", fail_once, 100)
    assert [one.key for one in store.list("a/")] == keys
    assert bucket.proxy.count("GET ") == 1 + 1 + 2 * 3


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "sends no listing"),
        (b"<html>Sign in</html>", "sends no listing"),
        (b"<R><IsTruncated>true</IsTruncated></R>", "does not say where its listing goes on"),
    ],
)
def test_a_listing_that_says_nothing_is_no_empty_one(
    bucket: Bucket, store: S3Bucket, content: bytes, said: str
):
    bucket.proxy.add("GET .*prefix=", lambda one: one.reply(200, {}, content), 100)
    for call in (store.list, lambda key: store.find_uploads(key, [])):
        with pytest.raises(
            OutputError,
            match=rf"^{bucket.url}/a/: the store at {bucket.proxy.url} {said}; .*the endpoint URL$",
        ):
            list(call("a/"))
    bucket.proxy.clear()
    assert list(store.list("a/")) == list(store.find_uploads("a/", [])) == []


@pytest.mark.parametrize("field", ["ETag", "Size", "UploadId", "PartNumber"])
def test_a_reply_that_lacks_a_field_is_told_in_a_line(bucket: Bucket, store: S3Bucket, field: str):
    begun = store.begin_upload("a", "token", Match())
    part = store.send_part("a", begun, 1, b"x")
    store.put("a", b"one", Match())

    def leave_out(parsed: dict, **_: object) -> None:
        for one in (
            parsed,
            *(found for name in ("Contents", "Parts", "Uploads") for found in parsed.get(name, ())),
        ):
            one.pop(field, None)

    # A gateway's answer, made where the library has read it.
    store._client.meta.events.register("after-call.s3", leave_out)
    calls = {
        "ETag": [
            lambda: store.put("b", b"two", Match()),
            lambda: store.read("a"),
            lambda: list(store.list("a")),
            lambda: store.send_part("a", begun, 2, b"x"),
            lambda: store.is_whole("a", begun, [part], 1),
        ],
        "Size": [lambda: list(store.list("a")), lambda: store.is_whole("a", begun, [part], 1)],
        "UploadId": [
            lambda: store.begin_upload("a", "token", Match()),
            lambda: list(store.find_uploads("a", [])),
        ],
        "PartNumber": [lambda: store.is_whole("a", begun, [part], 1)],
    }
    said = rf"^{bucket.url}/[ab]: the store at {bucket.proxy.url} does not say {field} in its reply"
    for call in calls[field]:
        with pytest.raises(OutputError, match=said):
            call()


def test_a_bucket_that_does_not_exist_is_told_though_the_answer_is_cut(bucket: Bucket):
    bucket.proxy.cut_body("GET .*/k", 2, "closed")
    with pytest.raises(MissingBucketError):
        S3Bucket("no-such-bucket", StorageOptions()).read("k")


def test_a_bucket_whose_name_boto3_does_not_take_is_told_in_a_line(bucket: Bucket):
    with pytest.raises(OutputError, match=r'^s3://a:b/k: Invalid bucket name "a:b": .*; check the URL$'):
        S3Bucket("a:b", StorageOptions()).put("k", b"", Match())


@pytest.mark.parametrize(("url", "is_signed"), [(None, False), ("http://127.0.0.1:9", True)])
def test_parts_are_hashed_once_over_tls_and_signed_without_it(
    monkeypatch: pytest.MonkeyPatch, s3_credentials: None, url: str | None, is_signed: bool
):
    store, sent = S3Bucket("bucket", StorageOptions(url)), []

    def answer(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        sent.append(request.headers)
        return AWSResponse(
            request.url, 200, {"ETag": '"etag"'}, HTTPResponse(io.BytesIO(), preload_content=False)
        )

    # No emulator of these tests speaks TLS.
    store._client.meta.events.register("before-send.s3", answer)
    store.send_part("key", "upload", 1, b"some bytes")
    checksum = base64.b64encode(zlib.crc32(b"some bytes").to_bytes(4, "big"))
    assert sent[0]["x-amz-checksum-crc32"] == checksum
    signed = hashlib.sha256(b"some bytes").hexdigest() if is_signed else "UNSIGNED-PAYLOAD"
    assert sent[0]["X-Amz-Content-SHA256"] == signed.encode()
