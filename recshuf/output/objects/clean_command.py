"""The command that removes what a run leaves, for messages."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recshuf.storage.settings import StorageOptions

_SHOWN = (
    "region",
    "profile",
    "account_name",
    "endpoint",
    "endpoint_url",
    "base_url",
    "service_account",
    "skip_signature",
)
"""Ends of the names of options whose values are no secrets."""


def format_clean_command(output: str, options: StorageOptions) -> str:
    """Return the command for an output, without the values of options that may be secrets.

    >>> from recshuf.storage.settings import StorageOptions
    >>> format_clean_command("s3://b/out/", StorageOptions("http://h:9", {"region": "a", "session_token": "b"}))
    'recshuf clean s3://b/out/ --yes --endpoint-url http://h:9 --storage-option region=a --storage-option session_token=...'
    """
    words = ["recshuf", "clean", output, "--yes"]
    if options.endpoint_url is not None:
        words += ["--endpoint-url", options.endpoint_url]
    for name, value in options.options.items():
        words += ["--storage-option", f"{name}={value if name.lower().endswith(_SHOWN) else '...'}"]
    return shlex.join(words)
