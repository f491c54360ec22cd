"""Stores of obstore, and the choice of the store of a URL.

obstore drops slashes at the begin and the end of a key.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from recshuf.errors import InputError, UnavailableInputError, UsageError
from recshuf.interfaces import Stamp
from recshuf.storage import NO_ACCOUNT, check_given, parse_flag
from recshuf.storage.requests import (
    NO_BUCKET,
    ChangedObject,
    Entry,
    MissingObject,
    Requests,
    ShortBody,
    ask_at_once,
)
from recshuf.system.threads import call_interruptibly

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from _typeshed import ReadableBuffer

    from recshuf.storage import StorageOptions, Url
    from recshuf.storage.requests import Store

    Listing = list[Entry]  # which methods named `list` hide

T = TypeVar("T")
_TIMEOUTS = {"connect_timeout": "20s", "timeout": "180s"}
_PAGE_KEYS = 1000
_MOST_LISTINGS = 2
"""Of the same keys in a reply; some gateways send the first page for ever."""
_ENDPOINTS = {"gs": "base_url", "az": "endpoint"}
"""Option of obstore for the URL of the server."""
_PROVIDER = "External AWS credential provider: "
"""What obstore says before the error of boto3."""
_SLASH = "an object has it with a slash at an end"
_SLASH_REMEDY = "leave out a slash, or rename the object"
_KEY_REMEDY = "rename the object, or give a prefix that it does not lie below"


class ObstoreStore:
    """A bucket of S3 or GCS, or a container of Azure; a `Store`."""

    is_bound = True

    def __init__(self, url: Url, options: StorageOptions) -> None:
        self.requests = Requests()
        self._url = url
        self._store = _open_store(url, options)

    def find(self, key: str) -> Stamp | None:
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
        return self._leave_out_markers(self._list_all(prefix), prefix.removesuffix("/"))

    def _list_all(self, prefix: str) -> Listing:
        import obstore

        def read() -> list[Entry]:
            entries: list[Entry] = []
            begins: Counter[Entry] = Counter()
            for page in obstore.list(self._store, prefix.removesuffix("/") or None, chunk_size=_PAGE_KEYS):
                entries += [Entry(meta["path"], _stamp_of(meta)) for meta in page]
                begins.update(entries[-len(page) :][:1])
                if max(begins.values(), default=0) > _MOST_LISTINGS:
                    problem = "the store lists its keys again and again"
                    raise InputError(self._name(prefix), problem, remedy="check the endpoint URL")
            return entries

        listed = self._call(prefix, read)
        self.requests.count += len(listed) // _PAGE_KEYS
        return listed

    def _leave_out_markers(self, listed: Listing, folder: str) -> Listing:
        """Return the objects of a listing of a folder. The library drops slashes at both ends of a key.

        So a marker of a folder is listed as an object without bytes in its place, and two objects may have one key, and
        also one stamp.
        """
        sized = {key: stamp for key, stamp in listed if stamp.size}
        for key, count in Counter(key for key, stamp in listed if stamp.size).items():
            if count > (key != folder):
                raise self._refuse(key, _SLASH)
        folders = {folder, *(key.rpartition("/")[0] for key, _ in listed)}
        unsure = [key for key in dict(listed) if key not in sized and key not in folders]
        found = zip(unsure, ask_at_once(self.find, unsure), strict=True)
        return [Entry(key, stamp) for key, stamp in [*sized.items(), *found] if stamp]

    def _refuse(self, key: str, problem: str, remedy: str = _KEY_REMEDY) -> InputError:
        name = _escape(self._name(key))
        return InputError(name, f"has a key that cannot be read: {problem}", remedy=remedy)

    def get(self, key: str, begin: int, end: int, stamp: Stamp) -> ReadableBuffer:
        import obstore

        options: Any = {"range": (begin, end)} | ({"if_match": stamp.etag} if stamp.etag else {})

        def read() -> ReadableBuffer:
            reply = obstore.get(self._store, key, options=options)
            if reply.meta["size"] != stamp.size:
                raise ChangedObject
            content = reply.bytes()
            if len(content) != end - begin:
                raise ShortBody(f"the reply has {len(content)} of {end - begin} bytes")
            self.requests.read_sizes.append(len(content))
            return content

        try:
            return self._call(key, read)
        except (ChangedObject, MissingObject):
            # The listing named the object that has a slash behind its key as if it had none.
            listed: Listing = []
            with suppress(InputError):  # whose key was given, without a right to list
                listed = self._list_all(f"{key}/")
            if Entry(key, stamp) in listed:
                raise self._refuse(key, _SLASH) from None
            raise

    def _call(self, key: str, request: Callable[[], T]) -> T:
        # The library drops these slashes, and would find another object.
        if key and "" in key.removesuffix("/").split("/"):
            raise self._refuse(key, "it has an empty part", _SLASH_REMEDY)
        request = partial(call_interruptibly, request)
        return self.requests.call(self._name(key), request, partial(self._translate, key))

    def _translate(self, key: str, error: Exception) -> Exception:
        """Return what an error of the library says about an object, or the error."""
        from obstore.exceptions import InvalidPathError, PreconditionError, UnauthenticatedError

        text = str(error).partition("\n\nDebug source")[0]
        if isinstance(error, FileNotFoundError):
            return error if any(f"<Code>{code}" in str(error) for code in NO_BUCKET) else MissingObject()
        if isinstance(error, PreconditionError):
            return ChangedObject()
        if isinstance(error, UnauthenticatedError):
            # A provider of credentials has tried again itself.
            reason = _escape(text.partition(_PROVIDER)[2]).rstrip(".")
            problem = f"there are no valid credentials: {reason}"
            remedy = "renew them, and run again"
            return UnavailableInputError(self._name(key), problem, remedy=remedy) if reason else error
        return self._refuse(key, _escape(text)) if isinstance(error, InvalidPathError | ValueError) else error

    def _name(self, key: str) -> str:
        return f"{self._url.scheme}://{self._url.bucket}/{key}"


def open_store(url: Url, options: StorageOptions) -> Store:
    if url.scheme in ("s3", "gs", "az"):
        return ObstoreStore(url, options.of(url))
    if url.scheme == "hf":
        from recshuf.storage.reading.fsspec_stores import open_hub

        return open_hub(url, options.of(url))
    from recshuf.storage.reading.fsspec_stores import open_http

    return open_http(url)


def _escape(text: str) -> str:
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _stamp_of(meta: Mapping[str, Any]) -> Stamp:
    """Return the stamp of an object, given what obstore says of it.

    >>> _stamp_of({"size": 1, "last_modified": datetime(1970, 1, 2, tzinfo=UTC), "e_tag": "0x8D"})
    Stamp(size=1, modified_ns=86400000000000, inode=0, etag='"0x8D"')
    """
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
        kind = store.GCSStore if url.scheme == "gs" else store.AzureStore
        return kind(url.bucket, config=dict(options.options) | endpoint, **common)  # type: ignore[arg-type] # see above
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

    named = {name.lower().removeprefix("aws_"): value for name, value in options.options.items()}
    is_public = parse_flag(SKIP_SIGNATURE, named.pop(SKIP_SIGNATURE, "false"))
    session = make_session(named, (SKIP_SIGNATURE,))
    if not is_public:
        check_credentials(session)
    client = make_client(session, options.endpoint_url)
    # Always given: obstore's own choice knows neither China nor private, FIPS and dual-stack endpoints.
    arguments: dict[str, Any] = {
        "region": session.region_name or "us-east-1",
        "endpoint": client.meta.endpoint_url,
    }
    if is_public:
        return arguments | {"config": {SKIP_SIGNATURE: True}}
    from obstore.auth.boto3 import Boto3CredentialProvider

    # botocore knows when they expire, and is to be asked each time; obstore asks at most ten times a second.
    provider = Boto3CredentialProvider(session, ttl=timedelta())
    return arguments | {"credential_provider": provider}
