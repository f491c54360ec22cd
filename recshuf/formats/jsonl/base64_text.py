"""Base64 of whole columns of byte strings at once (RFC 4648: standard alphabet, padded).

The values lie back to back, as in an Arrow buffer. Both directions reduce to one reshape to groups, once the
last group of every value is complete::

    bytes   A B C | D E 0 | ...     padding bytes masked out of the decoded side
    text    wwww  | xxx=  | ...     and overwritten by '=' on the encoded side
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


_ALPHABET = np.frombuffer(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8)
_PAD = ord("=")
_INVALID = 255
_CODES = np.full(256, _INVALID, np.uint8)
_CODES[_ALPHABET] = np.arange(64, dtype=np.uint8)
_CODES[_PAD] = 0


def encode(
    data: NDArray[np.uint8], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the base64 text of values lying back to back, and the length of each text.

    Parameters
    ----------
    data
        The bytes of all values, shape ``(lengths.sum(),)``.
    lengths
        Bytes in each value, shape ``(values,)``.
    """
    text_lengths = (lengths + 2) // 3 * 4
    text_ends = np.cumsum(text_lengths)
    pads = -lengths % 3
    whole = np.zeros(int(text_lengths.sum()) // 4 * 3, np.uint8)
    whole[_kept(len(whole), text_ends // 4 * 3, pads)] = data
    text = _ALPHABET[_sextets(whole.reshape(-1, 3))].reshape(-1)
    text[~_kept(len(text), text_ends, pads)] = _PAD
    return text, text_lengths


def decode(
    text: NDArray[np.uint8], lengths: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]] | None:
    """Return the bytes of base64 texts lying back to back, and the length of each value.

    None when any text is not canonical base64, so that encoding the result gives the same texts again.

    Parameters
    ----------
    text
        The characters of all texts, shape ``(lengths.sum(),)``.
    lengths
        Characters in each text, shape ``(values,)``.
    """
    codes = _CODES[text]
    if (lengths % 4).any() or (codes == _INVALID).any():
        return None
    ends = np.cumsum(lengths)
    pads = _count_pads(text, ends[lengths > 0], lengths, ends)
    if pads.sum() != np.count_nonzero(text == _PAD):
        return None
    whole = _octets(codes.reshape(-1, 4))
    kept = _kept(len(whole), ends // 4 * 3, pads)
    if whole[~kept].any():
        return None
    return whole[kept], lengths // 4 * 3 - pads


def _count_pads(
    text: NDArray[np.uint8],
    filled_ends: NDArray[np.int64],
    lengths: NDArray[np.int64],
    ends: NDArray[np.int64],
) -> NDArray[np.int64]:
    pads = np.zeros(len(ends), np.int64)
    last = text[filled_ends - 1] == _PAD
    pads[lengths > 0] = last + (last & (text[filled_ends - 2] == _PAD)).astype(np.int64)
    return pads


def _kept(size: int, ends: NDArray[np.int64], pads: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask that leaves out the last `pads` (0, 1 or 2) places before each end."""
    kept = np.ones(size, np.bool_)
    kept[ends[pads >= 1] - 1] = False
    kept[ends[pads == 2] - 2] = False
    return kept


def _sextets(groups: NDArray[np.uint8]) -> NDArray[np.uint8]:
    first, second, third = groups.T
    sextets = np.empty((len(groups), 4), np.uint8)
    sextets[:, 0] = first >> 2
    sextets[:, 1] = (first & 3) << 4 | second >> 4
    sextets[:, 2] = (second & 15) << 2 | third >> 6
    sextets[:, 3] = third & 63
    return sextets


def _octets(groups: NDArray[np.uint8]) -> NDArray[np.uint8]:
    first, second, third, fourth = groups.T
    octets = np.empty((len(groups), 3), np.uint8)
    octets[:, 0] = first << 2 | second >> 4
    octets[:, 1] = (second & 15) << 4 | third >> 2
    octets[:, 2] = (third & 3) << 6 | fourth
    return octets.reshape(-1)
