"""Base64 of whole columns of byte strings at once (RFC 4648: standard alphabet, padded).

The values lie back to back, as in an Arrow buffer. Both directions are one call of `binascii`, once the last group of
every value is complete::

    bytes   A B C | D E 0 | ...     padding bytes masked out of the decoded side
    text    wwww  | xxx=  | ...     and overwritten by '=' on the encoded side
"""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Lengths = NDArray[np.int64]
    """Bytes of each value, shape ``(values,)``; a column has ``lengths.sum()``."""


_PAD = ord("=")
_ZERO = ord("A")


def encode(data: Bytes, lengths: Lengths) -> tuple[Bytes, Lengths]:
    """Return the base64 text of values lying back to back, and the length of each text."""
    text_lengths = (lengths + 2) // 3 * 4
    ends = np.cumsum(text_lengths)
    pads = -lengths % 3
    whole = np.zeros(int(text_lengths.sum()) // 4 * 3, np.uint8)
    whole[_kept(len(whole), ends // 4 * 3, pads)] = data
    text = np.frombuffer(bytearray(binascii.b2a_base64(whole.data, newline=False)), np.uint8)
    text[~_kept(len(text), ends, pads)] = _PAD
    return text, text_lengths


def decode(text: Bytes, lengths: Lengths) -> tuple[Bytes, Lengths] | None:
    """Return the bytes of base64 texts lying back to back, and the length of each value.

    None when any text is not canonical base64, so that encoding the result gives the same texts again.
    """
    if (lengths % 4).any():
        return None
    ends = np.cumsum(lengths)
    pads = _count_pads(text, ends[lengths > 0], lengths)
    is_pad = text == _PAD
    if pads.sum() != np.count_nonzero(is_pad):
        return None
    try:
        octets = binascii.a2b_base64(np.where(is_pad, np.uint8(_ZERO), text).data, strict_mode=True)
    except binascii.Error:
        return None
    whole = np.frombuffer(octets, np.uint8)
    kept = _kept(len(whole), ends // 4 * 3, pads)
    if whole[~kept].any():
        return None
    return whole[kept], lengths // 4 * 3 - pads


def _count_pads(text: Bytes, filled_ends: Lengths, lengths: Lengths) -> Lengths:
    pads = np.zeros(len(lengths), np.int64)
    last = text[filled_ends - 1] == _PAD
    pads[lengths > 0] = last + (last & (text[filled_ends - 2] == _PAD)).astype(np.int64)
    return pads


def _kept(size: int, ends: Lengths, pads: Lengths) -> NDArray[np.bool_]:
    """Return a mask that leaves out the last `pads` (0, 1 or 2) places before each end."""
    kept = np.ones(size, np.bool_)
    kept[ends[pads >= 1] - 1] = False
    kept[ends[pads == 2] - 2] = False
    return kept
