"""Stores that fsspec reads: servers of HTTP, and the Hugging Face Hub."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ClassVar

from recshuf.errors import InputError, RecshufError, UsageError
from recshuf.interfaces import Stamp
from recshuf.storage.requests import ChangedObject, MissingObject, Requests, ShortBody
from recshuf.storage.store import Entry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from recshuf.storage.settings import StorageOptions
    from recshuf.storage.urls import Url

_CHANGED = 412
_MISSING = (404, 410)


class FsspecStore:
    """A file system of fsspec; a `Store`.

    Parameters
    ----------
    prefix
        What a key lacks to be a path of the file system.
    """

    is_bound = False
    _find_options: ClassVar[Mapping[str, Any]] = {"refresh": True, "expand_info": True}
    """Arguments with which the hub is asked anew, also for identifiers, in place of its listings in memory."""
    _list_options: ClassVar[Mapping[str, Any]] = {"refresh": True}

    def __init__(self, files: Any, prefix: str) -> None:
        self.requests = Requests()
        self._files = files
        self._prefix = prefix

    def find(self, key: str) -> Stamp | None:
        """See `Store`."""
        name = self._prefix + key
        try:
            found = self._call(name, lambda: self._files.info(name, **self._find_options))
        except MissingObject:
            return None
        return self._stamp_of(name, found) if found.get("type", "file") == "file" else None

    def list(self, prefix: str) -> list[Entry]:
        """See `Store`."""
        name = self._prefix + prefix
        found = self._call(name, lambda: self._files.find(name, detail=True, **self._list_options))
        begin = len(self._files._strip_protocol(self._prefix))  # noqa: SLF001 - named by fsspec for its users
        return [Entry(path[begin:].lstrip("/"), self._stamp_of(path, info)) for path, info in found.items()]

    def get(self, key: str, begin: int, end: int, stamp: Stamp) -> bytes:
        """See `Store`."""
        name = self._prefix + key

        def read() -> bytes:
            content: bytes = self._files.cat_file(name, start=begin, end=end, **self._bind(stamp))
            if len(content) == stamp.size > end - begin:
                raise InputError(name, "the server takes no ranges", remedy="download the file")
            if len(content) != end - begin:
                raise ShortBody(f"the reply has {len(content)} of {end - begin} bytes")
            self.requests.note_read(len(content))
            return content

        content: bytes = self._call(name, read)
        return content

    def _bind(self, stamp: Stamp) -> dict[str, Any]:  # noqa: ARG002 - used by servers that know conditions
        """Return arguments that make a read fail if the file has another stamp."""
        return {"cache_type": "none"}

    def _stamp_of(self, name: str, info: Mapping[str, Any]) -> Stamp:  # noqa: ARG002 - see above
        return Stamp(info["size"], 0, etag=str(info.get("blob_id") or ""))

    def _call(self, name: str, request: Callable[[], Any]) -> Any:
        def translated() -> Any:
            try:
                return request()
            except RecshufError:
                raise
            except Exception as error:
                found = self._translate(name, error)
                if found is error:
                    raise
                raise found from error

        return self.requests.call(name, translated)

    def _translate(self, name: str, error: BaseException) -> BaseException:
        """Return what the failure of a request says about an object, or the failure itself."""
        status = getattr(error, "status", None)
        if isinstance(error, FileNotFoundError) or status in _MISSING:
            return MissingObject()
        if status == _CHANGED:
            return ChangedObject()
        # Replies that cannot be parsed are errors of both classes, and may be better the next time.
        if isinstance(error, ValueError) and not isinstance(error, OSError):
            return InputError(name, str(error), remedy="check the URL")
        return error


class HttpStore(FsspecStore):
    """Files of a server of HTTP."""

    is_bound = True
    _find_options: ClassVar[Mapping[str, Any]] = {}

    def _bind(self, stamp: Stamp) -> dict[str, Any]:
        return {"headers": {"If-Match": stamp.etag} if stamp.etag else {}}

    def _stamp_of(self, name: str, info: Mapping[str, Any]) -> Stamp:
        if info.get("size") is None:
            raise InputError(name, "the server does not tell the size", remedy="download the file")
        etag = str(info.get("ETag") or "")
        # A weak ETag fits no condition.
        return Stamp(
            info["size"],
            _read_time(info.get("Last-Modified")) * 10**9,
            etag="" if etag.startswith("W/") else etag,
        )

    def _translate(self, name: str, error: BaseException) -> BaseException:
        # To fsspec, a file whose size it cannot find out is missing, whatever the server answers.
        cause = error.__cause__ if isinstance(error, FileNotFoundError) else None
        return super()._translate(name, cause or error)


def _read_time(date: str | None) -> int:
    """Return the seconds since 1970 of a date of HTTP; 0 if there is none, or it cannot be read."""
    try:
        return int(parsedate_to_datetime(date).timestamp()) if date else 0
    except (ValueError, OverflowError):
        return 0


def open_fsspec(url: Url, options: StorageOptions) -> FsspecStore:
    """Return the store of a URL.

    Raises
    ------
    UsageError
        When a library is not installed, or takes no such option.
    """
    prefix = f"{url.scheme}://{url.bucket}/"
    try:
        import fsspec

        if url.scheme == "hf":
            endpoint = {"endpoint": options.endpoint_url} if options.endpoint_url else {}
            return FsspecStore(fsspec.filesystem("hf", **endpoint, **options.options), prefix)
        return HttpStore(fsspec.filesystem("http", client_kwargs={"trust_env": True}), prefix)
    except (ImportError, TypeError, ValueError) as error:
        library = "huggingface_hub" if url.scheme == "hf" else "recshuf[cloud]"
        raise UsageError(
            f"{url}: cannot be read ({error}); install {library}, or leave out options"
        ) from error
