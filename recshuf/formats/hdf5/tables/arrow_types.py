"""Arrow types that HDF5 lacks: stored as integers, with the type in an attribute of the dataset."""

from __future__ import annotations

import re

import pyarrow as pa

ARROW_TYPE_ATTRIBUTE = "arrow_type"
_WITH_ZONE = re.compile(r"timestamp\[(s|ms|us|ns), tz=([^\]]+)\]")
BINARY_NAME = "large_binary"


def find_stand_in(kind: pa.DataType) -> pa.DataType | None:
    """Return the integer type that holds the values of a temporal type, or None for other types."""
    if not pa.types.is_temporal(kind) or pa.types.is_interval(kind):
        return None
    return pa.int32() if kind.bit_width == pa.int32().bit_width else pa.int64()


def parse_temporal(name: str | None) -> pa.DataType | None:
    """Return the temporal type of this name, as ``str`` writes it, or None if there is none.

    >>> parse_temporal("timestamp[us, tz=Europe/Berlin]")
    TimestampType(timestamp[us, tz=Europe/Berlin])
    """
    zoned = _WITH_ZONE.fullmatch(name or "")
    if zoned:
        return pa.timestamp(*zoned.groups())
    try:
        kind = pa.type_for_alias(name or "")
    except ValueError:
        return None
    return kind if str(kind) == name and find_stand_in(kind) else None
