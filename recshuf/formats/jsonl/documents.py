"""JSON documents under the name of JSON Lines: one array or object over many lines, or an array in one line."""

from __future__ import annotations

_BLANK = b" \t\r\n"


def describe_document(head: bytes, *, is_whole: bool) -> str | None:
    """Return what a file holds in place of JSON Lines, judged by its beginning; None if nothing speaks against them.

    Parameters
    ----------
    is_whole
        Whether `head` is the whole file.
    """
    line, _, rest = head.removeprefix(b"\xef\xbb\xbf").lstrip(_BLANK).partition(b"\n")
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
