"""JSON that is no JSON lines: what it is, by its beginning, and what to do with it."""

from __future__ import annotations

import re

from recshuf.errors import InputError
from recshuf.formats.lines import MARK

_BLANK = b" \t\r\n"
_LIST = re.compile(rb'"([^"\\]+)"\s*:\s*\[')
_LINES = "or --format jsonl to take each line as a record"


def refuse_other(name: str, head: bytes) -> InputError:
    """Return the error for JSON that is neither lines nor an array."""
    text = head.removeprefix(MARK).lstrip(_BLANK)
    found = _LIST.search(text) if text.startswith(b"{") else None
    if found:
        key = found[1].decode(errors="replace")
        return InputError(
            name,
            f"is one JSON object, and its records may be the list {key!r} in it",
            remedy=f"""write that list as lines with jq -c '."{key}"[]', and shuffle these, {_LINES}""",
        )
    if text.startswith(b"{"):
        return InputError(
            name, "is JSON objects over many lines", remedy=f"write each in one line with jq -c ., {_LINES}"
        )
    return InputError(
        name,
        "is neither JSON lines nor a JSON array",
        remedy="mend it, or give --format text to take any lines",
    )


def describe_document(head: bytes, *, is_whole: bool) -> str | None:
    """Return what a file that is named JSON Lines holds in place of them, and what to do; None if nothing speaks against it.

    Judged by its beginning, the `head`, which may be the whole file.
    """
    document = _name_document(head, is_whole=is_whole)
    if document is None:
        return None
    is_array = head.removeprefix(MARK).lstrip(_BLANK).startswith(b"[")
    remedy = "give --format json to take each element as a record" if is_array else "convert it with jq -c ."
    return f"is {document}, and JSONL has one record in each line; {remedy}, {_LINES}"


def _name_document(head: bytes, *, is_whole: bool) -> str | None:
    """Return what a file that is named JSON Lines holds in place of them; None if nothing speaks against them.

    Judged by its beginning, the `head`, which may be the whole file.
    """
    line, _, rest = head.removeprefix(MARK).lstrip(_BLANK).partition(b"\n")
    line, following = line.rstrip(_BLANK), rest.partition(b"\n")[0]
    if line == b"{" and following.lstrip(_BLANK).startswith(b'"'):
        return "JSON objects over many lines"
    if not line.startswith(b"["):
        return None
    if line in (b"[", b"[{") or line.endswith(b","):  # no JSON value ends so
        return "a JSON array over many lines"
    # An array of other values is one record of those who write tuples in lines.
    if is_whole and line[1:].lstrip(_BLANK).startswith(b"{") and not rest.strip(_BLANK):
        return "one JSON array"
    return None
