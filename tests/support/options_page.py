"""Makes docs/options.md from the commands: ``python -m tests.support.options_page --write``."""

import re
import sys
from itertools import chain
from pathlib import Path

import click

from recshuf.cli.commands import commands
from recshuf.cli.options import GroupedCommand

PATH = Path(__file__).resolve().parents[2] / "docs" / "options.md"
INTRODUCTION = """\
# Options

All commands and their options, as `--help` shows them. This page is made from the declarations of formats and those in
`recshuf/job/options.py` and `recshuf/cli/`, by `python -m tests.support.options_page --write`.

A size is written `300MB`, `2GiB` or `1500000000`. `-h` and `--help` of every command print its help.

In Python, an option of a command is a keyword argument of the function of that name, with `_` for `-`: `--shard-bytes 1GB` of
`recshuf` is `shard_bytes="1GB"` of `recshuf.shuffle`. Other names: `-n` is `head_count`, `-z` is `zero_terminated`,
`--storage-option` is `storage_options`, `--id` is `id_column`, and `--field` is `column`. `help(recshuf.Options)` shows the same
texts. The forms of values: [README](../README.md#python).
"""
HEADER = ["| option | meaning |", "| --- | --- |"]


def make_page() -> str:
    """Return the page."""
    default = commands.default
    lines = [INTRODUCTION, *explain("recshuf", default, set())]
    shared = {describe(option) for option in list_options(default)}
    for name, command in sorted(commands.commands.items()):
        lines += explain(f"recshuf {name}", command, shared)
        for part, inner in getattr(command, "commands", {}).items():
            lines += explain(f"recshuf {name} {part}", inner, shared)
    return "\n".join(lines).rstrip() + "\n"


def explain(path: str, command: click.Command, shared: set[tuple[str, str]]) -> list[str]:
    """Return the section of a command; options that are described as those of the shuffle are named only."""
    context = click.Context(command, info_name=path)
    usage = " ".join(command.collect_usage_pieces(context))
    usage = usage.replace(" COMMAND", " [COMMAND]")  # click 8.1 has no brackets there
    lines = [f"## {path}", "", command.get_short_help_str(200), "", f"`{path} {usage}`", ""]
    groups = list_groups(command)
    for heading, options in groups.items():
        own = [describe(option) for option in options if describe(option) not in shared]
        if own:
            lines += [f"{heading}:", ""] * bool(heading)
            lines += [*HEADER, *(f"| {flags} | {text} |" for flags, text in own), ""]
    same = [f"`{option.opts[-1]}`" for option in list_options(command) if describe(option) in shared]
    return [*lines, *(["As for `recshuf`: " + ", ".join(same) + ".", ""] if same else [])]


def list_groups(command: click.Command) -> dict[str, list[click.Option]]:
    """Return the options of a command, but for ``--help``, under their headings, of which it may have none."""
    if isinstance(command, GroupedCommand):
        return command.list_sections(command.list_own())
    return {"": [param for param in command.params if isinstance(param, click.Option)]}


def list_options(command: click.Command) -> list[click.Option]:
    """Return these options without headings."""
    return [*chain.from_iterable(list_groups(command).values())]


def describe(option: click.Option) -> tuple[str, str]:
    """Return the flags of an option with its value, and its meaning, both as cells of a table."""
    value = f" {option.metavar}" if option.metavar else ""
    flags = ", ".join(
        f"`{flag}{value if flag == option.opts[-1] else ''}`"
        for flag in [*option.opts, *option.secondary_opts]
    )
    text = (option.help or "").replace("\\", "\\\\").replace("|", "\\|")
    return flags, re.sub(r"(?<![\w-])--[a-z][a-z-]*", r"`\g<0>`", text)


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        PATH.write_text(make_page(), encoding="utf-8")
    else:
        sys.stdout.write(make_page())
