"""How object stores are reached."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

ENDPOINT_REMEDY = "give one of http:// or https://, such as http://127.0.0.1:9000"


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Endpoint and options of all object stores of a run. Credentials that they lack are found the usual way.

    Raises
    ------
    UsageError
        When the endpoint is no URL of a server.
    """

    endpoint_url: str | None = None
    """URL of a server that speaks the protocol of the store. None for that of the provider."""
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the endpoint."""
        if self.endpoint_url is not None and not is_endpoint(self.endpoint_url):
            raise UsageError(
                f"--endpoint-url: {self.endpoint_url!r} is no URL of a server; {ENDPOINT_REMEDY}"
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


def parse_storage_options(given: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Return options by name; from a command line each is ``NAME=VALUE``.

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
