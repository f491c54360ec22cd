"""Messages on standard error, a line each. Nothing is imported here that a signal may have kept from being imported."""

from __future__ import annotations

import re
import sys
from contextlib import suppress

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def one_line(text: str) -> str:
    r"""Return the text with control characters, line breaks and bytes that are not UTF-8 escaped.

    >>> print(one_line("a\nb\udcff"))
    a\nb\xff
    """
    return _UNPRINTABLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a surrogate, which stands for a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return match[0].encode("unicode_escape").decode()


def say(text: str) -> None:
    """Print one line on standard error, with the name of the program; errors are ignored."""
    with suppress(OSError, AttributeError):
        sys.stderr.write(f"recshuf: {one_line(text)}\n")
        sys.stderr.flush()
