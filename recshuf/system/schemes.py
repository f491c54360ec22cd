"""Schemes of URLs."""

from __future__ import annotations

import re
from pathlib import Path

SCHEMES = ("s3", "gs", "az", "http", "https", "hf")
"""Those whose URLs can be read."""
ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "azure": "az"}
"""What other programs call some of them."""
FILE = "file"
"""Scheme of URLs whose path can be given in their place."""
_KNOWN = {*SCHEMES, *ALIASES, FILE}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")


def find_scheme(text: str) -> str | None:
    """Return the scheme of a URL, as it is written; None for a local path.

    With a scheme that is not known here, a text is a path if there is a file or folder of that name.

    >>> find_scheme("S3://bucket/a"), find_scheme("data/a"), find_scheme("C:/a")
    ('S3', None, None)
    """
    match = _SCHEME.match(text)
    if match is None or (match[1].lower() not in _KNOWN and Path(f"{match[1]}:").exists()):
        return None
    return match[1]
