"""Stores that fsspec reads: servers of HTTP, and the Hugging Face Hub by its own library."""

from __future__ import annotations

import re
from email.utils import parsedate_to_datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from recshuf.errors import (
    ForbiddenInputError,
    InputError,
    MissingInputError,
    UnavailableInputError,
    UsageError,
)
from recshuf.interfaces import Stamp
from recshuf.storage import ENDPOINT, ENDPOINT_REMEDY, check_text, is_endpoint, unknown_option
from recshuf.storage.requests import (
    ChangedObject,
    Entry,
    Failure,
    MissingObject,
    Requests,
    ShortBody,
    compare_weakly,
    is_strong,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from recshuf.storage import StorageOptions, Url


T = TypeVar("T")
_SPAN_BEGIN = re.compile(r"bytes\s+(\d{1,18})-", re.IGNORECASE)
_CHANGED = 412
NO_SUCH_RANGE = 416
_MISSING = (404, 410)
_HUB_OPTIONS = ("token",)  # also a variable, which the library strips
_RETRIED_STATUS = (None, 408, 429, 500, 502, 503, 504)
"""Of answers after which the library of the hub tries again; None for none."""


class FsspecStore:
    """A file system of fsspec; a `Store`. A path is a key with a prefix."""

    is_bound = False
    _find_options: ClassVar[Mapping[str, Any]] = {}
    _list_options: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, files: Any, prefix: str) -> None:
        self.requests = Requests()
        self._files = files
        self._prefix = prefix

    def find(self, key: str) -> Stamp | None:
        name = self._prefix + key
        try:
            info = self._call(name, lambda: self._files.info(name, **self._find_options))
        except MissingObject:
            return None
        return self._stamp_of(name, info) if info.get("type", "file") == "file" else None

    def list(self, prefix: str) -> list[Entry]:
        name, find = self._prefix + prefix, self._files.find
        try:
            infos = self._call(
                name, lambda: self._ask(name, lambda: find(name, detail=True, **self._list_options))
            )
        except MissingObject:
            return []
        begin = len(self._files._strip_protocol(self._prefix))  # noqa: SLF001 - named by fsspec for its users
        return [Entry(path[begin:].lstrip("/"), self._stamp_of(path, info)) for path, info in infos.items()]

    def get(self, key: str, begin: int, end: int, stamp: Stamp) -> bytes:
        name = self._prefix + key

        def read() -> bytes:
            arguments = self._bind(stamp)
            content: bytes = self._ask(
                name, lambda: self._files.cat_file(name, start=begin, end=end, **arguments)
            )
            self._check_reply(name, arguments, stamp, begin)
            if len(content) == stamp.size > end - begin:
                raise InputError(name, "the server takes no ranges", remedy="download the file")
            if len(content) != end - begin:
                raise ShortBody(f"the reply has {len(content)} of {end - begin} bytes")
            self.requests.read_sizes.append(len(content))
            return content

        content: bytes = self._call(name, read)
        return content

    def _ask(self, name: str, request: Callable[[], T]) -> T:  # noqa: ARG002 - for others
        return request()

    def _bind(self, stamp: Stamp) -> dict[str, Any]:  # noqa: ARG002 - used by servers that know conditions
        return {"cache_type": "none"}

    def _check_reply(self, name: str, arguments: Mapping[str, Any], stamp: Stamp, begin: int) -> None:
        """Check what a reply says of the file and of its place in it, given the arguments of its request."""

    def _stamp_of(self, name: str, info: Mapping[str, Any]) -> Stamp:  # noqa: ARG002 - see above
        return Stamp(info["size"], 0, etag=str(info.get("blob_id") or ""))

    def _call(self, name: str, request: Callable[[], Any]) -> Any:
        return self.requests.call(name, request, partial(self._translate, name))

    def _translate(self, name: str, error: Exception) -> Exception:
        """Return what the failure of a request says about an object, or the failure itself."""
        status = getattr(error, "status", None)
        if isinstance(error, FileNotFoundError) or status in _MISSING:
            return MissingObject()
        if status == _CHANGED:
            return ChangedObject()
        # Replies that cannot be parsed are errors of both classes, and may be better the next time.
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            return InputError(name, f"cannot be read: {str(error).rstrip(' .')}", remedy="check the URL")
        return error


