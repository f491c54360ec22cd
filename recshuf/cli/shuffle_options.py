"""The options of the shuffle as those of a command: how their values are read, and how ``--help`` shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import click

from recshuf.errors import UsageError
from recshuf.job.options import OPTIONS, flag_of
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from recshuf.job.options import Option

_HEADINGS = ("Input", "Output", "Order", "Resources", "General")

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


def _as_click(name: str, option: Option) -> click.Option:
    """Return an option of the functions as one of the command."""
    flags = [*filter(None, [option.short]), flag_of(name)]
    if option.metavar is None:
        return click.Option(flags, is_flag=True, help=option.help)
    settings: dict[str, Any] = {"metavar": option.metavar, "help": option.help}
    if option.default is not None:
        settings |= {"default": option.default, "show_default": option.shows_default}
    if option.choices:
        settings["type"] = click.Choice(option.choices)
    elif option.is_path:
        settings["type"] = click.Path()
    elif option.parse is int:
        settings["type"] = int
    elif option.parse is not str:
        settings["callback"] = _parsed_by(option.parse)
    return click.Option(flags, **settings)


def _make_options() -> dict[str, list[click.Option]]:
    """Return new options, by the heading that ``--help`` puts them under."""
    made: dict[str, list[click.Option]] = {heading: [] for heading in _HEADINGS}
    made["Output"].append(
        click.Option(
            ["-o", "--output"],
            type=click.Path(),
            metavar="OUTPUT",
            help="Where the shuffled records go.",
        )
    )
    for name, option in OPTIONS.items():
        made[option.group].append(_as_click(name, option))
    made["General"] += [
        click.Option(["--plan"], is_flag=True, help="Print the plan (piles, memory, disk, descriptors, shards) and stop."),
        click.Option(["--report"], type=click.Path(), metavar="FILE", help="Write the figures of the run, or with --plan the plan, as JSON; - is standard output."),
        click.Option(["--html"], type=click.Path(), metavar="FILE", help="Read the files again, test the order, and write a page with pictures and figures."),
        click.Option(["-q", "--quiet"], is_flag=True, help="Print nothing but errors."),
        click.Option(["-v", "--verbose"], is_flag=True, help="Print more, and the traceback of an error."),
        click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Print the version."),
    ]  # fmt: skip
    return made


class ShuffleCommand(click.Command):
    """The shuffle as a command, whose help is grouped.

    Parameters
    ----------
    callback
        Called with the values of all options and ``inputs``, by name.
    """

    def __init__(self, callback: Callable[..., None]) -> None:
        self.headings = _make_options()
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


class Wording(NamedTuple):
    """What another command than the shuffle says of itself."""

    description: str
    usage: list[str]
    example: str
    shared: type
    """The kind of its options; those of the shuffle that are among them are its own, too."""
    headings: dict[str, str]
    """Headings that it puts them under, by those of the shuffle, where they are not the same."""
    general: tuple[str, ...]
    """What it has besides from the shuffle."""
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
        self.headings = {heading: list(options) for heading, options in (own or {}).items()}
        shared = [(OPTIONS[name].group, name) for name in wording.shared.__annotations__]
        for group, name in [*shared, *(("General", name) for name in wording.general)]:
            self.headings.setdefault(wording.headings.get(group, group), []).append(known[name])
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
