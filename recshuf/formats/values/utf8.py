"""UTF-8 validation of whole arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

# The well-formed byte sequences of the Unicode standard: no surrogates, nothing overlong, nothing beyond U+10FFFF.
_UTF8 = (
    r"\A(?s:[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]"
    r"|\xe0[\xa0-\xbf][\x80-\xbf]|\xed[\x80-\x9f][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}"
    r"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2})*\z"
)


def find_invalid(values: pa.Array) -> NDArray[np.int64]:
    r"""Return the ascending positions of the values of a large_binary array that are not UTF-8.

    >>> import pyarrow as pa
    >>> find_invalid(pa.array([b"a", b"\xff", b"", b"\xed\xa0\x80"], pa.large_binary()))
    array([1, 3])
    """
    import pyarrow.compute as pc  # takes long, and HDF5 imports this without need

    return np.flatnonzero(~pc.match_substring_regex(values, _UTF8).to_numpy(zero_copy_only=False))
