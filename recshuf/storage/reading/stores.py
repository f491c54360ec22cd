"""Stores of obstore, and the choice of the store of a URL."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from recshuf.errors import InputError, UnavailableInputError, UsageError
from recshuf.interfaces import Stamp
from recshuf.storage.requests import NO_BUCKET, ChangedObject, Entry, MissingObject, Requests, ShortBody
from recshuf.storage.settings import NO_ACCOUNT, check_given, parse_flag
from recshuf.system.threads import Pool, call_interruptibly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _typeshed import ReadableBuffer

    from recshuf.storage.requests import Store
    from recshuf.storage.settings import StorageOptions
    from recshuf.storage.urls import Url


T = TypeVar("T")
_TIMEOUTS = {"connect_timeout": "20s", "timeout": "180s"}
_PAGE_KEYS = 1000
_MOST_LISTINGS = 2
"""Of the same keys in a reply; some gateways send the first page for ever."""
_ASKERS = 16
"""Threads that ask for objects without bytes."""
_ENDPOINTS = {"gs": "base_url", "az": "endpoint"}
"""Option of obstore for the URL of the server."""
_PROVIDER = "External AWS credential provider: "
"""What obstore says before the error of boto3."""
_SLASH_REMEDY = "leave out a slash, or rename the object"
_KEY_REMEDY = "rename the object, or give a prefix that it does not lie below"


class ObstoreStore:
    """A bucket of S3 or GCS, or a container of Azure; a `Store`.

    Raises
    ------
    UsageError
        When a library is not installed, or takes no such option.
    """

    is_bound = True

    def __init__(self, url: Url, options: StorageOptions) -> None:
        self.requests = Requests()
        self._url = url
        self._store = _open_store(url, options)

    def find(self, key: str) -> Stamp | None:
        """See `Store`."""
        import obstore

        try:
            return self._call(key, lambda: _stamp_of(obstore.head(self._store, key)))
        except MissingObject:
            return None
        except InputError as error:
            # The reply to HEAD has no body that says what is wrong.
            try:
                self._call(key, lambda: obstore.get(self._store, key, options={"range": (0, 1)}))
            except MissingObject:
                return None
            raise error from None

    def list(self, prefix: str) -> list[Entry]:
        """See `Store`."""
        import obstore

        folder = prefix.removesuffix("/")

        def read() -> list[Entry]:
            entries: list[Entry] = []
            begins: Counter[Entry] = Counter()
            for page in obstore.list(self._store, folder or None, chunk_size=_PAGE_KEYS):
                entries += [Entry(one["path"], _stamp_of(one)) for one in page]
                begins.update(entries[-len(page) :][:1])
                if max(begins.values(), default=0) > _MOST_LISTINGS:
                    problem = "the store lists its keys again and again"
                    raise InputError(self._name(prefix), problem, remedy="check --endpoint-url")
            return entries

        listed = self._call(prefix, read)
        self.requests.count += len(listed) // _PAGE_KEYS
        entries: dict[str, Entry] = {}
        for one in listed:
            first = entries.setdefault(one.key, one)
            if first is not one and (first.stamp.size or one.stamp.size):
                entries[one.key] = self._choose(first, one)
        if folder in entries and entries[folder].stamp.size:
            raise self._refuse(prefix, "it ends in a slash")
        markers = self._find_markers(entries, prefix)
        return [one for key, one in entries.items() if key not in markers]

    def _find_markers(self, entries: Mapping[str, Entry], prefix: str) -> set[str]:
        """Return the keys in a listing that are markers of folders.

        The library drops the slash at the end of a key, so a marker looks like an object without bytes in its place.
        """
        folders = {prefix.rstrip("/"), *(key.rpartition("/")[0] for key in entries)}
        empty = {key for key, one in entries.items() if not one.stamp.size}
        unsure = list(empty - folders)
        with Pool(_ASKERS, "marker") as pool:
            found = pool.map(self.find, unsure)
            missing = {key for key, stamp in zip(unsure, found, strict=True) if stamp is None}
        return (empty & folders) | missing

    def _choose(self, first: Entry, second: Entry) -> Entry:
        """Return that one of two entries of a key whose object has this very key; the other one must be a marker.

        The library also drops a slash at the begin of a key.
        """
        key = first.key
        if first.stamp == second.stamp and not self._find_slash(key):
            return first  # a listing that says it twice
        full = first if first.stamp.size else second
        found = None if first.stamp.size and second.stamp.size else self.find(key)
        if found is None or found.find_change(full.stamp):
            raise self._refuse(key, "another object has this key but for a slash at its begin or end")
        return full

    def _find_slash(self, key: str) -> str | None:
        """Say what is wrong with an object of a listing that is not at its key; None if nothing is known."""
        import obstore

        with suppress(InputError):
            below = self._call(key, lambda: next(iter(obstore.list(self._store, key)), ()))
            if any(one["path"] == key and one["size"] for one in below):
                return "it ends in a slash"
            tops = self._call(key, lambda: obstore.list_with_delimiter(self._store)["common_prefixes"])
            return "it begins with a slash, or is gone" if "" in tops else None
        return None

    def _refuse(self, key: str, problem: str, remedy: str = _KEY_REMEDY) -> InputError:
        name = _escape(self._name(key))
        return InputError(name, f"has a key that cannot be read: {problem}", remedy=remedy)

    def get(self, key: str, begin: int, end: int, stamp: Stamp) -> ReadableBuffer:
        """See `Store`."""
        import obstore

        options: Any = {"range": (begin, end)} | ({"if_match": stamp.etag} if stamp.etag else {})

        def read() -> ReadableBuffer:
            reply = obstore.get(self._store, key, options=options)
            if reply.meta["size"] != stamp.size:
                raise ChangedObject
            content = reply.bytes()
            if len(content) != end - begin:
                raise ShortBody(f"the reply has {len(content)} of {end - begin} bytes")
            self.requests.note_read(len(content))
            return content

        try:
            return self._call(key, read)
        except MissingObject:
            problem = self._find_slash(key)
            if problem is None:
                raise
            raise self._refuse(key, problem) from None

    def _call(self, key: str, request: Callable[[], T]) -> T:
        from obstore.exceptions import InvalidPathError, PreconditionError, UnauthenticatedError

        # The library drops these slashes, and would find another object.
        if key and "" in key.removesuffix("/").split("/"):
            raise self._refuse(key, "it has an empty part", _SLASH_REMEDY)

        def translated() -> T:
            try:
                return request()
            except InputError:
                raise
            except FileNotFoundError as error:
                if any(f"<Code>{code}" in str(error) for code in NO_BUCKET):
                    raise
                raise MissingObject from error
            except PreconditionError as error:
                raise ChangedObject from error
            except UnauthenticatedError as error:
                # A provider of credentials has tried again itself.
                reason = str(error).partition("\n\nDebug source")[0].partition(_PROVIDER)[2]
                if not reason:
                    raise
                problem = f"there are no valid credentials: {_escape(reason).rstrip('.')}"
                raise UnavailableInputError(
                    self._name(key), problem, remedy="renew them, and run again"
                ) from error
            except (InvalidPathError, ValueError) as error:
                problem = _escape(str(error).partition("\n\nDebug source")[0])
                raise self._refuse(key, problem) from error

        return self.requests.call(self._name(key), partial(call_interruptibly, translated))

    def _name(self, key: str) -> str:
        return f"{self._url.scheme}://{self._url.bucket}/{key}"


def open_store(url: Url, options: StorageOptions) -> Store:
    """Return the store of a URL.

    Raises
    ------
    UsageError
        When a library is not installed, or takes no such option.
    """
    if url.scheme in ("s3", "gs", "az"):
        return ObstoreStore(url, options.of(url))
    if url.scheme == "hf":
        from recshuf.storage.reading.fsspec_stores import open_hub

        return open_hub(url, options.of(url))
    from recshuf.storage.reading.fsspec_stores import open_http

    return open_http(url)


def _escape(text: str) -> str:
    """Return a text in one line."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in text)


