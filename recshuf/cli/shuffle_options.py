"""The options of the shuffle: their names, how their values are read, and how ``--help`` shows them."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from recshuf.errors import UsageError
from recshuf.system.units import parse_size
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

FORMATS = ("jsonl", "text", "parquet", "hdf5")

_DESCRIPTION = """
Shuffle records, exactly uniformly, in bounded memory.

INPUT is files, directories and globs, or - or nothing for standard input (text and JSONL). OUTPUT is a
directory for shards (a name that ends in /, exists as one, or is asked for shards), a file, or - or nothing
for standard output (text and JSONL). A SIZE is written 300MB, 2GiB or 1500000000. A file named like a command
is given as ./NAME.
"""
_EXAMPLES = """\
Other commands, each with --help:
  recshuf verify INPUT... OUTPUT           prove that nothing is lost
  recshuf check DATA --against INPUT...    test whether an order is uniformly random
  recshuf picture DATA... -o PICTURE.png   draw an order
  recshuf gallery -o DIR                   draw what other shufflers do
  recshuf demo                             see all of it on made-up data

Examples:
  recshuf data/ -o shuffled/ --shards 64 --memory 4GB
  zstdcat big.jsonl.zst | recshuf --format jsonl --seed 42 > shuffled.jsonl

Shell completion: eval "$(_RECSHUF_COMPLETE=bash_source recshuf)", also zsh_source and fish_source.
"""

_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}


def parse_seed(text: str) -> int:
    """Return a whole number, decimal or hexadecimal.

    >>> parse_seed("0xff")
    255
    """
    try:
        return int(text, 16 if text[:2] in ("0x", "0X") else 10)
    except ValueError:
        raise UsageError(f"{text!r} is not a whole number from 0 to 2^128-1") from None


def parse_separator(text: str) -> bytes:
    r"""Return the bytes of a command line argument, its escapes replaced.

    >>> parse_separator(r"\t\x1f|")
    b'\t\x1f|'
    """

    def unescape(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        if len(escape) == 3:
            return bytes([int(escape[1:], 16)])
        if escape not in _ESCAPES:
            raise UsageError(r"a backslash must begin \n, \t, \r, \0, \xHH or \\")
        return _ESCAPES[escape]

    return re.sub(rb"\\(x[0-9A-Fa-f]{2}|.|)", unescape, os.fsencode(text), flags=re.DOTALL)


def _parsed_by(
    parse: Callable[[str], object],
) -> Callable[[click.Context, click.Parameter, str | None], object]:
    """Return an option's callback that parses its value and lets a complaint name the option."""

    def parse_value(_: click.Context, __: click.Parameter, value: str | None) -> object:
        try:
            return None if value is None else parse(value)
        except UsageError as error:
            raise click.BadParameter(str(error)) from None

    return parse_value


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"recshuf {__version__}")
        context.exit()


def _flag(*names: str, help: str, **settings: Any) -> click.Option:  # noqa: A002 - click's own word
    return click.Option(names, is_flag=True, help=help, **settings)


def _value(*names: str, metavar: str, help: str, **settings: Any) -> click.Option:  # noqa: A002 - click's own word
    return click.Option(names, metavar=metavar, help=help, **settings)


