"""Options and help of the commands, made from the declarations in `recshuf.job.options`; what commands print."""

from __future__ import annotations

import sys
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from recshuf.errors import ConversionError, InputError, UsageError
from recshuf.job.options import OPTIONS, Option, Options, fit_remedy, flag_of, options_of
from recshuf.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from click.shell_completion import CompletionItem

    from recshuf.job.report import Progress


HELP_SETTINGS: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
"""Context settings of every command."""
WIDE_HELP_SETTINGS = HELP_SETTINGS | {"max_content_width": 110}
"""Those of commands whose help has long lines."""
HELP_OF_DETAILS = "Print details, and tracebacks of errors."
HELP_OF_QUIET_RESULT = "Print errors only; the exit code is the result."
_VERBOSE = "recshuf.verbose"


class GivenPath(click.Path):
    """A path that is not empty, as one from an unset variable of a shell is; the run opens it, and says why it cannot."""

    def __init__(self) -> None:
        super().__init__(readable=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty; give one, or leave the option out", param, ctx)
        return super().convert(value, param, ctx)


def make_option(name: str, command: str = "", option: Option | None = None) -> click.Option:
    """Return the click option for a declared option, by default one of the shuffle, with its text for a command."""
    option = option or OPTIONS[name]
    flags, text = [*(option.flags or (flag_of(name),)), name], option.explain(command)
    if option.metavar is None:
        default = None if "/" in flags[0] else False
        return click.Option(flags, is_flag=True, default=default, help=text)
    settings: dict[str, Any] = {"metavar": option.metavar, "help": text}
    if option.default is not None:
        settings["default"] = option.default
    if option.choices:
        settings["type"] = click.Choice(option.choices)
    elif option.is_format:
        settings |= {"callback": _check_format, "shell_complete": _complete_format}
    elif option.is_path:
        settings["type"] = GivenPath()
    elif option.is_repeatable:
        settings["multiple"] = True
    elif option.parse is int:
        settings["type"] = int
    elif option.parse is not str:
        settings["callback"] = _parsed_by(option.parse)
    return click.Option(flags, **settings)


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


def _check_format(context: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Refuse a name of no format; those of other packages are looked up only if it is none of recshuf's own."""
    if name is None:
        return None
    from recshuf.formats import OWN_FORMATS, list_names

    if name not in OWN_FORMATS:
        click.Choice(list_names()).convert(name, param, context)
    return name


def _complete_format(context: click.Context, param: click.Parameter, start: str) -> list[CompletionItem]:
    from recshuf.formats import list_names

    return click.Choice(list_names()).shell_complete(context, param, start)


def make_output_option(metavar: str, text: str, name: str = "output") -> click.Option:
    return click.Option(["-o", "--output", name], type=GivenPath(), metavar=metavar, help=text)


def make_quiet_option(text: str = "Print errors only.") -> click.Option:
    return click.Option(["-q", "--quiet"], is_flag=True, help=text)


def make_verbose_option(text: str = "Print tracebacks of errors.") -> click.Option:
    return click.Option(["-v", "--verbose"], is_flag=True, help=text, callback=_note_verbose)


def make_report_option(text: str) -> click.Option:
    return click.Option(["--report"], type=GivenPath(), metavar="FILE", help=f"{text}; - is standard output.")


def make_html_option(text: str) -> click.Option:
    return click.Option(["--html"], type=GivenPath(), metavar="FILE", help=text)


def make_epoch_options(text: str, epoch: int) -> list[click.Option]:
    """Return the options that choose the order of an epoch of a store, given the help and the default of ``--epoch``."""
    return [
        click.Option(["--epoch"], type=int, default=epoch, metavar="N", help=f"{text} Default: {epoch}."),
        click.Option(
            ["--reshuffle"], default="rotate", metavar="NAME", type=click.Choice(("rotate", "piles", "none")),
            help="How later epochs differ: rotate, piles or none; see docs/training.md. Default: rotate.",
        ),
        click.Option(["--mix"], type=int, default=1, metavar="N", help="Piles that an epoch mixes. Default: 1."),
    ]  # fmt: skip


def _note_verbose(context: click.Context, _: click.Parameter, value: bool) -> bool:
    context.meta[_VERBOSE] = value
    return value


def is_verbose(context: click.Context | None) -> bool | None:
    """Tell whether ``--verbose`` was given to the command in a context, or in a group; None if that takes none."""
    return None if context is None else context.meta.get(_VERBOSE)


def check_loudness(quiet: bool, verbose: bool) -> None:
    if quiet and verbose:
        raise UsageError("-q and -v contradict each other; give one of them")


def choose_progress(quiet: bool, *, writes_records: bool = False) -> Progress:
    """Return the display of progress; `writes_records` says whether records go to standard output."""
    from recshuf.audit.reports.text import open_terminal
    from recshuf.job.report import SilentProgress

    if quiet:
        return SilentProgress()
    return open_terminal(shows_records=writes_records and sys.stdout is not None and sys.stdout.isatty())


class Wording(NamedTuple):
    """What the help of a command says, and which declared options it has."""

    description: str
    usage: list[str]
    example: str
    """Text at the end, not wrapped."""
    shared: type
    headings: Mapping[str, str] = {}
    """Its headings by those of the declarations, where they differ."""


class GroupedCommand(click.Command):
    """A command whose help groups its options; the callback gets ``inputs`` and all options as keyword arguments.

    `own` has headings in their order, with further options, which come first. Those under General come last.
    """

    def __init__(
        self,
        name: str,
        callback: Callable[..., None],
        wording: Wording,
        own: dict[str, list[click.Option]],
    ) -> None:
        self._wording = wording
        self._own: dict[str, list[click.Option]] = {}
        self._problem = ""
        general = own.pop("General", [])
        self.headings = own
        for option_name, option in options_of(wording.shared).items():
            heading = wording.headings.get(option.group, option.group)
            own.setdefault(heading, []).append(make_option(option_name, name, option))
        own["General"] = general
        inputs = click.Argument(["inputs"], nargs=-1, type=GivenPath())
        options = [option for group in own.values() for option in group]
        super().__init__(
            name, WIDE_HELP_SETTINGS, callback, [inputs, *options], help=wording.description, hidden=not name
        )

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """Return the parameters, those that formats declare among them if a word may be one of them."""
        return [*super().get_params(ctx), *chain.from_iterable(self._own.values())]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; what formats declare is looked up only if it has a word that is not known."""
        known = {flag for param in self.params for flag in param.opts}
        unknown = {word.partition("=")[0] for word in args if word.startswith("-")} - {*known, "-", "--"}
        helps = {*HELP_SETTINGS["help_option_names"]} & {*args}
        completes = ctx.resilient_parsing
        self._own, self._problem = {}, ""
        try:
            names = [] if helps or completes else [word.lstrip("-").replace("-", "_") for word in unknown]
            self._own = self.list_own(names) if unknown or helps or completes else {}
        except UsageError as error:
            if not (helps or completes):
                raise
            self._problem = str(error)
        if not (helps or completes):
            self._refuse_slips(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_slips(self, ctx: click.Context, args: list[str]) -> None:
        """Refuse an option as the value of the one before it, and a list that is given twice.

        Of lists both are meant, and the last one would count, as of other options.
        """
        values, _, given = self.make_parser(ctx).parse_args([*args])
        flags = {flag for param in self.get_params(ctx) for flag in (*param.opts, *param.secondary_opts)}
        for option, count in Counter(given).items():
            if not isinstance(option, click.Option):
                continue
            taken = values.get(option.name or "")
            for value in {*(taken if isinstance(taken, list) else [taken])} & flags & {*args}:
                long = max(option.opts, key=len)
                raise UsageError(
                    f"{long}: no value before {value}; give one, or {long}={value} if that is it"
                )
            if count > 1 and "," in (option.metavar or ""):
                raise UsageError(
                    f"{option.opts[0]}: is given {count} times; give it once, as {option.metavar}"
                )

    def list_own(self, wanted: Sequence[str] = ()) -> dict[str, list[click.Option]]:
        """Return the options that formats declare, for inputs or an output of this command, by their headings; see `list_own`."""
        from recshuf.job.options import describe_own, list_own

        own: dict[str, list[click.Option]] = {}
        for name, declared in list_own(self._wording.shared, wanted).items():
            option = describe_own(declared)
            heading = self._wording.headings.get(option.group, option.group)
            own.setdefault(heading, []).append(make_option(name, self.name or "", option))
        return own

    def invoke(self, ctx: click.Context) -> Any:
        """Run it; errors propose options that it has."""
        try:
            return super().invoke(ctx)
        except (InputError, ConversionError) as error:
            names = [param.name or "" for param in self.params]
            error.args = (fit_remedy(error, names, self._wording.shared),)
            raise

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return ["[OPTIONS]", *self._wording.usage]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, options in self.list_sections(self._own).items():
            own = [option.get_help_record(ctx) for option in options]
            if heading == "General" and (help_option := self.get_help_option(ctx)):
                own.append(help_option.get_help_record(ctx))
            with formatter.section(heading):
                formatter.write_dl([record for record in own if record])
        if self._problem:
            with formatter.section("Formats"):
                formatter.write_text(self._problem)

    def list_sections(self, own: Mapping[str, list[click.Option]]) -> dict[str, list[click.Option]]:
        """Return the options under their headings, with those of formats, which have further headings at the end."""
        named = {heading: [*self.headings.get(heading, []), *options] for heading, options in own.items()}
        return self.headings | named

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        formatter.write_paragraph()
        formatter.write(self._wording.example)


_DESCRIPTION = """
Shuffle records exactly uniformly, within a memory limit.

INPUT is files, directories and globs; - or none means standard input (text, JSONL and CSV). OUTPUT is a directory of
shards if its name ends in /, if it is an existing directory, or if an option asks for shards. Otherwise it is one
file; - or none means standard output (text, JSONL and CSV). Both may be in object stores, s3://BUCKET/KEY, gs:// or
az://; https:// and hf:// are read, too. A SIZE is written 300MB, 2GiB or 1500000000. Write ./NAME for a file that has
the name of a command.
"""
_EXAMPLES = """\
Other commands, each with --help; docs/options.md has the options of all:
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
  recshuf formats                          list the formats, with their options
  recshuf demo                             try it on generated data

Examples:
  recshuf data/ -o shuffled/ --shards 64 --memory 4GB
  zstdcat big.jsonl.zst | recshuf --format jsonl --seed 42 > shuffled.jsonl

Shell completion: eval "$(_RECSHUF_COMPLETE=bash_source recshuf)"; for other shells: zsh_source, fish_source.
"""


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        click.echo(f"recshuf {__version__}")
        context.exit()


_SHUFFLE = Wording(_DESCRIPTION, ["INPUT...", "-o OUTPUT"], _EXAMPLES, Options)


def make_shuffle_command(callback: Callable[..., None]) -> GroupedCommand:
    plan = "Print the plan (piles, memory, disk, file descriptors, shards) and stop."
    own = {
        "Input": [],
        "Output": [make_output_option("OUTPUT", "Output file or directory. Default: standard output.")],
        "Order": [],
        "Resources": [],
        "General": [
            click.Option(["--plan"], is_flag=True, help=plan),
            make_report_option("Write the figures of the run as JSON, with --plan those of the plan"),
            make_html_option("Write a page with pictures and figures, after a test of the order. Needs recshuf[report]."),
            make_quiet_option(),
            make_verbose_option(HELP_OF_DETAILS),
            click.Option(["--version"], is_flag=True, is_eager=True, expose_value=False, callback=_show_version, help="Print the version."),
        ],
    }  # fmt: skip
    return GroupedCommand("", callback, _SHUFFLE, own)