def _stamp_of(meta: Mapping[str, Any]) -> Stamp:
    modified = meta["last_modified"]
    since = (modified if isinstance(modified, datetime) else datetime.now(UTC)) - datetime(
        1970, 1, 1, tzinfo=UTC
    )
    modified_ns = (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000
    etag = meta["e_tag"] or ""
    # Listings of Azure leave out the quotes, without which it refuses a condition.
    is_bare = etag and not etag.endswith('"')
    return Stamp(meta["size"], modified_ns, etag=f'"{etag}"' if is_bare else etag)


def _open_store(url: Url, options: StorageOptions) -> Any:
    """Return the store of obstore."""
    try:
        from obstore import store
        from obstore.exceptions import BaseError
    except ImportError as error:
        raise UsageError(f"reading {url.scheme}:// needs obstore; install recshuf[cloud]") from error
    common = {"client_options": _TIMEOUTS | {"allow_http": True}, "retry_config": {"max_retries": 0}}
    try:
        if url.scheme == "s3":
            return store.S3Store(url.bucket, **_configure_s3(options), **common)  # type: ignore[arg-type] # checked there
        check_given(url.scheme, options.options)
        endpoint = {_ENDPOINTS[url.scheme]: options.endpoint_url} if options.endpoint_url else {}
        made = store.GCSStore if url.scheme == "gs" else store.AzureStore
        return made(url.bucket, config=dict(options.options) | endpoint, **common)  # type: ignore[arg-type] # see above
    except UsageError:
        raise
    except (BaseError, ValueError, TypeError) as error:
        if "Account must be specified" in str(error):
            raise UsageError(NO_ACCOUNT) from error
        problem = str(error).partition("\n")[0]
        raise UsageError(f"--storage-option for {url.scheme}://: {problem}") from error


def _configure_s3(options: StorageOptions) -> dict[str, Any]:
    """Return arguments of obstore: region, endpoint and credentials are those that boto3 finds."""
    from recshuf.storage.s3_session import SKIP_SIGNATURE, check_credentials, make_client, make_session

    given = {name.lower().removeprefix("aws_"): value for name, value in options.options.items()}
    is_public = parse_flag(SKIP_SIGNATURE, given.pop(SKIP_SIGNATURE, "false"))
    session = make_session(given, (SKIP_SIGNATURE,))
    if not is_public:
        check_credentials(session)
    client = make_client(session, options.endpoint_url)
    # Always given: obstore's own choice knows neither China nor private, FIPS and dual-stack endpoints.
    arguments: dict[str, Any] = {
        "region": session.region_name or os.environ.get("AWS_REGION") or "us-east-1",
        "endpoint": client.meta.endpoint_url,
    }
    if is_public:
        return arguments | {"config": {SKIP_SIGNATURE: True}}
    from obstore.auth.boto3 import Boto3CredentialProvider

    # botocore knows when they expire, and is to be asked each time; obstore asks at most ten times a second.
    provider = Boto3CredentialProvider(session, ttl=timedelta())
    return arguments | {"credential_provider": provider}
