"""What is wrong with credentials, said before a request; their text is never shown."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from recshuf.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

NO_ACCOUNT = "az://: the account is unknown; set AZURE_STORAGE_ACCOUNT_NAME"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class _Names(NamedTuple):
    """Names of the credentials of a scheme: as storage options, also without a prefix; in upper case with one, as variables."""

    prefixes: tuple[str, ...]
    sent: tuple[str, ...]
    """Of texts that requests hold."""
    paths: tuple[str, ...] = ()
    """Of files with credentials."""


_NAMES = {
    "az": _Names(
        ("azure_storage_", "azure_"),
        (
            *("account_name", "account_key", "access_key", "master_key", "sas_key", "sas_token"),
            *("token", "bearer_token", "client_id", "client_secret", "tenant_id"),
        ),
    ),
    "gs": _Names(
        ("google_",),
        ("bearer_token",),
        ("service_account", "service_account_path", "application_credentials"),
    ),
    # The library strips the variables.
    "hf": _Names((), ("token",)),
}


def check_text(label: str, value: str) -> None:
    """Refuse a part of credentials that cannot be in the header of a request.

    Raises
    ------
    UsageError
        When it is that; `label` says where it comes from.
    """
    if not (value.isascii() and value.isprintable()):
        raise UsageError(
            f"{label}: has a line break or another character that no request can send; set it again"
        )


def check_given(scheme: str, options: Mapping[str, str]) -> None:
    """Refuse credentials that cannot be right, among storage options or else in the environment.

    Raises
    ------
    UsageError
        When no request can send one, or one is no path where it must be.
    """
    prefixes, sent, paths = _NAMES[scheme]
    given = {name.lower(): (f"--storage-option {name}", value) for name, value in options.items()}
    for name in (*sent, *paths):
        found = [given[one] for one in (name, *(prefix + name for prefix in prefixes)) if one in given]
        variables = [(prefix + name).upper() for prefix in prefixes]
        for label, value in found or [(one, os.environ[one]) for one in variables if one in os.environ]:
            if name in paths:
                _check_path(label, value)
            else:
                check_text(label, value)


def _check_path(label: str, value: str) -> None:
    """Refuse what is no path of a file with credentials, but may be what is in it."""
    if value.lstrip().startswith("{"):
        raise UsageError(f"{label}: is JSON; give the path of a file that holds it")
    if _CONTROL.search(value):
        raise UsageError(f"{label}: has a line break or another control character; give the path of a file")
