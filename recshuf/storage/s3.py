"""A bucket of S3 as it is written to: conditional puts and deletes, and multipart uploads that stay open."""

from __future__ import annotations

import base64
import os
import time
import zlib
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from recshuf.errors import OutputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from recshuf.storage.settings import StorageOptions

MOST_PARTS = 10_000
MOST_PART_BYTES = 5 << 30
CONNECTIONS = 16
_ATTEMPTS = 8
"""Of each request, with a growing pause between them; the last pauses are 20 s."""
_CONFLICT_ATTEMPTS = 6
_CONFLICT_SECONDS = 0.05
"""Pause after the first conflict of two writers of an object; it doubles."""
_DELETED_AT_ONCE = 1000
_TOKEN_KEY = "recshuf-upload"  # noqa: S105 - no secret
"""Key of the token in the metadata of an object."""
_SESSION_OPTIONS = {
    "access_key_id": "aws_access_key_id",
    "secret_access_key": "aws_secret_access_key",
    "session_token": "aws_session_token",
    "token": "aws_session_token",
    "region": "region_name",
    "default_region": "region_name",
    "profile": "profile_name",
}
"""Argument of a boto3 session for each storage option, without the prefix ``aws_``."""
_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidToken", "TokenRefreshRequired")
_FORBIDDEN = ("AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "AllAccessDisabled")
_BUSY = ("SlowDown", "ServiceUnavailable", "503", "Throttling", "RequestLimitExceeded")


class Conflict(Exception):  # noqa: N818 - no failure of its own
    """An object is not as a conditional request demands. Never reaches the user."""


class MissingUpload(Exception):  # noqa: N818 - no failure of its own
    """An upload was completed or aborted. Never reaches the user."""


class StoredObject(NamedTuple):
    """An object in a listing."""

    key: str
    byte_count: int
    etag: str


class OpenUpload(NamedTuple):
    """An upload in a listing."""

    key: str
    upload_id: str
    begun: str
    """Time of its begin, in words."""


class Part(NamedTuple):
    """A part of an upload."""

    etag: str
    checksum: str
    """CRC-32 in base64; empty if unknown."""


@dataclass(frozen=True, slots=True)
class Match:
    """What must be at a key when it is written."""

    etag: str | None = None
    """ETag of the object there; None for no object."""

    @property
    def arguments(self) -> dict[str, str]:
        """Arguments of boto3."""
        return {"IfNoneMatch": "*"} if self.etag is None else {"IfMatch": self.etag}


class S3Bucket:
    """A bucket, and the number of requests that succeeded, each with its retries. Many threads may use it.

    Every method raises an `OutputError` that names the object when a request fails for good.

    Raises
    ------
    UsageError
        When boto3 is not installed or takes no such option.
    """

    def __init__(self, bucket: str, options: StorageOptions) -> None:
        self.bucket = bucket
        self.requests = 0
        self.retries = 0
        self.part_sizes: list[int] = []
        """Bytes of each part that was sent."""
        self._client = _make_client(options)

    def put(self, key: str, body: bytes, match: Match) -> str:
        """Write an object, and return its ETag; one that has these bytes already is left as it is.

        Raises
        ------
        Conflict
            When `match` does not hold.
        """
        try:
            reply = self._call_again("put_object", key, Body=body, **match.arguments)
        except Conflict:
            # The reply to an earlier attempt may have been lost.
            found = self.read(key)
            if found is None or found[0] != body:
                raise
            return found[1]
        return str(reply["ETag"])

    def read(self, key: str) -> tuple[bytes, str] | None:
        """Return content and ETag of an object; None if there is none."""
        with self._explaining(key):
            try:
                reply = self._request("get_object", Key=key)
                return reply["Body"].read(), str(reply["ETag"])
            except self._client.exceptions.NoSuchKey:
                return None

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects whose keys begin with a prefix, in the order of keys."""
        for one in self._list_pages("list_objects_v2", "Contents", prefix):
            yield StoredObject(one["Key"], one["Size"], one["ETag"])

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, if they exist."""
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
        """Delete an object unless it has another ETag."""
        with suppress(Conflict):
            self._call("delete_object", key, IfMatch=etag)

    def begin_upload(self, key: str, token: str) -> str:
        """Return the identifier of a new upload; the object gets the token once it is completed."""
        reply = self._call(
            "create_multipart_upload", key, Metadata={_TOKEN_KEY: token}, ChecksumAlgorithm="CRC32"
        )
        return str(reply["UploadId"])

    def send_part(self, key: str, upload_id: str, number: int, body: bytes) -> Part:
        """Upload a part; the first has number 1. The store compares it with its checksum."""
        checksum = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
        reply = self._call(
            "upload_part", key, UploadId=upload_id, PartNumber=number, Body=body, ChecksumCRC32=checksum
        )
        self.part_sizes.append(len(body))
        return Part(str(reply["ETag"]), checksum)

    def list_parts(self, key: str, upload_id: str) -> dict[int, tuple[str, int]]:
        """Return ETag and size of each part of an open upload, by its number.

        Raises
        ------
        MissingUpload
            When it is not open.
        """
        pages = self._list_pages("list_parts", "Parts", key, Key=key, UploadId=upload_id)
        return {one["PartNumber"]: (one["ETag"], one["Size"]) for one in pages}

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[Part], match: Match) -> None:
        """Make an object of an upload.

        Raises
        ------
        Conflict
            When `match` does not hold.
        MissingUpload
            When it is not open.
        """
        numbered = [
            {"PartNumber": number, "ETag": part.etag, "ChecksumCRC32": part.checksum}
            for number, part in enumerate(parts, 1)
        ]
        self._call_again(
            "complete_multipart_upload",
            key,
            UploadId=upload_id,
            MultipartUpload={"Parts": numbered},
            **match.arguments,
        )

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Abort an upload, if it is open."""
        with suppress(MissingUpload):
            self._call("abort_multipart_upload", key, UploadId=upload_id)

    def list_uploads(self, prefix: str) -> Iterator[OpenUpload]:
        """Yield the open uploads of keys that begin with a prefix."""
        for one in self._list_pages("list_multipart_uploads", "Uploads", prefix):
            yield OpenUpload(one["Key"], one["UploadId"], f"{one['Initiated']:%Y-%m-%d %H:%M:%S %Z}")

    def find_token(self, key: str) -> str | None:
        """Return the token of an object; None if it has none, or there is no object."""
        with self._explaining(key):
            try:
                found = self._request("head_object", Key=key)
            except self._client.exceptions.ClientError as error:
                if _code_of(error) not in ("404", "NoSuchKey", "NotFound"):
                    raise
                return None
        token: str | None = found.get("Metadata", {}).get(_TOKEN_KEY)
        return token

    def _call(self, operation: str, key: str, **given: Any) -> dict[str, Any]:
        with self._explaining(key):
            return self._request(operation, Key=key, **given)

    def _call_again(self, operation: str, key: str, **given: Any) -> dict[str, Any]:
        """Do what `_call` does; a conflict with another writer at the same moment is tried again."""
        for attempt in range(_CONFLICT_ATTEMPTS - 1):
            try:
                return self._call(operation, key, **given)
            except _Race:
                time.sleep(_CONFLICT_SECONDS * 2**attempt)
        return self._call(operation, key, **given)

    def _list_pages(self, operation: str, field: str, prefix: str, **given: Any) -> Iterator[dict[str, Any]]:
        with self._explaining(prefix):
            pages = self._client.get_paginator(operation)
            for page in pages.paginate(Bucket=self.bucket, **(given or {"Prefix": prefix})):
                self._count(page)
                yield from page.get(field, ())

    def _request(self, operation: str, **given: Any) -> dict[str, Any]:
        call: Callable[..., dict[str, Any]] = getattr(self._client, operation)
        reply = call(Bucket=self.bucket, **given)
        self._count(reply)
        return reply

    def _count(self, reply: dict[str, Any]) -> None:
        retries = reply.get("ResponseMetadata", {}).get("RetryAttempts", 0)
        self.requests += 1 + retries
        self.retries += retries

    def _name(self, key: str) -> str:
        return f"s3://{self.bucket}/{key}"

    @contextmanager
    def _explaining(self, key: str) -> Iterator[None]:
        """Raise the errors of boto3 as those of this class."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            yield
        except ClientError as error:
            raise self._explain(key, error) from error
        except BotoCoreError as error:
            raise OutputError(f"{self._name(key)}: {_describe(error)}") from error

    def _explain(self, key: str, error: Any) -> Exception:
        code, status = _code_of(error), error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        message = error.response.get("Error", {}).get("Message") or code
        name = self._name(key)
        if code == "ConditionalRequestConflict" or status == 409:
            return _Race(f"{name}: {message}")
        # An object that is to match and does not exist is an error 404 of S3.
        if code == "PreconditionFailed" or status == 412 or code == "NoSuchKey":
            return Conflict(f"{name}: {message}")
        if code == "NoSuchUpload":
            return MissingUpload(name)
        if code == "NoSuchBucket":
            return OutputError(f"s3://{self.bucket}: there is no such bucket; create it first")
        return OutputError(f"{name}: {_find_problem(code, message)}")


