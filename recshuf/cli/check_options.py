"""The options of ``recshuf check`` and ``recshuf picture``, which look at the order of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from recshuf.cli.shuffle_options import SiblingCommand, Wording
from recshuf.job.options import CheckOptions

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADINGS = {"Input": "Data", "Output": "Data"}
_GENERAL = ("quiet", "verbose")
_HELP = {
    "format": "Format of the files, with --against of the INPUTs; else from suffix or content.",
    "to": "With --against, format of DATA; else what its manifest says, its suffix or its content.",
    "quiet": "Print nothing but errors; the exit code tells.",
    "verbose": "Print the traceback of an error.",
}
_CHECK = Wording(
    description="""
Test whether records are in a uniformly random order.

With --against, each DATA is the output of a shuffle of the INPUTs, by whatever program: where each record comes from
is found by its content; with --provenance, by the columns source_file and source_row, and no input is read. Several
are shuffles with different seeds, tested together. Without, DATA is what is only said to be shuffled, and the order of a column's values is
tested. More than a million records are sampled. Exit code 0: nothing speaks against it; 3: it is not uniformly
random; 1: a file cannot be read; 2: wrong usage.
""",
    usage=["DATA...", "[--against INPUT... | --column NAME | --provenance]"],
    example="""\
Examples:
  recshuf data/ -o shuffled/ && recshuf check shuffled/ --against data/
  recshuf check downloaded/*.parquet --column label
  recshuf data/ -o shuffled/ --provenance && recshuf check shuffled/ --provenance
""",
    shared=CheckOptions,
    headings=_HEADINGS,
    general=_GENERAL,
    help=_HELP | {"verbose": "Print all statistics, and the traceback of an error."},
)
_PICTURE = Wording(
    description="""
Draw the order of records: each is a point on a Hilbert curve, neighbours close together.

Colours tell the value of a column, or with --against where in the INPUTs a record comes from, found by its content,
or with --provenance by its columns source_file and source_row; then INPUTs and DATA stand side by side. More records than points are sampled. The picture is a PNG, and takes
Pillow: pip install "recshuf[report]".
""",
    usage=["DATA...", "[--against INPUT...]", "[--column NAME]", "[--provenance]", "-o PICTURE.png"],
    example="""\
Examples:
  recshuf data/ -o shuffled/ && recshuf picture shuffled/ --against data/ -o shuffled.png
  recshuf picture downloaded/*.parquet --column label -o labels.png
""",
    shared=CheckOptions,
    headings=_HEADINGS,
    general=_GENERAL,
    help=_HELP,
)


def _make_options() -> dict[str, list[click.Option]]:
    """Return the options that both commands have, by heading."""
    return {
        "Order": [
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
                help="Column, dataset or field (a.b) whose values tell the order; nothing else is read. A single name in --datasets or --columns does the same.",
            ),
            click.Option(
                ["--provenance"],
                is_flag=True,
                help="Where a record comes from is what its columns say that a run with --provenance has added.",
            ),
        ]
    }


class OrderCommand(SiblingCommand):
    """A command that looks at the order of its ``inputs``, the data."""

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


def make_check_command(callback: Callable[..., None]) -> OrderCommand:
    """Return the check as a command, which calls back with the values of all options by name."""
    own = _make_options()
    own["Order"] += [
        click.Option(["--json", "as_json"], is_flag=True, help="Print the findings as JSON."),
        click.Option(
            ["--html"], type=click.Path(), metavar="FILE", help="Write a page with pictures and the findings."
        ),
    ]
    return OrderCommand("check", callback, _CHECK, own)


def make_picture_command(callback: Callable[..., None]) -> OrderCommand:
    """Return the drawing as a command, which calls back with the values of all options by name."""
    own = _make_options() | {
        "Output": [
            click.Option(["-o", "--output"], required=True, metavar="PNG", help="Where the picture goes."),
            click.Option(["--title"], metavar="TEXT", help="The heading; else the names of the data."),
            click.Option(["--overwrite"], is_flag=True, help="Replace a picture that is there."),
        ]
    }
    return OrderCommand("picture", callback, _PICTURE, own)
