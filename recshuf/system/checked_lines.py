"""JSON objects as lines that show damage: the xxh3 of the rest in 16 hexadecimal digits, a space, and the object."""

from __future__ import annotations

import json
from typing import Any

import xxhash


def format_line(values: dict[str, Any]) -> bytes:
    """Return JSON values as a line, with its end."""
    text = json.dumps(values, sort_keys=True).encode()
    return b"%016x %s\n" % (xxhash.xxh3_64_intdigest(text), text)


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the values in a line without its end; None if it is damaged."""
    checksum, _, text = line.partition(b" ")
    if checksum != b"%016x" % xxhash.xxh3_64_intdigest(text):
        return None
    values: dict[str, Any] = json.loads(text)
    return values
