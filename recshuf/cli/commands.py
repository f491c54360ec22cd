"""The commands, and the group that holds them."""

from __future__ import annotations

import glob
import json
import os
import shlex
import sys
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from recshuf.cli.audit_commands import check_command, demo_command, picture_command, verify_command
from recshuf.cli.options import (
    HELP_SETTINGS,
    check_loudness,
    choose_progress,
    make_output_option,
    make_shuffle_command,
    make_verbose_option,
)
from recshuf.cli.result_files import (
    check_html,
    check_new_folder,
    check_quarantine,
    check_report,
    check_spared,
    make_new_folder,
    may_replace,
    say_done,
    say_written,
    write_json,
    write_result,
    write_whole,
)
from recshuf.cli.store_commands import gather_command, scatter_command, store_command, window_command
from recshuf.cli.task_commands import clean_command, task_command
from recshuf.errors import UsageError
from recshuf.job.options import OPTIONS, flag_of
from recshuf.storage import is_url
from recshuf.system.units import say

if TYPE_CHECKING:
    from recshuf.interfaces import Traits


_WRONG_PACKAGE = 2
_SHUFFLES = ("shuffle", "shuf")
"""What is taken for the name of the default command."""
_LIKENESS = 0.75
"""Of two words, from 0 to 1, from which one is taken for a slip of the other."""


def _list_formats() -> tuple[list[dict[str, Any]], list[str]]:
    """Return what is known of each format, and what is wrong with packages of others."""
    from recshuf.formats import OWN_FORMATS, find_package, list_names, load_format

    names, found, problems = [*OWN_FORMATS], [], []
    try:
        names = [*list_names()]
    except UsageError as error:
        problems.append(str(error))
    for name in names:
        try:
            traits = load_format(name).traits
        except UsageError as error:
            problems.append(str(error))
            continue
        package = find_package(name)
        found.append(
            {
                "name": name,
                "suffixes": [*traits.suffixes],
                "companions": [*traits.companion_suffixes],
                "compressions": [*traits.compressions],
                "options": _list_flags(traits),
                "libraries": {library: _find_version(library) for library in traits.libraries},
                "package": None if package is None else dict(zip(("name", "version"), package, strict=True)),
            }
        )
    return found, problems


def _list_flags(traits: Traits) -> list[str]:
    shared = [name for name, option in OPTIONS.items() if option.field in traits.read_options]
    return [*map(flag_of, [*(one.name for one in traits.options if one.help), *shared])]


def _find_version(library: str) -> str | None:
    try:
        return str(import_module(library).__version__)
    except (ImportError, AttributeError):
        return None


def _run_formats(as_json: bool, verbose: bool) -> None:  # noqa: ARG001 - `main` reads it
    found, problems = _list_formats()
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        rows = [("FORMAT", "SUFFIXES", "LIBRARIES", "PACKAGE", "OPTIONS")]
        for one in found:
            libraries = " ".join(
                f"{library} {version or 'is missing'}" for library, version in one["libraries"].items()
            )
            package = "recshuf" if one["package"] is None else " ".join(one["package"].values())
            first, *others = one["suffixes"]
            suffixes = " ".join(["+".join([first, *one["companions"]]), *others])
            rows.append((one["name"], suffixes, libraries, package, " ".join(one["options"])))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            click.echo("  ".join(cells).rstrip())
    for problem in problems:
        say(f"error: {problem}")
    if problems:
        raise Exit(_WRONG_PACKAGE)


formats_command = click.Command(
    "formats",
    HELP_SETTINGS,
    callback=_run_formats,
    params=[
        click.Option(["--json", "as_json"], is_flag=True, help="Print JSON."),
        make_verbose_option(),
    ],
    help="List the formats: names, suffixes, libraries with their versions, packages, and options that not all formats have.",
)


class DefaultGroup(click.Group):
    """A group of commands with a default, which runs if the first word is not the name of a command."""

    def __init__(self, default: click.Command) -> None:
        super().__init__("recshuf")
        self.default = default

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        if args and args[0] in self.commands:
            return super().make_context(info_name, args, parent, **extra)
        if args and not args[0].startswith("-"):
            self._refuse_unknown(*args)
        self._refuse_late_command(args)
        return self.default.make_context(info_name, args, parent, **extra)

    def _refuse_unknown(self, word: str, *others: str) -> None:
        """Refuse a word that is no file but nearly the name of a command, or that of the one without a name."""
        if os.path.lexists(word):
            return
        if word.lower() in _SHUFFLES:
            raise UsageError(
                f"{word}: there is no such file or command; to shuffle, leave the word out: "
                f"{shlex.join(['recshuf', *others])}"
            )
        meant = {name: f"recshuf {name}" for name in self.commands} | {
            "help": "recshuf --help",
            "version": "recshuf --version",
        }
        if near := get_close_matches(word.lower(), meant, 1, _LIKENESS):
            raise UsageError(f"{word}: there is no such file or command; did you mean: {meant[near[0]]}?")

    def _refuse_late_command(self, args: list[str]) -> None:
        """Refuse options before the name of a command, which would be an input, unless it is a file."""
        with_value = {
            flag
            for option in self.default.params
            if isinstance(option, click.Option) and not option.is_flag
            for flag in option.opts
        }
        words = iter(args)
        word = next(words, "--")
        while word.startswith("-") and word not in ("-", "--"):
            if word in with_value:
                next(words, None)
            word = next(words, "--")
        if word in self.commands and not os.path.lexists(word):
            raise UsageError(
                f"{word}: there is no such file; to run the command {word}, put it first: recshuf {word} ..."
            )

    def invoke(self, ctx: click.Context) -> Any:
        return super().invoke(ctx) if ctx.command is self else ctx.command.invoke(ctx)


