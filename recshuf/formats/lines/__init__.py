"""Files of lines, the base of text, JSONL and CSV, and the options that say what their records are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.interfaces import FormatOption, whole_number
from recshuf.system.units import parse_bytes

if TYPE_CHECKING:
    from recshuf.interfaces import ReadOptions, WriteOptions


MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8. It stays at the top of a file, with the header."""
NEWLINE = b"\n"
FIRST = "first"
"""The header that only the first input has, of one line."""


def _parse_start(text: str) -> bytes:
    start = parse_bytes(text)
    if not start or b"\n" in start:
        raise ValueError("give text within a line, such as '>'")
    return start


def _parse_separator(text: str) -> bytes:
    if not text:
        raise ValueError("it is empty; give at least one byte")
    return parse_bytes(text)


def parse_header(text: str) -> int | str | None:
    """Return the number of header lines; None for ``auto``, and ``first`` as it is.

    >>> parse_header("2"), parse_header("none"), parse_header("auto")
    (2, 0, None)
    """
    if text in ("auto", "none", FIRST):
        return {"auto": None, "none": 0}.get(text, text)
    try:
        return whole_number(0)(text)
    except ValueError:
        raise ValueError("give a number of lines, auto, none or first") from None


_AUTO = "auto, none, or first: one, in the first {} only. Default: auto, which is 0 for text; for CSV, 0 or 1 as its first records tell."
HEADER = FormatOption(
    "header", "Text, CSV: number of header lines of each input, written once at the top of each shard; " + _AUTO.format("input"),
    "N", parse_header, group="Input",
    elsewhere=(("*", "Text, CSV: number of header lines of each file, which are no records; " + _AUTO.format("file")),),
)  # fmt: skip
SEPARATOR = FormatOption(
    "separator", r"Text: string that ends a record, with the escapes \n, \t, \r, \0, \xHH and \\. Default: \n.",
    "STR", _parse_separator, NEWLINE, "records", "Input",
)  # fmt: skip
ZERO_TERMINATED = FormatOption(
    "zero_terminated", "Text: records end in a NUL byte.",
    side="records", group="Input", flags=("-z", "--zero-terminated"),
)  # fmt: skip
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


def find_separator(options: ReadOptions | WriteOptions) -> bytes:
    separator: bytes = b"\0" if ZERO_TERMINATED.of(options) else SEPARATOR.of(options)
    return separator


def count_header_lines(options: ReadOptions) -> int:
    """Return the number of header lines that are given, of the first input if only that has some."""
    header = HEADER.of(options)
    return 1 if header == FIRST else header or 0


def has_several_lines(options: ReadOptions | WriteOptions) -> bool:
    """Tell whether a record may have several lines, though newlines end these."""
    return RECORD_LINES.of(options) is not None or RECORD_START.of(options) != b""


def name_lines(options: ReadOptions) -> str:
    """Return the option with which a record has several lines, and its value; empty text if it has one line."""
    if (RECORD_LINES.of(options) or 1) > 1:
        return f"--record-lines {RECORD_LINES.of(options)}"
    start = RECORD_START.of(options)
    return f"--record-start {start.decode(errors='backslashreplace')!r}" if start else ""
