"""How object stores are reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from recshuf.errors import UsageError
from recshuf.system.schemes import SCHEMES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from recshuf.storage.urls import Url

ENDPOINT_REMEDY = "give one of http:// or https://, such as http://127.0.0.1:9000"
ENDPOINT = "endpoint_url"
"""Option that takes the place of the endpoint of all stores."""

_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Endpoint and options of the object stores of a run. Credentials that they lack are found the usual way.

    Raises
    ------
    UsageError
        When an endpoint is no URL of a server, or an option is of no store.
    """

    endpoint_url: str | None = None
    """URL of a server that speaks the protocol of the store. None for that of the provider."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Values by name. ``SCHEME:NAME`` and ``SCHEME://BUCKET:NAME`` hold for the stores of a scheme, and for one bucket."""

    def __post_init__(self) -> None:
        """Check the endpoints, and which stores options are of."""
        endpoints = {"--endpoint-url": self.endpoint_url}
        for name, value in self.options.items():
            scope, _, short = name.rpartition(":")
            if scope:
                _check_scope(scope, name)
            if short == ENDPOINT:
                endpoints[f"--storage-option {name}"] = value
        for option, url in endpoints.items():
            if url is not None and not is_endpoint(url):
                raise UsageError(f"{option}: {url!r} is no URL of a server; {ENDPOINT_REMEDY}")

    def of(self, url: Url) -> StorageOptions:
        """Return those of one store. What is said of its bucket comes before what is said of its scheme, and of all.

        >>> from recshuf.storage.urls import Url
        >>> given = StorageOptions("http://a", {"region": "x", "s3:region": "y", "s3://b:endpoint_url": "http://b"})
        >>> given.of(Url.parse("s3://b/key"))
        StorageOptions(endpoint_url='http://b', options={'region': 'y'})
        >>> given.of(Url.parse("gs://b/key"))
        StorageOptions(endpoint_url='http://a', options={'region': 'x'})
        """
        found: dict[str, str] = {}
        for wanted in ("", url.scheme, f"{url.scheme}://{url.bucket}"):
            for name, value in self.options.items():
                scope, _, short = name.rpartition(":")
                if scope == wanted:
                    found[short] = value
        return StorageOptions(found.pop(ENDPOINT, self.endpoint_url), found)


def _check_scope(scope: str, name: str) -> None:
    """Refuse the name of an option whose scope is neither a scheme nor a bucket."""
    scheme, _, bucket = scope.partition("://")
    if scheme not in SCHEMES or "/" in bucket or scope == f"{scheme}://":
        raise UsageError(
            f"--storage-option {name}: is an option of no store; write s3:NAME=VALUE for all buckets of s3://, "
            "s3://BUCKET:NAME=VALUE for one"
        )


def is_endpoint(url: str) -> bool:
    """Tell whether a text is the URL of a server.

    >>> is_endpoint("http://127.0.0.1:9000"), is_endpoint("127.0.0.1:9000"), is_endpoint("http://host:x")
    (True, False, False)
    """
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def parse_flag(name: str, value: str) -> bool:
    """Return the value of an option that is on or off.

    >>> parse_flag("skip_signature", "True"), parse_flag("skip_signature", "no")
    (True, False)

    Raises
    ------
    UsageError
        When it is neither.
    """
    if value.lower() not in _FLAGS:
        raise UsageError(f"--storage-option {name}: {value!r} is neither true nor false; give one of them")
    return _FLAGS[value.lower()]


def parse_storage_options(given: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Return options by name; from a command line each is ``NAME=VALUE``, or ``s3:NAME=VALUE`` for some stores.

    >>> parse_storage_options(["region=eu-west-1"])
    {'region': 'eu-west-1'}

    Raises
    ------
    UsageError
        When one is neither.
    """
    if hasattr(given, "items"):
        return {str(name): str(value) for name, value in given.items()}
    if isinstance(given, str):
        raise UsageError("--storage-option: give a dict, such as {'region': 'eu-west-1'}")
    pairs = [text.partition("=") for text in given]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise UsageError(f"--storage-option {name}: write NAME=VALUE, such as region=eu-west-1")
    return {name: value for name, _, value in pairs}
