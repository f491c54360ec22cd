"""The options of ``recshuf verify``: those of the shuffle that say what a record is, under the same names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.cli.shuffle_options import SiblingCommand, Wording
from recshuf.job.options import VerifyOptions

if TYPE_CHECKING:
    from collections.abc import Callable

_WORDING = Wording(
    description="""
Prove from the files alone that OUTPUT holds the same records as the INPUTs, in whatever order.

INPUT is files, directories and globs; OUTPUT is the file or directory that recshuf wrote, which may be of another
format. Options that say what a record is are those of the shuffle. Exit code 0: equal; 1: different, or a file
cannot be read; 2: wrong usage.
""",
    usage=["INPUT...", "OUTPUT"],
    example="""\
Example:
  recshuf data/ -o shuffled/ --to parquet && recshuf verify data/ shuffled/
""",
    shared=VerifyOptions,
    headings={"Order": "Output"},
    general=("report", "quiet", "verbose"),
    help={
        "to": "Format of OUTPUT; else what its manifest says, its suffix or its content.",
        "head_count": "OUTPUT is a sample of N records.",
        "provenance": "OUTPUT has the columns source_file and source_row, which are not compared; a manifest says so.",
        "temp_dir": "Where hashes spill if many records differ; else $TMPDIR or /var/tmp.",
        "report": "Write the findings as JSON; - is standard output.",
        "quiet": "Print nothing but errors; the exit code tells.",
        "verbose": "Print the traceback of an error.",
    },
)


def make_verify_command(callback: Callable[..., None]) -> SiblingCommand:
    """Return the comparison as a command; the output is the last of ``inputs``."""
    return SiblingCommand("verify", callback, _WORDING)
