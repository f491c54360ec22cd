"""Decimals, also those with more digits than their type has."""

import pyarrow as pa

KINDS = [
    pa.decimal128(5, 2),
    pa.decimal128(5, 0),
    pa.decimal128(38, 0),
    pa.decimal128(38, 37),
    pa.decimal128(20, 19),
    pa.decimal128(30, 12),
]


def make_decimals(unscaled: list[int], kind: pa.DataType) -> pa.Array:
    """Return decimals with these digits, without a check."""
    width = kind.bit_width // 8
    values = b"".join(number.to_bytes(width, "little", signed=True) for number in unscaled)
    return pa.Array.from_buffers(kind, len(unscaled), [None, pa.py_buffer(values)])
