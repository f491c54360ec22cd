"""Numbers and bytes in arguments and messages, and messages on standard error, a line each."""

from __future__ import annotations

import operator
import os
import re
import sys
from contextlib import suppress
from fractions import Fraction
from math import isfinite
from typing import Any

from recshuf.errors import UsageError

_UNITS = {"": 1, "B": 1} | {
    letter + suffix: base**power
    for power, letter in enumerate("KMGTP", start=1)
    for suffix, base in (("", 1024), ("IB", 1024), ("B", 1000))
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?(?:E\d{1,2})?)\s*([A-Z]*)\s*", re.ASCII)
_LONG = re.compile(r"e[+-]?[\d_]{4}", re.IGNORECASE)
"""The exponent of a number with a thousand digits or more."""

_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r", b"0": b"\0", b"\\": b"\\"}


def parse_bytes(text: str) -> bytes:
    r"""Return the bytes of a command-line argument, with escapes replaced.

    >>> parse_bytes(r"\t\x1f|")
    b'\t\x1f|'
    """

    def unescape(match: re.Match[bytes]) -> bytes:
        escape = match[1]
        if len(escape) == 3:
            return bytes([int(escape[1:], 16)])
        if escape not in _ESCAPES:
            raise UsageError(r"a backslash must begin \n, \t, \r, \0, \xHH or \\")
        return _ESCAPES[escape]

    return re.sub(rb"\\(x[0-9A-Fa-f]{2}|.|)", unescape, os.fsencode(text), flags=re.DOTALL)


def parse_size(text: str) -> int:
    """Return a number of bytes; ``K`` and ``KiB`` are 1024, ``KB`` is 1000, as in GNU coreutils.

    >>> parse_size("1.5GB"), parse_size("4k"), parse_size("2 MiB")
    (1500000000, 4096, 2097152)
    """
    match = _SIZE.fullmatch(text.upper())
    if match is None or match[2] not in _UNITS:
        raise UsageError(f"{text!r} is not a size; write for example 300MB, 2GiB or 1500000000")
    return int(Fraction(match[1]) * _UNITS[match[2]])


def parse_exact(text: str) -> Fraction:
    """Return a number as it is written, such as ``0.7``, ``1e-3`` or ``1/3``; else a `ValueError`, also where it would take long.

    >>> parse_exact("0.7"), parse_exact("1/3")
    (Fraction(7, 10), Fraction(1, 3))
    """
    if _LONG.search(text):
        raise ValueError(text)
    try:
        return Fraction(text)
    except ZeroDivisionError as error:
        raise ValueError(text) from error


def round_up(count: int) -> int:
    """Return the next size that `format_size` shows as it is.

    >>> round_up(2_401_000), round_up(2_410_000)
    (2410000, 2410000)
    """
    unit: int = 10 ** max(0, len(str(count)) - 3)
    return -(-count // unit) * unit


def format_size(count: float) -> str:
    """Return a short decimal size for people.

    >>> format_size(2_400_000), format_size(999), format_size(999_500_000)
    ('2.4 MB', '999 B', '1 GB')
    """
    for unit in ("B", "KB", "MB", "GB"):
        shown = f"{count:.0f}" if unit == "B" else f"{count:.3g}"
        if float(shown) < 1000:
            return f"{shown} {unit}"
        count /= 1000
    return f"{count:.4g} TB" if count < 1000 else f"{count:.0f} TB"


def count_of(number: int, noun: str) -> str:
    """Return a count with its noun.

    >>> count_of(1, "shard"), count_of(1200, "record")
    ('1 shard', '1,200 records')
    """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def check_number(name: str, value: Any, most: int, least: int = 0) -> int:
    """Return an argument that is an integer in a range, also one of NumPy or a tensor, as a number of Python."""
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number <= most:
        raise UsageError(f"{name}={value!r}: give an integer from {least:,} to {most:,}")
    return number


def check_size(name: str, value: Any, least: int = 0) -> int:
    """Return an argument that is a number of bytes, or text such as ``"300MB"``."""
    size = parse_size(value) if isinstance(value, str) else value
    is_whole = not isinstance(size, float) or not isfinite(size)
    return check_number(name, size if is_whole else int(size), sys.maxsize, least)


def show_call(name: str, /, *values: object, **fields: object) -> str:
    """Return the text of a call, for `repr`.

    >>> show_call("PileStore", "store", num_records=5)
    "PileStore('store', num_records=5)"
    """
    return f"{name}({', '.join([*map(repr, values), *(f'{field}={value!r}' for field, value in fields.items())])})"


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
