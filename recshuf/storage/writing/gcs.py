"""A bucket of Google Cloud Storage as it is written to: objects by generation, and resumable uploads that stay open.

The identifier of an upload is the URI of its session. A session takes all bytes up to a multiple of 256 KiB; the last
request makes the object, so the rest of a shard waits in a small object of its own, its *tail*, until the commit.
"""

from __future__ import annotations

import base64
import hashlib
import re
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from recshuf.errors import MissingBucketError, OutputError, UsageError
from recshuf.storage import check_given, parse_flag, read_settings
from recshuf.storage.requests import (
    HURRIED_SECONDS,
    Answer,
    MissingObject,
    ShortBody,
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
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from recshuf.storage import StorageOptions


T = TypeVar("T")
_ENDPOINT = "https://storage.googleapis.com"
_SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
_QUANTUM = 256 << 10
"""A session takes multiples of so many bytes, until its last request."""
_SECONDS = (20, 180)
"""Limits for a connection and for a reply."""
_CONNECTIONS = 16
_TOKEN_KEY = "recshuf-upload"  # noqa: S105 - no secret
"""Key of the token in the metadata of an object."""
_INCOMPLETE = 308
"""Answer about an open session."""
_ENDED = (404, 410, 499)
"""Answers about a session that was completed or aborted."""
_OPTIONS = ("base_url", "service_account", "skip_signature")
"""Storage options, without the prefix ``google_``; each is an environment variable, too, as for reading."""


class GcsBucket(Bucket):
    """A bucket of Google Cloud Storage; `scratch` is the prefix of the tails of open uploads."""

    scheme = "gs"
    sends_in_order = True

    def __init__(
        self, bucket: str, options: StorageOptions, scratch: str, *, is_hurried: bool = False
    ) -> None:
        super().__init__(bucket)
        self._scratch = scratch
        check_given("gs", options.options)
        settings = _read_options(options.options)
        self._endpoint = (options.endpoint_url or settings.get("base_url") or _ENDPOINT).rstrip("/")
        self._session = _open_session(settings)
        self._seconds = HURRIED_SECONDS if is_hurried else _SECONDS
        self._begun: dict[str, _Begun] = {}
        """Sessions that this process began."""

    def _put(self, key: str, body: bytes, match: Match) -> str:
        query = {"uploadType": "media", "name": key, **_condition(match)}
        reply = self._ask("POST", f"/upload{self._objects}", key, params=query, data=body, accepted=(412,))
        if reply.status_code == 412:
            raise Conflict(self._name(key))
        return str(reply.json()["generation"])

    def _get(self, key: str, span: tuple[int, int] | None, etag: str | None) -> tuple[bytes, str]:
        given: dict[str, Any] = {
            "headers": {} if span is None else {"Range": f"bytes={span[0]}-{span[1] - 1}"},
            "params": {"alt": "media"} | (_condition(Match(etag)) if etag else {}),
        }
        reply = self._ask("GET", self._object(key), key, accepted=(404, 412, 416), **given)
        if reply.status_code == 404:
            raise MissingObject(self._name(key))
        if not reply.ok:
            raise Conflict(self._name(key))
        return reply.content, reply.headers["x-goog-generation"]

    def list(self, prefix: str) -> Iterator[StoredObject]:
        query = {"prefix": prefix, "fields": "nextPageToken,items(name,size,generation,updated)"}
        while True:
            page = self._ask("GET", self._objects, prefix, params=query).json()
            for item in page.get("items", ()):
                written = datetime.fromisoformat(item["updated"]).timestamp()
                yield StoredObject(item["name"], int(item.get("size", 0)), str(item["generation"]), written)
            if not page.get("nextPageToken"):
                return
            query["pageToken"] = page["nextPageToken"]

    def _delete(self, key: str, match: Match | None = None) -> None:
        condition = {} if match is None else _condition(match)
        self._ask("DELETE", self._object(key), key, params=condition, accepted=(404, 412))

    def _look(self, key: str, field: str) -> dict[str, Any] | None:
        """Return what is known of an object, with one field; None if there is none."""
        reply = self._ask("GET", self._object(key), key, params={"fields": field}, accepted=(404,))
        return None if reply.status_code == 404 else reply.json()

    def find_token(self, key: str) -> str | None:
        found = self._look(key, "metadata") or {}
        token: str | None = found.get("metadata", {}).get(_TOKEN_KEY)
        return token

    def begin_upload(self, key: str, token: str, match: Match) -> str:
        query = {"uploadType": "resumable", "name": key, **_condition(match)}
        told = {"metadata": {_TOKEN_KEY: token}}
        reply = self._ask("POST", f"/upload{self._objects}", key, params=query, json=told, accepted=(412,))
        if reply.status_code == 412:
            raise Conflict(self._name(key))
        session = str(reply.headers["Location"])
        self._begun[session] = _Begun()
        return session

    def send_part(self, key: str, upload_id: str, number: int, body: bytes) -> Part:  # noqa: ARG002 - in order
        begun, whole = self._begun[upload_id], len(body) // _QUANTUM * _QUANTUM
        if whole:
            self._send(key, upload_id, begun.byte_count, memoryview(body)[:whole])
        if whole < len(body):
            self.put(self._tail(upload_id), body[whole:], Match())
        begun.add(body)
        self.part_sizes.append(len(body))
        return Part(str(begun.byte_count), begun.checksum)

    def _send(self, key: str, session: str, begin: int, body: memoryview) -> None:
        """Append bytes to a session that holds `begin` bytes."""
        end, attempts = begin + len(body), count()

        def send() -> None:
            # A request that failed may have left a part of its bytes.
            held = begin if next(attempts) == 0 else self._find_held(key, session)
            if held < end:
                span = f"bytes {held}-{end - 1}/*"
                held = self._count_held(key, self._put_once(session, body[held - begin :], span))
            if held < end:
                raise ShortBody(f"the session has {held} of {end} bytes")

        self._call(key, send)

    def is_whole(self, key: str, upload_id: str, parts: Sequence[Part], byte_count: int) -> bool:
        rest = byte_count % _QUANTUM
        held = self._call(key, lambda: self._find_held(key, upload_id))
        tail = self.read(self._tail(upload_id)) if rest else None
        return parts[-1].etag == str(byte_count) == str(held + rest) and len(tail[0] if tail else b"") == rest

    def complete_upload(self, key: str, upload_id: str, parts: Sequence[Part], match: Match) -> None:
        """See `Bucket`; compared is the `match` of `begin_upload`."""
        size, checksum = int(parts[-1].etag), parts[-1].checksum
        rest = size % _QUANTUM
        tail = self.read(self._tail(upload_id)) if rest else (b"", "")
        if tail is None:
            raise MissingUpload(self._name(key))
        span = f"bytes {size - rest}-{size - 1}/{size}" if rest else f"bytes */{size}"
        reply = self._call(
            key, lambda: self._put_once(upload_id, tail[0], span, {"X-Goog-Hash": f"md5={checksum}"})
        )
        if reply.status_code == 412:
            if match.etag is not None and self._look(key, "generation") is None:
                self.abort_upload(key, upload_id)  # no object will have this generation
                raise MissingUpload(self._name(key))
            raise Conflict(self._name(key))
        if not reply.ok or reply.status_code == _INCOMPLETE:
            raise MissingUpload(self._name(key))
        if rest:
            with suppress(OutputError):  # the object is whole, and recshuf clean finds the rest
                self._delete(self._tail(upload_id))

    def abort_upload(self, key: str, upload_id: str) -> None:
        self._call(key, lambda: self._request("DELETE", upload_id, accepted=_ENDED))
        self._delete(self._tail(upload_id))

    def find_uploads(self, prefix: str, known: Iterable[OpenUpload]) -> Iterator[OpenUpload]:
        """See `Bucket`; sessions cannot be listed."""
        for upload in known:
            with suppress(MissingUpload):
                if upload.key.startswith(prefix):
                    self._call(upload.key, partial(self._find_held, upload.key, upload.upload_id))
                    yield upload

    def _find_held(self, key: str, session: str) -> int:
        """Return how many bytes a session holds."""
        return self._count_held(key, self._put_once(session))

    def _count_held(self, key: str, reply: Any) -> int:
        """Return how many bytes a session holds after a request to it."""
        if reply.status_code != _INCOMPLETE:
            raise MissingUpload(self._name(key))
        held = re.fullmatch(r"bytes=0-(\d+)", reply.headers.get("Range", ""))
        return int(held[1]) + 1 if held else 0

    def _put_once(
        self,
        session: str,
        body: bytes | memoryview = b"",
        span: str = "bytes */*",
        headers: Mapping[str, str] = {},
    ) -> Any:
        headers = {"Content-Range": span, **headers}
        return self._request("PUT", session, data=body, headers=headers, accepted=(_INCOMPLETE, 412, *_ENDED))

    def _ask(self, method: str, path: str, key: str, **arguments: Any) -> Any:
        return self._call(key, lambda: self._request(method, f"{self._endpoint}{path}", **arguments))

    def _request(self, method: str, url: str, accepted: Sequence[int] = (), **arguments: Any) -> Any:
        """Return the reply to one request; other errors than accepted ones are raised."""
        from google.auth.exceptions import GoogleAuthError, TransportError

        try:
            reply = self._session.request(
                method, url, timeout=self._seconds, allow_redirects=False, **arguments
            )
        except GoogleAuthError as error:
            # The servers of credentials may not be reached either, which may pass.
            if error.retryable or any(
                isinstance(cause, TransportError) for cause in (error, error.__cause__)
            ):
                raise
            raise Answer(401, str(error)) from error
        if reply.ok or reply.status_code in accepted:
            return reply
        if reply.status_code == 404:
            raise MissingBucketError(
                f"gs://{self.bucket}: there is no such bucket; check the name, or create it"
            )
        raise Answer(reply.status_code, _find_message(reply))

    def _call(self, key: str, request: Callable[[], T]) -> T:
        return self.requests.call_for_output(self._name(key), request)

    @property
    def _objects(self) -> str:
        return f"/storage/v1/b/{self.bucket}/o"

    def _object(self, key: str) -> str:
        return f"{self._objects}/{quote(key, safe='')}"

    def _tail(self, session: str) -> str:
        return f"{self._scratch}{hashlib.sha256(session.encode()).hexdigest()[:32]}.tail"


class _Begun:
    """What was sent to a session."""

    def __init__(self) -> None:
        self.byte_count = 0
        self._hash = hashlib.md5(usedforsecurity=False)

    @property
    def checksum(self) -> str:
        """MD5 of all bytes, in base64."""
        return base64.b64encode(self._hash.digest()).decode()

    def add(self, body: bytes) -> None:
        self.byte_count += len(body)
        self._hash.update(body)


def _condition(match: Match) -> dict[str, str]:
    """Return parameters of a request; no object has generation 0."""
    return {"ifGenerationMatch": match.etag or "0"}


def _find_message(reply: Any) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return str(reply.reason)


def _read_options(options: Mapping[str, str]) -> dict[str, str]:
    settings = read_settings("gs", ("google_",), options, _OPTIONS)
    named = {name.lower().removeprefix("google_") for name in options}
    if parse_flag("skip_signature", settings.get("skip_signature", "false")) and "service_account" in named:
        raise UsageError(
            "--storage-option service_account: contradicts skip_signature; leave out one of them"
        )
    return settings


def _open_session(settings: Mapping[str, str]) -> Any:
    """Return a session of requests with credentials; those of the environment, if the settings name none."""
    try:
        import google.auth
        import requests
        from google.auth.transport.requests import AuthorizedSession
    except ImportError as error:
        raise UsageError("writing gs:// needs google-auth and requests; install recshuf[cloud]") from error
    if parse_flag("skip_signature", settings.get("skip_signature", "false")):
        session = requests.Session()
    else:
        session = AuthorizedSession(_find_credentials(google.auth, settings.get("service_account")))
    for prefix in ("https://", "http://"):
        session.mount(prefix, requests.adapters.HTTPAdapter(pool_maxsize=_CONNECTIONS))
    return session


def _find_credentials(auth: Any, path: str | None) -> Any:
    try:
        if path:
            from google.oauth2.service_account import Credentials

            return Credentials.from_service_account_file(path, scopes=[_SCOPE])
        return auth.default(scopes=[_SCOPE])[0]
    except (auth.exceptions.GoogleAuthError, OSError, ValueError) as error:
        raise UsageError(
            "there are no valid credentials for gs://; set GOOGLE_APPLICATION_CREDENTIALS, or run gcloud auth "
            f"application-default login ({str(error).partition(chr(10))[0]})"
        ) from error