class _Race(Conflict):
    """Another request wrote the object at the same moment."""


def _code_of(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _find_problem(code: str, message: str) -> str:
    """Return what is wrong, and what to do."""
    if code in _EXPIRED:
        return f"the credentials have expired ({code}); renew them, and run again"
    if code in _FORBIDDEN:
        return f"access is denied ({code}); check the credentials and the policy of the bucket"
    if code in _BUSY:
        return f"the store is busy ({code}), after {_ATTEMPTS} attempts; run again later"
    return f"the store answers {code}: {message}"


def _describe(error: Exception) -> str:
    """Return what is wrong when a request got no answer."""
    from botocore.exceptions import (
        CredentialRetrievalError,
        NoCredentialsError,
        NoRegionError,
        PartialCredentialsError,
        SSOError,
        TokenRetrievalError,
    )

    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return "there are no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
    if isinstance(error, CredentialRetrievalError | SSOError | TokenRetrievalError):
        return f"there are no valid credentials: {error}".rstrip(".") + "; renew them, and run again"
    if isinstance(error, NoRegionError):
        return "the region is unknown; set AWS_REGION, or give --storage-option region=NAME"
    return f"the store cannot be reached: {error}".rstrip(".")


def _make_client(options: StorageOptions) -> Any:
    """Return a client of boto3."""
    try:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError
    except ImportError as error:
        raise UsageError("writing to s3:// needs boto3; install recshuf[cloud]") from error
    # Other libraries for object stores read this variable, and boto3 does not.
    session: dict[str, str | None] = {"region_name": os.environ.get("AWS_REGION")}
    others = []
    for name, value in options.options.items():
        known = _SESSION_OPTIONS.get(name.lower().removeprefix("aws_"))
        if known is None:
            others.append(name)
        else:
            session[known] = value
    if others:
        raise UsageError(
            f"--storage-option {others[0]}: is not taken for an output in s3://; known are "
            f"{', '.join(_SESSION_OPTIONS)}"
        )
    config = Config(
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS}, max_pool_connections=CONNECTIONS
    )
    try:
        return boto3.Session(**session).client("s3", endpoint_url=options.endpoint_url, config=config)
    except (BotoCoreError, ValueError) as error:
        raise UsageError(f"--storage-option: {error}") from error