class HttpStore(FsspecStore):
    """Files of a server of HTTP."""

    is_bound = True

    def _bind(self, stamp: Stamp) -> dict[str, Any]:
        # The size and the ETag are those of the bytes as they are.
        headers = {"Accept-Encoding": "identity"} | (
            {"If-Match": stamp.etag} if is_strong(stamp.etag) else {}
        )
        return {"headers": headers, "trace_request_ctx": {}}

    def _check_reply(self, name: str, arguments: Mapping[str, Any], stamp: Stamp, begin: int) -> None:
        # Some servers ignore conditions.
        headers = arguments["trace_request_ctx"]["headers"]
        etag = headers.get("ETag", "")
        span, _, total = headers.get("Content-Range", "").rpartition("/")
        modified_ns = _read_time(headers.get("Last-Modified")) * 10**9 if stamp.modified_ns else 0
        now = Stamp(
            int(total) if total.isdecimal() else stamp.size, modified_ns or stamp.modified_ns, etag=etag
        )
        if compare_weakly(now, stamp):
            raise ChangedObject
        first = _SPAN_BEGIN.match(span)
        if first and int(first[1]) != begin:
            raise InputError(name, "the server sends other bytes than asked for", remedy="download the file")
        if not etag:
            self.is_bound = False

    def _stamp_of(self, name: str, info: Mapping[str, Any]) -> Stamp:
        if info.get("size") is None:
            raise InputError(name, "the server does not tell the size", remedy="download the file")
        modified_ns = _read_time(info.get("Last-Modified")) * 10**9
        return Stamp(info["size"], modified_ns, etag=str(info.get("ETag") or ""))

    def _translate(self, name: str, error: Exception) -> Exception:
        # To fsspec, a file whose size it cannot find out is missing, whatever the server answers.
        inner = error.__cause__ if isinstance(error, FileNotFoundError) else None
        cause = inner if isinstance(inner, Exception) else error
        if getattr(error, "status", None) == NO_SUCH_RANGE:
            return ChangedObject()
        if "Redirect" in type(cause).__name__:  # in a circle, or to what is no URL of HTTP
            problem = "the server redirects to where nothing can be read"
            return UnavailableInputError(name, problem, remedy="check the URL")
        return super()._translate(name, cause)


async def _note_headers(_: Any, context: Any, end: Any) -> None:
    """Put the headers of a reply where its request wants them."""
    if context.trace_request_ctx is not None:
        context.trace_request_ctx["headers"] = end.response.headers


def _read_time(date: str | None) -> int:
    """Return the seconds since 1970 of a date of HTTP; 0 if there is none, or it cannot be read."""
    try:
        return int(parsedate_to_datetime(date).timestamp()) if date else 0
    except (ValueError, OverflowError):
        return 0


def open_http(url: Url) -> HttpStore:
    try:
        import fsspec
        from aiohttp import TraceConfig

        trace = TraceConfig()
        trace.on_request_end.append(_note_headers)
        client = {"trust_env": True, "trace_configs": [trace]}
        return HttpStore(fsspec.filesystem("http", client_kwargs=client), f"{url.scheme}://{url.bucket}/")
    except (ImportError, TypeError, ValueError) as error:
        raise UsageError(f"{url}: cannot be read ({error}); install recshuf[cloud]") from error


class HubStore(FsspecStore):
    """The repositories of a kind."""

    # The hub is to be asked anew, also for identifiers, in place of its listings in memory.
    _find_options: ClassVar[Mapping[str, Any]] = {"refresh": True, "expand_info": True}
    _list_options: ClassVar[Mapping[str, Any]] = {"refresh": True}

    def _ask(self, name: str, request: Callable[[], T]) -> T:
        """Make a request that the library tries again itself; only what it asks before, once, is tried again here."""
        self._files.resolve_path(name)
        try:
            return request()
        except (FileNotFoundError, ValueError):
            raise
        except Exception as error:
            failure = Failure.of(error)
            if failure.may_pass and failure.status in _RETRIED_STATUS:
                raise failure.explain(name, "several attempts") from error
            raise

    def _translate(self, name: str, error: Exception) -> Exception:
        cause: BaseException | None = error
        while cause is not None:
            if (refusal := _explain(name, cause)) is not None:
                return refusal
            cause = cause.__cause__
        if Failure.of(error).status == NO_SUCH_RANGE:
            return ChangedObject()
        return super()._translate(name, error)


def _explain(name: str, error: BaseException) -> InputError | None:
    """Return the error for an answer about a repository; None if it is about something else."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        remedy = "ask for access on its page, and set HF_TOKEN to a token of who has it"
        return ForbiddenInputError(name, "the repository is gated", remedy=remedy)
    if isinstance(error, RepositoryNotFoundError):
        remedy = "check the name, and the token in HF_TOKEN or of the login"
        return MissingInputError(name, "there is no such repository, or no access to it", remedy=remedy)
    if isinstance(error, RevisionNotFoundError):
        remedy = "check the name after the @"
        return MissingInputError(name, "the repository has no such revision", remedy=remedy)
    return None


def open_hub(url: Url, options: StorageOptions) -> HubStore:
    for name, value in options.options.items():
        if name not in _HUB_OPTIONS:
            raise unknown_option(name, "hf://", (*_HUB_OPTIONS, ENDPOINT))
        check_text(f"--storage-option {name}", value)  # which errors of the library would show
    try:
        import fsspec
        from huggingface_hub import constants

        if constants.HF_HUB_OFFLINE:
            raise UsageError(
                f"{url}: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set, so nothing is read; unset it"
            )
        endpoint = options.endpoint_url or constants.ENDPOINT
        if not is_endpoint(endpoint):
            raise UsageError(f"HF_ENDPOINT: {endpoint!r} is no URL of a server; {ENDPOINT_REMEDY}")
        # A shared instance keeps the answer that a repository is gated or missing.
        files = fsspec.filesystem("hf", endpoint=endpoint, skip_instance_cache=True, **options.options)
    except ImportError as error:
        raise UsageError(f"{url}: cannot be read ({error}); install huggingface_hub") from error
    return HubStore(files, f"{url.scheme}://{url.bucket}/")