def _run_shuffle(
    inputs: tuple[str, ...],
    output: str | None,
    plan: bool,
    report: str | None,
    html: str | None,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> None:
    """Shuffle, or print the plan; `options` are arguments of `recshuf.shuffle`."""
    check_loudness(quiet, verbose)
    _check_streams(inputs, output)
    inputs, output = inputs or ("-",), output or "-"
    if report:
        check_report(report, output, plan)
    if html:
        check_html(html, inputs, output, plan, report)
    names = list(filter(None, (report, html)))
    may_exist = may_replace(names, inputs, output, options)
    for name in names:
        check_spared(name, [*inputs, options["schema"]], overwrite=may_exist)
    check_quarantine(options["on_bad_record"], [report, html, options["schema"]])
    if plan:
        _plan_shuffle(inputs, output, report, quiet, options)
        return
    if html:
        from recshuf.audit.reports.html import check_libraries

        check_libraries()
    from recshuf.api import runs

    progress = choose_progress(quiet, writes_records=output in (None, "-"))
    done = runs.shuffle(inputs, output, progress=progress, **options)
    say_done(done, output, quiet, verbose)
    if report:
        write_result(report, "report", lambda: write_json(report, done.to_json()))
    if html:
        from recshuf.api import checks

        write = partial(checks.write_run, done, inputs, output, progress=progress, **options)
        write_result(html, "page", lambda: write_whole(html, write().encode()))
        say_written(html, quiet)


def _run_gallery(output: str | None, verbose: bool) -> None:  # noqa: ARG001 - `main` reads it
    if output is None:
        raise UsageError("no folder; usage: recshuf gallery -o DIR")
    check_new_folder(output)
    from recshuf.audit.reports.pages import draw_row, render_gallery

    with make_new_folder(output) as folder:
        page = render_gallery(lambda name: say(f"drawing {name}"))
        write_whole(folder / "row.png", draw_row())
        write_whole(folder / "index.html", page.encode())
    click.echo(folder / "index.html")


def _check_streams(inputs: tuple[str, ...], output: str | None) -> None:
    if not inputs and (sys.stdin is None or sys.stdin.isatty()):
        raise UsageError("no input; usage: recshuf [OPTIONS] INPUT... -o OUTPUT; see recshuf --help")
    if (
        output is None
        and len(inputs) > 1
        and _is_missing(inputs[-1])
        and not any(map(_is_missing, inputs[:-1]))
    ):
        raise UsageError(
            f"{inputs[-1]}: there is no such file or directory; an output comes after -o: "
            f"{shlex.join(['recshuf', *inputs[:-1], '-o', inputs[-1]])}"
        )
    if "-" in inputs and sys.stdin is None:
        raise UsageError("standard input is closed; name files instead")
    if output in (None, "-") and sys.stdout is None:
        raise UsageError("standard output is closed; name an output with -o")


def _is_missing(path: str) -> bool:
    """Tell whether a path of this machine is neither a file nor a pattern."""
    return not (path == "-" or is_url(path) or glob.has_magic(path) or os.path.lexists(path))


def _plan_shuffle(
    inputs: tuple[str, ...], output: str | None, report: str | None, quiet: bool, options: dict[str, Any]
) -> None:
    from recshuf.api import runs
    from recshuf.audit.reports.text import plan_lines

    progress = choose_progress(quiet)
    if options["engine"] == "tasks":
        if not report:
            raise UsageError("--engine tasks: name the file for the plan with --report FILE")
        made, run = runs.plan_tasks(inputs, output, progress=progress, **options)
        values = made.to_json() | {"run": run}
    else:
        made = runs.plan(inputs, output, progress=progress, **options)
        values = made.to_json()
    if not quiet and report != "-":
        click.echo("\n".join(plan_lines(made)))
    if report:
        write_json(report, values)


_gallery = click.Command(
    "gallery",
    HELP_SETTINGS,
    callback=_run_gallery,
    params=[make_output_option("DIR", "New folder for index.html and row.png."), make_verbose_option()],
    help="Draw the orders of other shufflers, with scores: a page of all, and a picture of four. Needs recshuf[report].",
)
commands = DefaultGroup(make_shuffle_command(_run_shuffle))
for _command in (
    verify_command,
    check_command,
    picture_command,
    demo_command,
    _gallery,
    task_command,
    scatter_command,
    gather_command,
    window_command,
    store_command,
    clean_command,
    formats_command,
):
    commands.add_command(_command)
