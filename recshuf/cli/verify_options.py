"""Command-line options of ``recshuf verify``, which are options of the shuffle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.cli.shuffle_options import SiblingCommand, Wording
from recshuf.job.options import VerifyOptions

if TYPE_CHECKING:
    from collections.abc import Callable

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
