"""A container of Azure Blob Storage as it is written to: conditional writes, and blocks that nobody sees until committed.

An upload is a set of blocks whose names begin with its identifier, which begins with its token. Blocks that are never
committed go after a week; no request removes or lists them.
"""

from __future__ import annotations

import base64
import secrets
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from recshuf.errors import MissingBucketError, UsageError
from recshuf.storage import NO_ACCOUNT, check_given, read_settings
from recshuf.storage.requests import HURRIED_SECONDS, Answer, MissingObject
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
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from recshuf.storage import StorageOptions


T = TypeVar("T")
_SECONDS = {"connection_timeout": 20, "read_timeout": 180}
_TOKEN_KEY = "recshuf_upload"  # noqa: S105 - no secret
"""Key of the token in the metadata of a blob."""
_OPTIONS = ("account_name", "account_key", "sas_key", "endpoint")
"""Storage options, without the prefix ``azure_storage_``; each is an environment variable, too, as for reading."""
_CONFLICTS = ("ConditionNotMet", "BlobAlreadyExists", "TargetConditionNotMet", "InvalidRange")
_LOST = ("InvalidBlockList", "InvalidBlobOrBlock")
_MISSING = ("BlobNotFound", "ResourceNotFound")


class AzureBucket(Bucket):
    """A container of Azure Blob Storage."""

    scheme = "az"

    def __init__(self, container: str, options: StorageOptions, *, is_hurried: bool = False) -> None:
        super().__init__(container)
        check_given("az", options.options)
        settings = read_settings("az", ("azure_storage_", "azure_", "storage_"), options.options, _OPTIONS)
        if options.endpoint_url:
            settings["endpoint"] = options.endpoint_url
        seconds = dict(zip(_SECONDS, HURRIED_SECONDS, strict=True)) if is_hurried else _SECONDS
        self._client = _open_container(container, settings, seconds)

    def _put(self, key: str, body: bytes, match: Match) -> str:
        blob = self._client.get_blob_client(key)
        reply = self._call(key, lambda: blob.upload_blob(body, overwrite=True, **_condition(match)))
        return _strip(reply["etag"])

    def _get(self, key: str, span: tuple[int, int] | None, etag: str | None) -> tuple[bytes, str]:
        begin, size = (None, None) if span is None else (span[0], span[1] - span[0])
        match = _condition(Match(etag)) if etag else {}

        def read() -> tuple[bytes, str]:
            reply = self._client.get_blob_client(key).download_blob(begin, size, **match)
            return bytes(reply.readall()), _strip(reply.properties.etag)

        try:
            return self._call(key, read)
        except Conflict:
            # Of a blob that is gone, the ETag may be compared before it is missed.
            self._call(key, lambda: self._client.get_blob_client(key).get_blob_properties())
            raise

    def list(self, prefix: str) -> Iterator[StoredObject]:
        for blob in self._call(prefix, lambda: list(self._client.list_blobs(name_starts_with=prefix))):
            yield StoredObject(blob.name, blob.size, _strip(blob.etag), blob.last_modified.timestamp())

    def _delete(self, key: str, match: Match | None = None) -> None:
        condition = {} if match is None else _condition(match)
        with suppress(MissingObject):
            self._call(key, lambda: self._client.get_blob_client(key).delete_blob(**condition))

    def find_token(self, key: str) -> str | None:
        with suppress(MissingObject):
            properties = self._call(key, lambda: self._client.get_blob_client(key).get_blob_properties())
            token: str | None = properties.metadata.get(_TOKEN_KEY)
            return token
        return None

    def begin_upload(self, key: str, token: str, match: Match) -> str:  # noqa: ARG002 - no request, so nothing to compare
        return f"{token}-{secrets.token_hex(4)}-"

    def send_part(self, key: str, upload_id: str, number: int, body: bytes) -> Part:
        name, blob = f"{upload_id}{number:06d}", self._client.get_blob_client(key)
        if body:  # a block has a byte
            self._call(key, lambda: blob.stage_block(name, body, len(body), validate_content=True))
        self.part_sizes.append(len(body))
        return Part(name if body else "", "")

    def is_whole(self, key: str, upload_id: str, parts: Sequence[Part], byte_count: int) -> bool:
        try:
            _, blocks = self._call(key, lambda: self._client.get_blob_client(key).get_block_list("all"))
        except MissingObject:
            blocks = []
        sizes = {block.id: block.size for block in blocks if block.id.startswith(upload_id)}
        if not sizes and _find_names(parts):
            raise MissingUpload(self._name(key))
        return list(sizes) == _find_names(parts) and sum(sizes.values()) == byte_count

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[Part], match: Match) -> None:
        from azure.storage.blob import BlobBlock

        blocks = [BlobBlock(name) for name in _find_names(parts)]
        token = {_TOKEN_KEY: upload_id.partition("-")[0]}
        blob = self._client.get_blob_client(key)
        self._call(key, lambda: blob.commit_block_list(blocks, metadata=token, **_condition(match)))

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Do nothing."""

    def find_uploads(self, prefix: str, known: Iterable[OpenUpload]) -> Iterator[OpenUpload]:  # noqa: ARG002 - nothing can be done about them
        return iter(())

    def _call(self, key: str, request: Callable[[], T]) -> T:
        name = self._name(key)
        return self.requests.call_for_output(name, request, partial(self._explain, name))

    def _explain(self, name: str, error: Any) -> Exception:
        """Return what an error of the library says, as one of this class."""
        from azure.core.exceptions import AzureError, ClientAuthenticationError

        if not isinstance(error, AzureError):
            return error  # type: ignore[no-any-return] # it is one
        if not hasattr(error, "error_code"):  # the store has not answered, or not to the end
            is_refused = isinstance(error, ClientAuthenticationError)
            return Answer(401, str(error), "") if is_refused else ConnectionError(str(error))
        code = str(getattr(error.error_code, "value", error.error_code) or "")
        if code == "ContainerNotFound":
            return MissingBucketError(
                f"az://{self.bucket}: there is no such container; check the name, or create it"
            )
        if code in _CONFLICTS or error.status_code == 412:
            return Conflict(name)
        if code in _LOST:
            return MissingUpload(name)
        if code in _MISSING:
            return MissingObject(name)
        return Answer(error.status_code, error.reason or str(error), code)


def _find_names(parts: Sequence[Part]) -> list[str]:
    """Return the names of the blocks of parts; a part without bytes has none."""
    return [part.etag for part in parts if part.etag]


def _strip(etag: str) -> str:
    """Return an ETag as listings have it."""
    return etag.strip('"')


def _condition(match: Match) -> dict[str, Any]:
    from azure.core import MatchConditions

    if match.etag is None:
        return {"match_condition": MatchConditions.IfMissing}
    return {"match_condition": MatchConditions.IfNotModified, "etag": f'"{match.etag}"'}


def _open_container(container: str, settings: Mapping[str, str], seconds: Mapping[str, int]) -> Any:
    """Return a client of azure-storage-blob, which makes each request once."""
    try:
        from azure.storage.blob import ContainerClient
    except ImportError as error:
        raise UsageError("writing az:// needs azure-storage-blob; install recshuf[cloud]") from error
    account = settings.get("account_name")
    if account is None:
        raise UsageError(NO_ACCOUNT)
    endpoint = settings.get("endpoint", f"https://{account}.blob.core.windows.net")
    return ContainerClient(
        endpoint, container, credential=_find_credential(account, settings), retry_total=0, **seconds
    )


def _find_credential(account: str, settings: Mapping[str, str]) -> Any:
    if "account_key" in settings:
        try:
            base64.b64decode(settings["account_key"], validate=True)
        except ValueError as error:
            raise UsageError(
                "az://: the account key is no base64; check AZURE_STORAGE_ACCOUNT_KEY or --storage-option account_key"
            ) from error
        return {"account_name": account, "account_key": settings["account_key"]}
    if "sas_key" in settings:
        return settings["sas_key"]
    try:
        from azure.identity import DefaultAzureCredential
    except ImportError as error:
        raise UsageError(
            "az://: there are no credentials; set AZURE_STORAGE_ACCOUNT_KEY, or install azure-identity"
        ) from error
    return DefaultAzureCredential()
