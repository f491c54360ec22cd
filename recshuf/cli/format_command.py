"""The command that lists the formats."""

from __future__ import annotations

import json
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click
from click.exceptions import Exit

from recshuf.cli.options import HELP_SETTINGS, make_verbose_option
from recshuf.errors import UsageError
from recshuf.job.options import OPTIONS, flag_of

if TYPE_CHECKING:
    from recshuf.interfaces import Traits


_WRONG_PACKAGE = 2


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
    from recshuf.audit.reports.text import say

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
