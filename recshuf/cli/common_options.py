"""What commands have in common: settings of their help, and the options on what they print."""

from __future__ import annotations

from typing import Any

import click

from recshuf.errors import UsageError

HELP_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
"""Context settings of every command."""
WIDE_HELP_SETTINGS = HELP_SETTINGS | {"max_content_width": 110}
"""Those of commands whose help has long lines."""
HELP_OF_VERBOSE = "Print tracebacks of errors."
"""For commands that have no details to print."""


def make_verbose_option() -> click.Option:
    """Return the option ``--verbose`` of a command that has no details to print."""
    return click.Option(["-v", "--verbose"], is_flag=True, help=HELP_OF_VERBOSE)


def check_loudness(quiet: bool, verbose: bool) -> None:
    """Refuse ``-q`` beside ``-v``.

    Raises
    ------
    UsageError
        When both are given.
    """
    if quiet and verbose:
        raise UsageError("-q and -v contradict each other; give one of them")
