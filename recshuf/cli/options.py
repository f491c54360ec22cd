"""Command-line options of the shuffle: parsing and ``--help``.

What commands have in common: settings of their help, and the options on what they print.

The display of progress of a command.

Command-line options of ``recshuf verify``, which are options of the shuffle.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from recshuf.errors import UsageError
from recshuf.job.options import OPTIONS, VerifyOptions, flag_of
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable

    from recshuf.job.report import Progress


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
            help="How later epochs differ: rotate, piles or none; see docs/training.md. Default: rotate.",
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


def choose_progress(quiet: bool, *, writes_records: bool = False) -> Progress:
    """Return the display of progress; `writes_records` says whether records go to standard output."""
    from recshuf.audit.reports.terminal import open_terminal
    from recshuf.job.report import SilentProgress

    if quiet:
        return SilentProgress()
    return open_terminal(shows_records=writes_records and sys.stdout is not None and sys.stdout.isatty())


_HEADINGS = ("Input", "Output", "Order", "Resources", "General")
_DESCRIPTION = """
Shuffle records exactly uniformly, within a memory limit.

INPUT is files, directories and globs; - or none means standard input (text, JSONL and CSV). OUTPUT is a directory of
shards if its name ends in /, if it is an existing directory, or if an option asks for shards. Otherwise it is one
file; - or none means standard output (text, JSONL and CSV). Both may be in object stores, s3://BUCKET/KEY, gs:// or
az://; https:// and hf:// are read, too. A SIZE is written 300MB, 2GiB or 1500000000. Write ./NAME for a file that has
the name of a command.
"""
_EXAMPLES = """\
Other commands, each with --help:
  recshuf verify INPUT... OUTPUT           check that no record is lost
  recshuf check DATA --against INPUT...    test whether an order is uniformly random
  recshuf picture DATA... -o PICTURE.png   draw the order of records
  recshuf scatter INPUT... -o STORE        keep the piles, to train from or to write later
  recshuf gather STORE -o OUTPUT           write a pile store in random order
  recshuf window STORE --append INPUT      append to a pile store, and remove what is old
  recshuf store info|verify|compact|drop STORE
  recshuf task PLAN.json NUMBER            run one task of a plan, on any machine
  recshuf clean URL                        list or remove what dead runs left in an object store
  recshuf gallery -o DIR                   draw the orders of other shufflers
  recshuf demo                             try it on generated data

Examples:
  recshuf data/ -o shuffled/ --shards 64 --memory 4GB
  zstdcat big.jsonl.zst | recshuf --format jsonl --seed 42 > shuffled.jsonl

Shell completion: eval "$(_RECSHUF_COMPLETE=bash_source recshuf)"; for other shells: zsh_source, fish_source.
"""


class GivenPath(click.Path):
    """A path that is not empty, as one from an unset variable of a shell is; the run opens it, and says why it cannot."""

    def __init__(self) -> None:
        super().__init__(readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path."""
        if value == "":
            self.fail("the path is empty; give one, or leave the option out", param, ctx)
        return super().convert(value, param, ctx)


def _parsed_by(
    parse: Callable[[str], object],
) -> Callable[[click.Context, click.Parameter, str | None], object]:
    """Return a click callback that parses a value; its errors name the option."""

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


def make_option(name: str) -> click.Option:
    """Return the click option for a declared option."""
    option = OPTIONS[name]
    flags = [*filter(None, [option.short]), flag_of(name)]
    if option.flag:
        flags.append(name)
    if option.metavar is None:
        return click.Option(flags, is_flag=True, help=option.help)
    settings: dict[str, Any] = {"metavar": option.metavar, "help": option.help}
    if option.default is not None:
        settings["default"] = option.default
    if option.choices:
        settings["type"] = click.Choice(option.choices)
    elif option.is_path:
        settings["type"] = GivenPath()
    elif option.is_repeatable:
        settings["multiple"] = True
    elif option.parse is int:
        settings["type"] = int
    elif option.parse is not str:
        settings["callback"] = _parsed_by(option.parse)
    return click.Option(flags, **settings)


