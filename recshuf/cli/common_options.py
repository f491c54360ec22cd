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
_VERBOSE = "recshuf.verbose"


def make_verbose_option(text: str = HELP_OF_VERBOSE) -> click.Option:
    """Return the option ``--verbose`` of a command, with its help."""
    return click.Option(["-v", "--verbose"], is_flag=True, help=text, callback=note_verbose)


def make_epoch_options(text: str, epoch: int) -> list[click.Option]:
    """Return the options that choose the order of an epoch of a store, given the help and the default of ``--epoch``."""
    return [
        click.Option(["--epoch"], type=int, default=epoch, metavar="N", help=f"{text} Default: {epoch}."),
        click.Option(
            ["--reshuffle"], default="rotate", metavar="NAME",
            help="How later epochs differ: rotate, piles, exact or none; see docs/training.md. Default: rotate.",
        ),
        click.Option(["--mix"], type=int, default=1, metavar="N", help="Piles that later epochs mix. Default: 1."),
    ]  # fmt: skip


def note_verbose(context: click.Context, _: click.Parameter, value: bool) -> bool:
    """Keep the value of ``--verbose`` for `is_verbose`, and return it."""
    context.meta[_VERBOSE] = value
    return value


def is_verbose(context: click.Context | None) -> bool | None:
    """Tell whether ``--verbose`` was given to the command in a context, or in a group; None if that takes none."""
    return None if context is None else context.meta.get(_VERBOSE)


def check_loudness(quiet: bool, verbose: bool) -> None:
    """Refuse ``-q`` beside ``-v``.

    Raises
    ------
    UsageError
        When both are given.
    """
    if quiet and verbose:
        raise UsageError("-q and -v contradict each other; give one of them")
