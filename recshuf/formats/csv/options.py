"""Options that say how CSV is written."""

from __future__ import annotations

from recshuf.formats.compression import split_suffix
from recshuf.interfaces import FormatOption, whole_number
from recshuf.system.units import parse_bytes


def _parse_byte(text: str) -> bytes:
    byte = parse_bytes(text)
    if len(byte) != 1 or not byte.isascii() or byte in b"\r\n":
        raise ValueError(r"give one ASCII character that ends no line, such as ; or \t for a tab")
    return byte


def _parse_quote(text: str) -> bytes:
    return b"" if text in ("", "none") else _parse_byte(text)


_FOUND = "Default: found: text above a table, blank lines, and the line sep= of Excel."
SKIP_LINES = FormatOption(
    "skip_lines",
    f"CSV: number of lines above the header of each input, which are no records and stay at the top of each shard. {_FOUND}",
    "N", whole_number(0), group="Input",
    elsewhere=(("*", f"CSV: number of lines above the header of each file, which are no records. {_FOUND}"),),
)  # fmt: skip
COMMENT = FormatOption(
    "comment",
    "CSV: character with which lines begin that are no records; above the header they stay at the top of each shard, others "
    "are left out. Default: none.", "C", _parse_byte, b"", group="Input",
    elsewhere=(("*", "CSV: character with which lines begin that are no records. Default: none."),),
)  # fmt: skip
DELIMITER = FormatOption(
    "delimiter",
    "CSV: character between fields. Default: a tab in .tsv, else found in the first input; in a conversion to CSV, a tab into "
    ".tsv, else a comma.", "C", _parse_byte, side="records", group="Input",
    elsewhere=(
        ("gather", "CSV: character between fields. Default: a tab into .tsv, else that of the records, or a comma."),
        ("*", "CSV: character between fields. Default: a tab in .tsv, else found in the first file."),
    ),
)  # fmt: skip
QUOTE = FormatOption(
    "quote", "CSV: character around quoted fields, or none. Default: a double quote, or none as the first records tell.",
    "C", _parse_quote, group="Input",
)  # fmt: skip
PADS_QUOTES = FormatOption("pads_quotes", "")
"""Whether blanks may stand before a quote that opens a field."""


def suffix_delimiter(name: str) -> bytes | None:
    """Return the byte between fields that the suffix of a file promises; None if it promises none."""
    return b"\t" if split_suffix(name).kind == ".tsv" else None
