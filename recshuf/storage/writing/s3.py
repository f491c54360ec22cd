"""A bucket of S3 as it is written to: conditional puts and deletes, and multipart uploads that stay open."""

from __future__ import annotations

import base64
import time
import zlib
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from recshuf.errors import MissingBucketError, OutputError
from recshuf.storage.requests import (
    ATTEMPTS,
    OTHER_REGION,
    REDIRECTS,
    UNREACHED_REMEDY,
    Failure,
    MissingObject,
    pause,
)
from recshuf.storage.s3_session import (
    CUT_REPLY,
    NO_CREDENTIALS,
    check_credentials,
    explain_credentials,
    make_client,
    make_session,
)
from recshuf.storage.writing.bucket import (
    Bucket,
    Conflict,
    Match,
    MissingUpload,
    OpenUpload,
    Part,
    StoredObject,
    check_range,
)
from recshuf.system.threads import NoAnswerError, call_while_stopping

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from recshuf.storage.settings import StorageOptions


_CONFLICT_ATTEMPTS = 6
_CONFLICT_SECONDS = 0.05
"""Pause after the first conflict of two writers of an object; it doubles."""
_DELETED_AT_ONCE = 1000
_TOKEN_KEY = "recshuf-upload"  # noqa: S105 - no secret
"""Key of the token in the metadata of an object."""


