"""JSON objects with a checksum, so that a change of a file that holds one is noticed."""

from __future__ import annotations

import json
from typing import Any

import xxhash

_SEAL = "xxh3"
_UNSEALED = ("storage", _SEAL)
"""Keys of what users may change, and of the checksum."""


def seal(values: dict[str, Any]) -> dict[str, Any]:
    """Return JSON values with a checksum of all but the storage options, which users renew."""
    return values | {_SEAL: _sum(values)}


def is_sealed(values: dict[str, Any]) -> bool:
    """Tell whether JSON values are as `seal` returned them."""
    try:
        return bool(values.get(_SEAL) == _sum(values))
    except (ValueError, TypeError, RecursionError):
        return False


def encode_sealed(values: dict[str, Any]) -> bytes:
    """Return JSON values with a checksum as JSON."""
    return json.dumps(seal(values)).encode()


def decode_sealed(content: bytes) -> dict[str, Any]:
    """Return the values that `encode_sealed` was given, and their checksum.

    Raises
    ------
    ValueError
        When they are damaged.
    """
    try:
        values = json.loads(content)
    except RecursionError as error:
        raise ValueError("lists within lists") from error
    if not isinstance(values, dict) or not is_sealed(values):
        raise ValueError("another checksum")
    return values


def _sum(values: dict[str, Any]) -> str:
    sealed = {name: value for name, value in values.items() if name not in _UNSEALED}
    return xxhash.xxh3_128_hexdigest(json.dumps(sealed, sort_keys=True).encode())
