"""Object stores, and inputs on disks: URLs of objects and prefixes, and storage options, which say how stores are reached and by whom."""

from __future__ import annotations

import os
import re
from dataclasses import field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from recshuf.dataclass import dataclass
from recshuf.errors import UsageError
from recshuf.system.paths import ALIASES, FILE, SCHEMES, find_scheme

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


_BUCKET = re.compile(r"[A-Za-z0-9._:$-]+")
"""Names that some store takes; with other characters, libraries ask for another bucket, or crash."""
_HOSTS = ("http", "https", "hf")
"""Schemes in whose URLs a host, or a kind of repository, is in the place of the bucket."""


def is_url(text: str) -> bool:
    """Tell whether a name is a URL of a scheme that is known here, and no local path.

    >>> is_url("s3://bucket/a"), is_url("data/a"), is_url("C:/a")
    (True, False, False)
    """
    scheme = find_scheme(text)
    return scheme is not None and scheme.lower() in SCHEMES


def refuse_unknown_scheme(text: str) -> None:
    scheme = find_scheme(text)
    if scheme is None or scheme.lower() in SCHEMES:
        return
    if scheme.lower() == FILE:
        raise UsageError(f"{text}: is a URL; give the path in it")
    known = ALIASES.get(scheme.lower())
    remedy = f"give {known}://" if known else f"known are {', '.join(f'{name}://' for name in SCHEMES)}"
    raise UsageError(f"{text}: URLs of {scheme}:// are not known; {remedy}")


@dataclass(frozen=True, slots=True)
class Url:
    """The URL of an object, or of all objects below a prefix.

    >>> url = Url.parse("s3://bucket/a/b.txt")
    >>> url.bucket, url.key, str(url.parent), str(url.parent.join("c"))
    ('bucket', 'a/b.txt', 's3://bucket/a/', 's3://bucket/a/c')
    """

    scheme: str
    bucket: str
    """Bucket, container or host."""
    key: str
    """All after the slash that ends the bucket; a prefix ends in a slash or is empty."""

    @classmethod
    def parse(cls, text: str) -> Url:
        scheme, _, rest = text.partition("://")
        bucket, _, key = rest.partition("/")
        if not bucket:
            raise UsageError(f"{text}: has no bucket; write for example {scheme.lower()}://bucket/prefix/")
        if scheme.lower() not in _HOSTS and not _BUCKET.fullmatch(bucket):
            raise UsageError(f"{text!r}: no bucket has such a name; check it")
        return cls(scheme.lower(), bucket, key)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}"

    @property
    def parent(self) -> Url:
        """The prefix that holds it."""
        folder, slash, _ = self.key.rstrip("/").rpartition("/")
        return replace(self, key=folder + slash)

    def join(self, name: str) -> Url:
        """Return the URL of a name below this prefix."""
        prefix = self.key if not self.key or self.key.endswith("/") else f"{self.key}/"
        return replace(self, key=prefix + name)


NO_ACCOUNT = "az://: the account is unknown; set AZURE_STORAGE_ACCOUNT_NAME"
_CREDENTIALS = re.compile(
    r"(azure_)?(storage_)?(account_name|account_key|access_key|master_key|sas_key|sas_token|token|bearer_token)"
    r"|(google_)?(bearer_token|(?P<path>service_account|service_account_path|application_credentials))"
)
"""Names of storage options and, in upper case, of variables with texts that requests hold, or with paths of key files."""
_VARIABLES = {"az": "AZURE_", "gs": "GOOGLE_"}
ENDPOINT_REMEDY = "give one of http:// or https://, such as http://127.0.0.1:9000"
ENDPOINT = "endpoint_url"
"""Option that takes the place of the endpoint of all stores."""
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Endpoint and options of the object stores of a run. Credentials that they lack are found the usual way."""

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

        >>> options = StorageOptions("http://a", {"region": "x", "s3:region": "y", "s3://b:endpoint_url": "http://b"})
        >>> options.of(Url.parse("s3://b/key"))
        StorageOptions(endpoint_url='http://b', options={'region': 'y'})
        >>> options.of(Url.parse("gs://b/key"))
        StorageOptions(endpoint_url='http://a', options={'region': 'x'})
        """
        options: dict[str, str] = {}
        for wanted in ("", url.scheme, f"{url.scheme}://{url.bucket}"):
            for name, value in self.options.items():
                scope, _, short = name.rpartition(":")
                if scope == wanted:
                    options[short] = value
        return StorageOptions(options.pop(ENDPOINT, self.endpoint_url), options)


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


def read_settings(
    scheme: str, prefixes: tuple[str, ...], options: Mapping[str, str], names: Sequence[str]
) -> dict[str, str]:
    """Return storage options for outputs by their short names, those that are not given from the environment.

    The first prefix is that of the variables; each is left out of options.
    """
    variables = {name: f"{prefixes[0]}{name}".upper() for name in names}
    settings = {name: os.environ[variable] for name, variable in variables.items() if variable in os.environ}
    for option, value in options.items():
        name = option.lower()
        for prefix in prefixes:
            name = name.removeprefix(prefix)
        if name not in names:
            raise unknown_option(option, f"outputs in {scheme}://", names)
        settings[name] = value
    return settings


def unknown_option(name: str, place: str, known: Iterable[str]) -> UsageError:
    return UsageError(f"--storage-option {name}: is not taken for {place}; known are {', '.join(known)}")


def parse_flag(name: str, value: str) -> bool:
    """Return the value of an option that is on or off.

    >>> parse_flag("skip_signature", "True"), parse_flag("skip_signature", "no")
    (True, False)
    """
    if value.lower() not in _FLAGS:
        raise UsageError(f"--storage-option {name}: {value!r} is neither true nor false; give one of them")
    return _FLAGS[value.lower()]


def parse_storage_options(options: Mapping[str, str] | Iterable[str]) -> dict[str, str]:
    """Return options by name; from a command line each is ``NAME=VALUE``, or ``s3:NAME=VALUE`` for some stores.

    >>> parse_storage_options(["region=eu-west-1"])
    {'region': 'eu-west-1'}
    """
    if hasattr(options, "items"):
        return {str(name): str(value) for name, value in options.items()}
    if isinstance(options, str):
        raise UsageError("--storage-option: give a dict, such as {'region': 'eu-west-1'}")
    pairs = [text.partition("=") for text in options]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise UsageError(f"--storage-option {name}: write NAME=VALUE, such as region=eu-west-1")
    return {name: value for name, _, value in pairs}


def parse_storage(
    endpoint_url: str | None, storage_options: Mapping[str, str] | Iterable[str] | None
) -> StorageOptions:
    return StorageOptions(endpoint_url, parse_storage_options(storage_options or {}))


def check_given(scheme: str, options: Mapping[str, str]) -> None:
    """Refuse credentials, of options or the environment, that libraries panic of, or show in their errors."""
    variables = {name: os.environ[name] for name in os.environ if name.startswith(_VARIABLES[scheme])}
    given = {f"--storage-option {name}": value for name, value in options.items()} | variables
    for label, value in given.items():
        match = _CREDENTIALS.fullmatch(label.rpartition(" ")[2].lower())
        if match and not match["path"]:
            check_text(label, value)
        elif match and value.lstrip().startswith("{"):
            raise UsageError(f"{label}: is JSON; give the path of a file that holds it")


def check_text(label: str, value: str) -> None:
    """Refuse a part of credentials that cannot be in the header of a request; `label` says where it comes from."""
    if not (value.isascii() and value.isprintable()):
        raise UsageError(
            f"{label}: has a line break or another character that no request can send; set it again"
        )
