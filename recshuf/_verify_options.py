"""The options of ``recshuf verify``: those of the shuffle that say what a record is, under the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from recshuf._options import ShuffleCommand

if TYPE_CHECKING:
    from collections.abc import Callable

_DESCRIPTION = """
Prove from the files alone that OUTPUT holds the same records as the INPUTs, in whatever order.

INPUT is files, directories and globs; OUTPUT is the file or directory that recshuf wrote, which may be of another
format. Options that say what a record is are those of the shuffle. Exit code 0: equal; 1: different, or a file
cannot be read; 2: wrong usage.
"""
_SHARED = {
    "Input": (
        "format",
        "header",
        "zero_terminated",
        "separator",
        "max_record_bytes",
        "datasets",
        "columns",
        "schema",
    ),
    "Output": ("to", "head_count"),
    "Resources": ("memory", "workers", "temp_dir"),
    "General": ("report", "quiet", "verbose"),
}
_OWN_HELP = {
    "to": "Format of OUTPUT; else what its manifest says, its suffix or its content.",
    "head_count": "OUTPUT is a sample of N records.",
    "temp_dir": "Where hashes spill if many records differ; else $TMPDIR or /var/tmp.",
    "report": "Write the findings as JSON; - is standard output.",
    "quiet": "Print nothing but errors; the exit code tells.",
    "verbose": "Print the traceback of an error.",
}
_EXAMPLES = """\
Example:
  recshuf data/ -o shuffled/ --to parquet && recshuf verify data/ shuffled/
"""


class VerifyCommand(ShuffleCommand):
    """The comparison as a command.

    Parameters
    ----------
    callback
        Called with the values of all options and ``inputs``, the output last, by name.
    """

    def __init__(self, callback: Callable[..., None]) -> None:
        super().__init__(callback)
        known = {option.name: option for group in self.headings.values() for option in group}
        self.name, self.help, self.hidden = "verify", _DESCRIPTION, False
        self.headings = {heading: [known[name] for name in names] for heading, names in _SHARED.items()}
        for name, text in _OWN_HELP.items():
            known[name].help = text
        arguments = [param for param in self.params if isinstance(param, click.Argument)]
        self.params = [*arguments, *(option for group in self.headings.values() for option in group)]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the usage line's words."""
        return ["[OPTIONS]", "INPUT...", "OUTPUT"]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - as above
        """Write the example as it stands."""
        formatter.write_paragraph()
        formatter.write(_EXAMPLES)