def _options() -> dict[str, list[click.Option]]:
    """Return new options, by the heading that ``--help`` puts them under."""
    formats = click.Choice(FORMATS)
    return {
        "Input": [
            _value("--format", type=formats, metavar="NAME", help=f"Format of the inputs: {', '.join(FORMATS)}; else from suffix or content."),
            _value("--header", type=int, default=0, metavar="N", help="The first N lines of each text input are a header, kept at the top of each shard."),
            _flag("-z", "--zero-terminated", help="Text records end in a NUL byte."),
            _value("--separator", callback=_parsed_by(parse_separator), metavar="STR", help=r"What text records end in; \n, \t, \r, \0, \xHH and \\ are escapes."),
            _value("--max-record-bytes", callback=_parsed_by(parse_size), default="1GiB", show_default=True, metavar="SIZE", help="Longest record accepted; a longer one is an error."),
            _value("--datasets", metavar="A,B", help="HDF5 datasets that are the record; else all with a first axis."),
            _value("--columns", metavar="A,B", help="Parquet columns to keep; else all."),
            _value("--schema", type=click.Path(), metavar="FILE", help="Types for a conversion from JSONL, where inference is not enough."),
            _value("--on-bad-record", default="fail", show_default=True, metavar="WHAT", help="In a conversion from lines, one that does not parse: fail, or quarantine:FILE to set it aside."),
        ],
        "Output": [
            _value("-o", "--output", type=click.Path(), metavar="OUTPUT", help="Where the shuffled records go."),
            _value("--to", type=formats, metavar="NAME", help="Format of the output; else from the suffix of OUTPUT, else that of the inputs."),
            _value("--compression", metavar="NAME[:LEVEL]", help="none, zstd, gzip, snappy or lz4, as the format allows; else that of the inputs."),
            _value("--shards", type=int, metavar="N", help="Cut the output into N shards; else one for each input file."),
            _value("--shard-records", type=int, metavar="N", help="Cut the output into shards of N records."),
            _value("--shard-bytes", callback=_parsed_by(parse_size), metavar="SIZE", help="Cut the output into shards of about SIZE."),
            _flag("--nan-as-null", help="Write NaN and infinities to JSONL as null; else they are an error."),
            _flag("--provenance", help="Add the columns source_file and source_row, which say where each record was read."),
            _flag("--overwrite", help="Replace an output that exists; else it is refused."),
            _flag("--verify", help="Before the output is put in place, read it again and compare it with the inputs."),
            _flag("--resume", help="Go on from what a killed or failed run of the same command has finished."),
        ],
        "Order": [
            _value("--seed", callback=_parsed_by(parse_seed), metavar="N", help="0 to 2^128-1; else one is drawn, printed and recorded."),
            _value("-n", "--head-count", type=int, metavar="N", help="Write only N records: a uniform sample, in random order."),
        ],
        "Resources": [
            _value("--memory", callback=_parsed_by(parse_size), metavar="SIZE", help="Limit of what the run holds in memory, beside 150 MB for the interpreter and its libraries; else half of what is available."),
            _value("--workers", type=int, metavar="N", help="Threads; else the usable cores."),
            _value("--temp-dir", type=click.Path(), metavar="DIR", help="Where records spill that memory cannot hold; else beside the output."),
            _value("--spill-compression", default="none", show_default=True, metavar="NAME", help="Of what is spilled: none, lz4 or zstd, for a disk slower than the processor; the output is the same."),
            _flag("--no-space-check", help="Start even if the disk seems to have no room for the run."),
            _value("--piles", type=int, metavar="N", help="How many piles; for tests and experts."),
        ],
        "General": [
            _flag("--plan", help="Print the plan (piles, memory, disk, descriptors, shards) and stop."),
            _value("--report", type=click.Path(), metavar="FILE", help="Write the figures of the run, or with --plan the plan, as JSON; - is standard output."),
            _value("--html", type=click.Path(), metavar="FILE", help="Read the files again, test the order, and write a page with pictures and figures."),
            _flag("-q", "--quiet", help="Print nothing but errors."),
            _flag("-v", "--verbose", help="Print more, and the traceback of an error."),
            _flag("--version", is_eager=True, expose_value=False, callback=_show_version, help="Print the version."),
        ],
    }  # fmt: skip


class ShuffleCommand(click.Command):
    """The shuffle as a command, whose help is grouped.

    Parameters
    ----------
    callback
        Called with the values of all options and ``inputs``, by name.
    """

    def __init__(self, callback: Callable[..., None]) -> None:
        self.headings = _options()
        options = [option for group in self.headings.values() for option in group]
        inputs = click.Argument(["inputs"], nargs=-1, type=click.Path())
        names = {"help_option_names": ["-h", "--help"], "max_content_width": 110}
        super().__init__("shuffle", names, callback, [inputs, *options], help=_DESCRIPTION, hidden=True)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the usage line's words."""
        return ["[OPTIONS]", "INPUT...", "-o OUTPUT"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under their headings."""
        for heading, options in self.headings.items():
            own = [option.get_help_record(ctx) for option in options]
            if heading == "General" and (help_option := self.get_help_option(ctx)):
                own.append(help_option.get_help_record(ctx))
            with formatter.section(heading):
                formatter.write_dl([record for record in own if record])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the examples as they stand."""
        formatter.write_paragraph()
        formatter.write(_EXAMPLES)


@dataclass(frozen=True)
class Wording:
    """What another command than the shuffle says of itself."""

    description: str
    usage: list[str]
    example: str
    shared: dict[str, tuple[str, ...]]
    """Options that it has from the shuffle, by heading."""
    help: dict[str, str]
    """What it says of some of them in other words."""


class SiblingCommand(ShuffleCommand):
    """A command with options of the shuffle, under the same names and headings.

    Parameters
    ----------
    callback
        Called with the values of all options and ``inputs``, by name.
    own
        Options of its own, by heading; those come first.
    """

    def __init__(
        self,
        name: str,
        callback: Callable[..., None],
        wording: Wording,
        own: dict[str, list[click.Option]] | None = None,
    ) -> None:
        super().__init__(callback)
        self._wording = wording
        known = {option.name: option for group in self.headings.values() for option in group}
        self.name, self.help, self.hidden = name, wording.description, False
        shared = {heading: [known[name] for name in names] for heading, names in wording.shared.items()}
        self.headings = (own or {}) | {
            heading: [*(own or {}).get(heading, []), *options] for heading, options in shared.items()
        }
        for changed, text in wording.help.items():
            known[changed].help = text
        arguments = [param for param in self.params if isinstance(param, click.Argument)]
        self.params = [*arguments, *(option for group in self.headings.values() for option in group)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the usage line's words."""
        return ["[OPTIONS]", *self._wording.usage]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the example as it stands."""
        formatter.write_paragraph()
        formatter.write(self._wording.example)
