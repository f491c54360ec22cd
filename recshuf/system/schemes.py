"""Schemes of URLs."""

from __future__ import annotations

import re
from pathlib import Path

SCHEMES = ("s3", "gs", "az", "http", "https", "hf")
"""Those whose URLs can be read."""
ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "azure": "az"}
"""What other programs call some of them."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def find_scheme(text: str) -> str | None:
    """Return the scheme of a URL, as it is written; None for a local path.

    >>> find_scheme("S3://bucket/a"), find_scheme("data/a"), find_scheme("C:/a")
    ('S3', None, None)
    """
    match = _SCHEME.match(text)
    return None if match is None or Path(f"{match[1]}:").exists() else match[1]
