"""Command-line options of ``recshuf check`` and ``recshuf picture``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from recshuf.cli.options import GivenPath, SiblingCommand, Wording, make_epoch_options
from recshuf.job.options import CheckOptions

if TYPE_CHECKING:
    from collections.abc import Callable


_HEADINGS = {"Input": "Data", "Output": "Data"}
_GENERAL = ("quiet", "verbose")
_HELP = {
    "format": "Format of DATA, or with --against of the INPUTs. Default: from suffix, else from content.",
    "to": "With --against: format of DATA. Default: from its manifest, suffix or content.",
    "keep_others": "HDF5: the records are the datasets of the commonest length, or those of --datasets. Default: datasets of several lengths are refused.",
    "schema": "Schema file for the fields of JSONL, CSV or text, if the shuffle got one. Default: inferred types.",
    "quiet": "Print errors only; the exit code is the result.",
}
_CHECK = Wording(
    description="""
Test whether records are in a uniformly random order.

With --against, each DATA is a shuffle of the INPUTs by any program; records are matched by content. With
--provenance, the columns source_file and source_row give the input row of each record, and no input is read.
Several DATA are shuffles with different seeds and are tested together. With --column, the order of one column's
values is tested, without the inputs. With --loader, two epochs of a pile store are tested. More than a million
records are sampled. Exit code 0: no evidence against a uniformly random order; 3: not uniformly random; 1: a file
cannot be read; 2: wrong usage, or fewer than 1,000 records.
""",
    usage=["DATA...", "[--against INPUT... | --column NAME | --provenance | --loader STORE]"],
    example="""\
Examples:
  recshuf data/ -o shuffled/ && recshuf check shuffled/ --against data/
  recshuf check downloaded/*.parquet --column label
  recshuf data/ -o shuffled/ --provenance && recshuf check shuffled/ --provenance
  recshuf scatter data/ -o store && recshuf check --loader store
""",
    shared=CheckOptions,
    headings=_HEADINGS,
    general=("overwrite", "seed", *_GENERAL),
    help=_HELP
    | {
        "seed": "With --loader: seed of the epochs. Default: that of the store.",
        "overwrite": "Replace an existing page. Default: it is an error.",
        "verbose": "Print all statistics, and tracebacks of errors.",
    },
)
_PICTURE = Wording(
    description="""
Draw the order of records as points along a Hilbert curve, which keeps neighbours close together.

With --column, the colour of a point is the value of a column. With --against, it is the record's position in the
INPUTs, matched by content; with --provenance, the position that the columns source_file and source_row give. INPUTs
and DATA are drawn side by side. If there are more records than points, they are sampled. The picture is a PNG. It
needs recshuf[report].
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
    help=_HELP | {"quiet": "Print errors only."},
)


def _make_options() -> dict[str, list[click.Option]]:
    """Return the options of both commands by heading."""
    return {
        "Order": [
            click.Option(
                ["--against"],
                multiple=True,
                metavar="INPUT...",
                help="Inputs that DATA was shuffled from. Takes all words up to the next option.",
            ),
            click.Option(
                ["--id", "id_column"],
                metavar="NAME",
                help="With --against: column or field that identifies a record. Default: its whole content.",
            ),
            click.Option(
                ["--column", "--field"],
                metavar="NAME",
                help="Column, dataset or field (a.b) to test or draw; nothing else is read. Default: the name in --datasets or --columns, if it is a single one.",
            ),
            click.Option(
                ["--provenance"],
                is_flag=True,
                help="Use the columns source_file and source_row that recshuf --provenance added.",
            ),
        ]
    }


class OrderCommand(SiblingCommand):
    """A command about the order of its ``inputs``, the data."""

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
    """Return the check command; `callback` gets ``inputs`` and all options as keyword arguments."""
    own = _make_options()
    own["Order"] += [
        click.Option(
            ["--loader", "loaders"],
            multiple=True,
            metavar="STORE",
            help="Test what recshuf.PileLoader yields from this store over two epochs, in place of DATA.",
        ),
        *make_epoch_options("With --loader: first of the two epochs.", 1),
        click.Option(["--json", "as_json"], is_flag=True, help="Print the result as JSON."),
        click.Option(
            ["--html"],
            type=GivenPath(),
            metavar="FILE",
            help="Write a page with pictures and the result. Needs recshuf[report].",
        ),
    ]
    return OrderCommand("check", callback, _CHECK, own)


def make_picture_command(callback: Callable[..., None]) -> OrderCommand:
    """Return the picture command; `callback` gets ``inputs`` and all options as keyword arguments."""
    own = _make_options() | {
        "Output": [
            click.Option(
                ["-o", "--output"],
                type=GivenPath(),
                metavar="PNG",
                help="File of the picture; - is standard output.",
            ),
            click.Option(
                ["--title"], metavar="TEXT", help="Heading of the picture. Default: names of the data."
            ),
            click.Option(
                ["--overwrite"], is_flag=True, help="Replace an existing picture. Default: it is an error."
            ),
        ]
    }
    return OrderCommand("picture", callback, _PICTURE, own)
