"""Options that say what the records of text are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.interfaces import FormatOption, whole_number
from recshuf.system.units import parse_bytes

if TYPE_CHECKING:
    from recshuf.interfaces import ReadOptions, WriteOptions


def _parse_start(text: str) -> bytes:
    start = parse_bytes(text)
    if not start or b"\n" in start:
        raise ValueError("give text within a line, such as '>'")
    return start


RECORD_LINES = FormatOption(
    "record_lines", "Text: a record is N lines, such as the 4 of FASTQ. Default: one line.",
    "N", whole_number(1), side="records", group="Input",
)  # fmt: skip
RECORD_START = FormatOption(
    "record_start",
    "Text: a record is a line that begins with TEXT and all lines up to the next one, such as > for FASTA; the escapes are "
    "those of --separator. Default: every line is one.",
    "TEXT", _parse_start, b"", "records", "Input",
)  # fmt: skip


def has_several_lines(options: ReadOptions | WriteOptions) -> bool:
    """Tell whether a record may have several lines, though newlines end these."""
    return RECORD_LINES.of(options) is not None or RECORD_START.of(options) != b""
