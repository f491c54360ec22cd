"""The options of ``recshuf check``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from recshuf._options import SiblingCommand, Wording

if TYPE_CHECKING:
    from collections.abc import Callable

_WORDING = Wording(
    description="""
Test whether records are in a uniformly random order.

With --against, DATA is the output of a shuffle of the INPUTs, by whatever program: where each record comes from is
found by its content. Without, DATA is what is only said to be shuffled, and the order of a column's values is
tested. More than a million records are sampled. Exit code 0: nothing speaks against it; 3: it is not uniformly
random; 1: a file cannot be read; 2: wrong usage.
""",
    usage=["DATA...", "[--against INPUT... | --column NAME]"],
    example="""\
Examples:
  recshuf data/ -o shuffled/ && recshuf check shuffled/ --against data/
  recshuf check downloaded/*.parquet --column label
""",
    shared={
        "Data": (
            "format",
            "to",
            "header",
            "zero_terminated",
            "separator",
            "max_record_bytes",
            "datasets",
            "columns",
            "schema",
        ),
        "Resources": ("memory", "workers"),
        "General": ("quiet", "verbose"),
    },
    help={
        "format": "Format of the files, with --against of the INPUTs; else from suffix or content.",
        "to": "With --against, format of DATA; else what its manifest says, its suffix or its content.",
        "quiet": "Print nothing but errors; the exit code tells.",
        "verbose": "Print all statistics, and the traceback of an error.",
    },
)


class CheckCommand(SiblingCommand):
    """The check of an order as a command.

    Parameters
    ----------
    callback
        Called with the values of all options and ``inputs``, which are the data, by name.
    """

    def __init__(self, callback: Callable[..., None]) -> None:
        own = {
            "Test": [
                click.Option(
                    ["--against"],
                    multiple=True,
                    metavar="INPUT...",
                    help="What DATA was made from: all words up to the next option.",
                ),
                click.Option(
                    ["--id", "id_column"],
                    metavar="NAME",
                    help="With --against: a column or field that tells records apart; else their whole content does.",
                ),
                click.Option(
                    ["--column", "--field"],
                    metavar="NAME",
                    help="Column, dataset or field (a.b) by whose values the order is tested.",
                ),
                click.Option(["--json", "as_json"], is_flag=True, help="Print the findings as JSON."),
            ]
        }
        super().__init__("check", callback, _WORDING, own)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line, ``--against a b`` like ``--against a --against b``."""
        spread: list[str] = []
        is_against = False
        for word in args:
            if word == "--against":
                is_against = True
                continue
            if word.startswith("-") and word != "-":
                is_against = False
            spread += ["--against", word] if is_against else [word]
        return super().parse_args(ctx, spread)
