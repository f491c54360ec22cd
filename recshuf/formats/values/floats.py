"""What floats hold of whole numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_SIGNIFICANT_BITS = {16: 11, 32: 24, 64: 53}


def exact_limit(kind: pa.DataType) -> int:
    """Return the number up to which floats of this type hold every whole number.

    >>> import pyarrow as pa
    >>> exact_limit(pa.float16()), exact_limit(pa.float32())
    (2048, 16777216)
    """
    return 1 << _SIGNIFICANT_BITS[kind.bit_width]
