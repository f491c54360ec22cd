"""URLs of objects and prefixes."""

from __future__ import annotations

import re
from dataclasses import replace

from recshuf.dataclass import dataclass
from recshuf.errors import UsageError
from recshuf.system.paths import ALIASES, FILE, SCHEMES, find_scheme

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