def _make_options() -> dict[str, list[click.Option]]:
    """Return new options by heading."""
    made: dict[str, list[click.Option]] = {heading: [] for heading in _HEADINGS}
    made["Output"].append(
        click.Option(
            ["-o", "--output"],
            type=GivenPath(),
            metavar="OUTPUT",
            help="Output file or directory. Default: standard output.",
        )
    )
    for name, option in OPTIONS.items():
        made[option.group].append(make_option(name))
    made["General"] += [
        click.Option(["--plan"], is_flag=True, help="Print the plan (piles, memory, disk, file descriptors, shards) and stop."),
        click.Option(["--report"], type=GivenPath(), metavar="FILE", help="Write the figures of the run as JSON, with --plan those of the plan; - is standard output."),
        click.Option(["--html"], type=GivenPath(), metavar="FILE", help="Write a page with pictures and figures, after a test of the order. Needs recshuf[report]."),
        click.Option(["-q", "--quiet"], is_flag=True, help="Print errors only."),
        make_verbose_option("Print details, and tracebacks of errors."),
        click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Print the version."),
    ]  # fmt: skip
    return made


class ShuffleCommand(click.Command):
    """The shuffle command; its help groups the options.

    Parameters
    ----------
    callback
        Called with ``inputs`` and all options as keyword arguments.
    """

    def __init__(self, callback: Callable[..., None]) -> None:
        self.headings = _make_options()
        options = [option for group in self.headings.values() for option in group]
        inputs = click.Argument(["inputs"], nargs=-1, type=GivenPath())
        super().__init__(
            "shuffle", WIDE_HELP_SETTINGS, callback, [inputs, *options], help=_DESCRIPTION, hidden=True
        )

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the words of the usage line."""
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
        """Write the examples unwrapped."""
        formatter.write_paragraph()
        formatter.write(_EXAMPLES)


_HELP_OF_READERS = {
    "header": "Text, CSV: number of header lines of each file, which are no records; auto or none. Default: auto, which is 0 for text; for CSV, 0 or 1 as its first records tell, or an error.",
    "delimiter": "CSV: character between fields. Default: a tab in .tsv, else found in the first file.",
    "verbose": HELP_OF_VERBOSE,
}
"""Help of options where nothing is shuffled, by name."""


class Wording(NamedTuple):
    """Help texts of a command other than the shuffle."""

    description: str
    usage: list[str]
    example: str
    shared: type
    """Its option class; it has the shuffle options of these names."""
    headings: dict[str, str]
    """Its headings by those of the shuffle, where they differ."""
    general: tuple[str, ...]
    """Names of further shuffle options, under General."""
    help: dict[str, str]
    """Its own help for some shuffle options, by name."""


class SiblingCommand(ShuffleCommand):
    """A command that shares options with the shuffle.

    Parameters
    ----------
    callback
        Called with ``inputs`` and all options as keyword arguments.
    own
        Further options by heading; they come first.
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
        for changed, text in (_HELP_OF_READERS | wording.help).items():
            known[changed].help = text
        arguments = [param for param in self.params if isinstance(param, click.Argument)]
        self.params = [*arguments, *(option for group in self.headings.values() for option in group)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the words of the usage line."""
        return ["[OPTIONS]", *self._wording.usage]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the examples unwrapped."""
        formatter.write_paragraph()
        formatter.write(self._wording.example)


_WORDING = Wording(
    description="""
Check that OUTPUT holds the same records as the INPUTs, in any order.

INPUT is files, directories and globs; OUTPUT is the file or directory that recshuf wrote, in the same or another
format. Only the files are read. Give the options of the shuffle again. Exit code 0: equal; 1: different, or a file
cannot be read; 2: wrong usage.
""",
    usage=["INPUT...", "OUTPUT"],
    example="""\
Example:
  recshuf data/ -o shuffled/ --to parquet && recshuf verify data/ shuffled/
""",
    shared=VerifyOptions,
    headings={"Order": "Output"},
    general=("report", "overwrite", "quiet", "verbose"),
    help={
        "to": "Format of OUTPUT. Default: from its manifest, suffix or content.",
        "head_count": "Size of the sample that OUTPUT is. Default: it is no sample.",
        "provenance": "Ignore the columns source_file and source_row of OUTPUT. Default: as in its manifest.",
        "nan_as_null": "NaN and infinities of the inputs are null in OUTPUT, which is JSONL. Default: they are not.",
        "temp_dir": "Folder for hashes that do not fit in memory. Default: $TMPDIR, else /var/tmp.",
        "report": "Write the result as JSON; - is standard output.",
        "overwrite": "Replace an existing report. Default: it is an error.",
        "quiet": "Print errors only; the exit code is the result.",
        "keep_others": "HDF5: compare the datasets of the commonest length, or those of --datasets, by record, and others as wholes. Default: datasets of several lengths are refused.",
    },
)


def make_verify_command(callback: Callable[..., None]) -> SiblingCommand:
    """Return the verify command; the last of its ``inputs`` is the output."""
    return SiblingCommand("verify", callback, _WORDING)