class S3Bucket(Bucket):
    """A bucket of S3."""

    scheme = "s3"

    def __init__(self, bucket: str, options: StorageOptions, *, is_hurried: bool = False) -> None:
        super().__init__(bucket)
        session = make_session(options.options)
        check_credentials(session)
        self._client = make_client(session, options.endpoint_url, is_hurried=is_hurried)
        self._attempts = 2 if is_hurried else ATTEMPTS
        """Of reading the body of a reply."""

    def _put(self, key: str, body: bytes, match: Match) -> str:
        reply = self._call_again("put_object", key, Body=body, **_condition(match))
        return str(self._take(key, reply, "ETag"))

    def read(self, key: str) -> tuple[bytes, str] | None:
        with self._explaining(key):
            try:
                return self._read(key)
            except self._client.exceptions.NoSuchKey:
                return None

    def read_range(self, key: str, begin: int, end: int, etag: str | None) -> tuple[bytes, str]:
        given = {"Range": f"bytes={begin}-{end - 1}"} | ({"IfMatch": etag} if etag else {})
        with self._explaining(key, given):
            try:
                content, found = self._read(key, **given)
            except self._client.exceptions.NoSuchKey as error:
                raise MissingObject(self._name(key)) from error
        if len(content) > end - begin:
            raise OutputError(
                f"{self._name(key)}: the store at {self._client.meta.endpoint_url} sends other bytes than are asked for; check "
                "the endpoint URL"
            )
        return check_range(self._name(key), content, begin, end), found

    def _read(self, key: str, **given: str) -> tuple[bytes, str]:
        from botocore.exceptions import IncompleteReadError, ReadTimeoutError, ResponseStreamingError
        from urllib3.exceptions import HTTPError

        for attempt in range(self._attempts):
            try:
                reply = self._request("get_object", Key=key, **given)
                return reply["Body"].read(), str(self._take(key, reply, "ETag"))
            except (IncompleteReadError, ReadTimeoutError, ResponseStreamingError, HTTPError):
                # boto3 makes requests again, and leaves bodies to its callers; those of errors raise what urllib3 does.
                if attempt == self._attempts - 1:
                    raise
            self.requests.retries += 1
            pause(attempt)
        raise RuntimeError("unreachable")

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for item in self._list_pages("list_objects_v2", "Contents", prefix):
            key, size, etag, modified = (
                self._take(prefix, item, field) for field in ("Key", "Size", "ETag", "LastModified")
            )
            yield StoredObject(key, size, etag, modified.timestamp())

    def delete(self, keys: Sequence[str]) -> None:
        for start in range(0, len(keys), _DELETED_AT_ONCE):
            some = keys[start : start + _DELETED_AT_ONCE]
            with self._explaining(some[0]):
                objects = {"Objects": [{"Key": key} for key in some], "Quiet": True}
                failed = self._request("delete_objects", Delete=objects).get("Errors")
            if failed:
                raise OutputError(
                    f"{self._name(failed[0]['Key'])}: cannot be deleted: {failed[0].get('Message')}"
                )

    def delete_if(self, key: str, etag: str) -> None:
        with suppress(Conflict):
            self._call("delete_object", key, IfMatch=etag)

    def begin_upload(self, key: str, token: str, match: Match) -> str:  # noqa: ARG002 - of the end
        reply = self._call(
            "create_multipart_upload", key, Metadata={_TOKEN_KEY: token}, ChecksumAlgorithm="CRC32"
        )
        return str(self._take(key, reply, "UploadId"))

    def send_part(self, key: str, upload_id: str, number: int, body: bytes) -> Part:
        checksum = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
        reply = self._call(
            "upload_part", key, UploadId=upload_id, PartNumber=number, Body=body, ChecksumCRC32=checksum
        )
        self.part_sizes.append(len(body))
        return Part(str(self._take(key, reply, "ETag")), checksum)

    def is_whole(self, key: str, upload_id: str, parts: Sequence[Part], byte_count: int) -> bool:
        sent = list(self._list_pages("list_parts", "Parts", key, Key=key, UploadId=upload_id))
        etags = {self._take(key, item, "PartNumber"): self._take(key, item, "ETag") for item in sent}
        named = {number: part.etag for number, part in enumerate(parts, 1)}
        return etags == named and sum(self._take(key, item, "Size") for item in sent) == byte_count

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[Part], match: Match) -> None:
        numbered = [
            {"PartNumber": number, "ETag": part.etag, "ChecksumCRC32": part.checksum}
            for number, part in enumerate(parts, 1)
        ]
        self._call_again(
            "complete_multipart_upload",
            key,
            UploadId=upload_id,
            MultipartUpload={"Parts": numbered},
            **_condition(match),
        )

    def abort_upload(self, key: str, upload_id: str) -> None:
        with suppress(MissingUpload):
            self._call("abort_multipart_upload", key, UploadId=upload_id)

    def find_uploads(self, prefix: str, known: Iterable[OpenUpload]) -> Iterator[OpenUpload]:  # noqa: ARG002 - lists
        for item in self._list_pages("list_multipart_uploads", "Uploads", prefix):
            name, upload_id, begun = (
                self._take(prefix, item, field) for field in ("Key", "UploadId", "Initiated")
            )
            yield OpenUpload(name, upload_id, f"{begun:%Y-%m-%d %H:%M:%S %Z}")

    def find_token(self, key: str) -> str | None:
        with self._explaining(key):
            try:
                reply = self._request("head_object", Key=key)
            except self._client.exceptions.ClientError as error:
                if _code_of(error) not in ("404", "NoSuchKey", "NotFound"):
                    raise
                return None
        token: str | None = reply.get("Metadata", {}).get(_TOKEN_KEY)
        return token

    def _call(self, operation: str, key: str, **arguments: Any) -> dict[str, Any]:
        with self._explaining(key, arguments):
            return self._request(operation, Key=key, **arguments)

    def _call_again(self, operation: str, key: str, **arguments: Any) -> dict[str, Any]:
        """Do what `_call` does; a conflict with another writer at the same moment is tried again."""
        for attempt in range(_CONFLICT_ATTEMPTS - 1):
            try:
                return self._call(operation, key, **arguments)
            except _Race:
                time.sleep(_CONFLICT_SECONDS * 2**attempt)
        return self._call(operation, key, **arguments)

    def _list_pages(
        self, operation: str, field: str, prefix: str, **arguments: Any
    ) -> Iterator[dict[str, Any]]:
        with self._explaining(prefix):
            paginator = self._client.get_paginator(operation)
            pages = iter(paginator.paginate(Bucket=self.bucket, **(arguments or {"Prefix": prefix})))
            while (page := call_while_stopping(lambda: next(pages, None))) is not None:
                self._count(page)
                if not page.keys() - {"ResponseMetadata"}:
                    raise OutputError(
                        f"{self._name(prefix)}: the store at {self._client.meta.endpoint_url} sends no listing; check "
                        "the endpoint URL"
                    )
                yield from page.get(field, ())

    def _request(self, operation: str, **arguments: Any) -> dict[str, Any]:
        call: Callable[..., dict[str, Any]] = getattr(self._client, operation)
        reply = call_while_stopping(lambda: call(Bucket=self.bucket, **arguments))
        self._count(reply)
        return reply

    def _count(self, reply: dict[str, Any]) -> None:
        retries = reply.get("ResponseMetadata", {}).get("RetryAttempts", 0)
        self.requests.count += 1 + retries
        self.requests.retries += retries

    def _take(self, key: str, reply: Mapping[str, Any], field: str) -> Any:
        """Return a field of a reply; some gateways leave fields out."""
        if field not in reply:
            raise OutputError(
                f"{self._name(key)}: the store at {self._client.meta.endpoint_url} does not say {field} in its reply, so "
                "nothing can be written there; check the endpoint URL"
            )
        return reply[field]

    @contextmanager
    def _explaining(self, key: str, arguments: Container[str] = ()) -> Iterator[None]:
        """Raise the errors of boto3 as those of this class, given the arguments of the request."""
        from botocore.exceptions import BotoCoreError, ClientError
        from urllib3.exceptions import HTTPError

        try:
            yield
        except ClientError as error:
            raise self._explain(key, error, arguments) from error
        except (BotoCoreError, HTTPError) as error:
            raise OutputError(f"{self._name(key)}: {_describe(error)}") from error
        except NoAnswerError as error:
            raise OutputError(f"{self._name(key)}: {error}") from error

    def _explain(self, key: str, error: Any, arguments: Container[str]) -> Exception:
        code = _code_of(error)
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        message = error.response.get("Error", {}).get("Message") or code
        name = self._name(key)
        if "IfMatch" in arguments or "IfNoneMatch" in arguments:
            if code == "ConditionalRequestConflict" or status == 409:
                return _Race(f"{name}: {message}")
            # An object that is to match and does not exist is an error 404 of S3.
            if (
                code == "PreconditionFailed"
                or status == 412
                or (code == "NoSuchKey" and "IfMatch" in arguments)
            ):
                return Conflict(f"{name}: {message}")
        if code == "InvalidRange":
            return Conflict(f"{name}: {message}")
        if code == "NoSuchUpload":
            return MissingUpload(name)
        if code == "NoSuchBucket":
            return MissingBucketError(f"s3://{self.bucket}: there is no such bucket; create it first")
        if code == CUT_REPLY:
            return OutputError(
                f"{name}: the store cannot be reached: its replies are cut short; {UNREACHED_REMEDY}"
            )
        if status in REDIRECTS:
            code = OTHER_REGION[0]
        return OutputError(str(Failure(status, code, message.rstrip(".")).explain(name)))


class _Race(Conflict):
    """Another request wrote the object at the same moment."""


def _condition(match: Match) -> dict[str, str]:
    return {"IfNoneMatch": "*"} if match.etag is None else {"IfMatch": match.etag}


def _code_of(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _describe(error: Exception) -> str:
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
    return f"the store cannot be reached: {error}".rstrip(".") + f"; {UNREACHED_REMEDY}"
