"""A bucket of S3 as it is written to: conditional puts and deletes, and multipart uploads that stay open."""

from __future__ import annotations

import base64
import zlib
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from recshuf.errors import MissingBucketError, OutputError
from recshuf.storage.requests import OTHER_REGION, REDIRECTS, Answer, MissingObject
from recshuf.storage.s3_session import (
    CUT_REPLY,
    NO_CREDENTIALS,
    check_credentials,
    explain_credentials,
    make_client,
    make_session,
)
from recshuf.storage.writing import (
    Bucket,
    Conflict,
    Match,
    MissingUpload,
    OpenUpload,
    Part,
    StoredObject,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from recshuf.storage import StorageOptions


T = TypeVar("T")
_DELETED_AT_ONCE = 1000
_TOKEN_KEY = "recshuf-upload"  # noqa: S105 - no secret
"""Key of the token in the metadata of an object."""
_MISSING = ("404", "NoSuchKey", "NotFound")
_PAGES = {
    "list_objects_v2": ("Contents", {"ContinuationToken": "NextContinuationToken"}),
    "list_parts": ("Parts", {"PartNumberMarker": "NextPartNumberMarker"}),
    "list_multipart_uploads": (
        "Uploads",
        {"KeyMarker": "NextKeyMarker", "UploadIdMarker": "NextUploadIdMarker"},
    ),
}
"""For each listing, what a page holds, and which of its fields say where the next page begins, by arguments."""


class S3Bucket(Bucket):
    """A bucket of S3."""

    scheme = "s3"

    def __init__(self, bucket: str, options: StorageOptions, *, is_hurried: bool = False) -> None:
        super().__init__(bucket)
        session = make_session(options.options)
        check_credentials(session)
        self._client = make_client(session, options.endpoint_url, is_hurried=is_hurried)

    def _put(self, key: str, body: bytes, match: Match) -> str:
        reply = self._ask("put_object", key, Key=key, Body=body, **_condition(match))
        return str(self._take(key, reply, "ETag"))

    def _get(self, key: str, span: tuple[int, int] | None, etag: str | None) -> tuple[bytes, str]:
        given = {} if span is None else {"Range": f"bytes={span[0]}-{span[1] - 1}"}
        if etag:
            given["IfMatch"] = etag

        def read() -> tuple[bytes, str]:
            try:
                reply = self._client.get_object(Bucket=self.bucket, Key=key, **given)
            except self._client.exceptions.NoSuchKey as error:
                raise MissingObject(self._name(key)) from error
            return reply["Body"].read(), str(self._take(key, reply, "ETag"))

        content, found = self._call(key, read, given)
        if span is not None and len(content) > span[1] - span[0]:
            raise self._refuse(key, "sends other bytes than are asked for")
        return content, found

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for item in self._list_pages("list_objects_v2", prefix, Prefix=prefix):
            key, size, etag, modified = (
                self._take(prefix, item, field) for field in ("Key", "Size", "ETag", "LastModified")
            )
            yield StoredObject(key, size, etag, modified.timestamp())

    def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            some = keys[start : start + _DELETED_AT_ONCE]
            objects = {"Objects": [{"Key": key} for key in some], "Quiet": True}
            failed = self._ask("delete_objects", some[0], Delete=objects).get("Errors")
            if failed:
                raise OutputError(
                    f"{self._name(failed[0]['Key'])}: cannot be deleted: {failed[0].get('Message')}"
                )

    def _delete(self, key: str, match: Match | None = None) -> None:
        self._ask("delete_object", key, Key=key, **({} if match is None else _condition(match)))

    def begin_upload(self, key: str, token: str, match: Match) -> str:  # noqa: ARG002 - of the end
        metadata = {_TOKEN_KEY: token}
        reply = self._ask(
            "create_multipart_upload", key, Key=key, Metadata=metadata, ChecksumAlgorithm="CRC32"
        )
        return str(self._take(key, reply, "UploadId"))

    def send_part(self, key: str, upload_id: str, number: int, body: bytes) -> Part:
        checksum = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
        part = {"UploadId": upload_id, "PartNumber": number, "Body": body, "ChecksumCRC32": checksum}
        reply = self._ask("upload_part", key, Key=key, **part)
        self.part_sizes.append(len(body))
        return Part(str(self._take(key, reply, "ETag")), checksum)

    def is_whole(self, key: str, upload_id: str, parts: Sequence[Part], byte_count: int) -> bool:
        sent = list(self._list_pages("list_parts", key, Key=key, UploadId=upload_id))
        etags = {self._take(key, item, "PartNumber"): self._take(key, item, "ETag") for item in sent}
        named = {number: part.etag for number, part in enumerate(parts, 1)}
        return etags == named and sum(self._take(key, item, "Size") for item in sent) == byte_count

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[Part], match: Match) -> None:
        numbered = [
            {"PartNumber": number, "ETag": part.etag, "ChecksumCRC32": part.checksum}
            for number, part in enumerate(parts, 1)
        ]
        upload = {"UploadId": upload_id, "MultipartUpload": {"Parts": numbered}}
        self._ask("complete_multipart_upload", key, Key=key, **upload, **_condition(match))

    def abort_upload(self, key: str, upload_id: str) -> None:
        with suppress(MissingUpload):
            self._ask("abort_multipart_upload", key, Key=key, UploadId=upload_id)

    def find_uploads(self, prefix: str, known: Iterable[OpenUpload]) -> Iterator[OpenUpload]:  # noqa: ARG002 - lists
        for item in self._list_pages("list_multipart_uploads", prefix, Prefix=prefix):
            name, upload_id, begun = (
                self._take(prefix, item, field) for field in ("Key", "UploadId", "Initiated")
            )
            yield OpenUpload(name, upload_id, f"{begun:%Y-%m-%d %H:%M:%S %Z}")

    def find_token(self, key: str) -> str | None:
        def read() -> str | None:
            try:
                reply = self._client.head_object(Bucket=self.bucket, Key=key)
            except self._client.exceptions.ClientError as error:
                if _code_of(error) not in _MISSING:
                    raise
                return None
            token: str | None = reply.get("Metadata", {}).get(_TOKEN_KEY)
            return token

        return self._call(key, read)

    def _ask(self, operation: str, name: str, **arguments: Any) -> dict[str, Any]:
        """Return the reply to a request; errors are about an object of this name."""
        ask: Callable[..., dict[str, Any]] = getattr(self._client, operation)
        return self._call(name, lambda: ask(Bucket=self.bucket, **arguments), arguments)

    def _list_pages(self, operation: str, name: str, **arguments: Any) -> Iterator[dict[str, Any]]:
        # The paginators of boto3 end after a request that fails, and could not be asked again.
        field, markers = _PAGES[operation]
        while True:
            page = self._ask(operation, name, **arguments)
            if not page.keys() - {"ResponseMetadata"}:
                raise self._refuse(name, "sends no listing")
            yield from page.get(field, ())
            if not page.get("IsTruncated"):
                return
            following = {argument: page[marker] for argument, marker in markers.items() if marker in page}
            if following.items() <= arguments.items():
                raise self._refuse(name, "does not say where its listing goes on")
            arguments |= following

    def _take(self, key: str, reply: Mapping[str, Any], field: str) -> Any:
        """Return a field of a reply; some gateways leave fields out."""
        if field not in reply:
            raise self._refuse(key, f"does not say {field} in its reply, so nothing can be written there")
        return reply[field]

    def _refuse(self, key: str, problem: str) -> OutputError:
        where = self._client.meta.endpoint_url
        return OutputError(f"{self._name(key)}: the store at {where} {problem}; check the endpoint URL")

    def _call(self, key: str, request: Callable[[], T], arguments: Container[str] = ()) -> T:
        name = self._name(key)
        return self.requests.call_for_output(name, request, partial(self._explain, name, arguments))

    def _explain(self, name: str, arguments: Container[str], error: Any) -> Exception:
        """Return what an error of boto3 says, as one of this class."""
        from botocore.exceptions import ClientError

        if not isinstance(error, ClientError):
            problem = _describe(error)
            return error if problem is None else OutputError(f"{name}: {problem}")
        code = _code_of(error)
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        message = error.response.get("Error", {}).get("Message") or code
        if "IfMatch" in arguments or "IfNoneMatch" in arguments:
            # Another request wrote the object at the same moment, and this one is made again.
            if status == 409:
                return Answer(503, message, code)
            # An object that is to match and does not exist is an error 404 of S3.
            if status == 412 or (code == "NoSuchKey" and "IfMatch" in arguments):
                return Conflict(f"{name}: {message}")
        if code == "InvalidRange":
            return Conflict(f"{name}: {message}")
        if code == "NoSuchUpload":
            return MissingUpload(name)
        if code == "NoSuchBucket":
            return MissingBucketError(
                f"s3://{self.bucket}: there is no such bucket; check the name, or create it"
            )
        if code == CUT_REPLY:
            return ConnectionError("its replies are cut short")
        return Answer(status, message.rstrip("."), OTHER_REGION[0] if status in REDIRECTS else code)


def _condition(match: Match) -> dict[str, str]:
    return {"IfNoneMatch": "*"} if match.etag is None else {"IfMatch": match.etag}


def _code_of(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _describe(error: Exception) -> str | None:
    """Say what is wrong with a request that nobody was asked; None if a store gave no answer."""
    from botocore.exceptions import (
        CredentialRetrievalError,
        NoCredentialsError,
        NoRegionError,
        ParamValidationError,
        PartialCredentialsError,
        SSOError,
        TokenRetrievalError,
    )

    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return NO_CREDENTIALS
    if isinstance(error, CredentialRetrievalError | SSOError | TokenRetrievalError):
        return explain_credentials(error)
    if isinstance(error, NoRegionError):
        return "the region is unknown; set AWS_REGION, or give --storage-option region=NAME"
    if isinstance(error, ParamValidationError):
        return f"{str(error).rpartition(chr(10))[2]}; check the URL"
    return None
