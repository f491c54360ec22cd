"""The grammar of JSON, checked for whole arrays of lines by rewriting them.

Strings become one sign, all other scalars another, and then, from the inside out, objects and arrays of such signs become
the second sign, until nothing changes any more. Of a line that is one JSON object, this leaves one sign.
Numbers may be NaN and infinities, as for `pyarrow.json`; what numbers and escapes mean is not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDS = 130  # objects and arrays that nest deeper are refused for that
_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f]"  # allowed nowhere, and so free to be signs
_REWRITES = (
    (r'"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"', "\x01"),
    (
        r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|Infinity|Inf|NaN)|true|false|null",
        "\x02",
    ),
    (r"[ \t\r\n]+", ""),
)
_MEMBER = r"\x01:[\x01\x02]"
_NESTED = rf"\{{(?:{_MEMBER}(?:,{_MEMBER})*)?\}}|\[(?:[\x01\x02](?:,[\x01\x02])*)?\]"


def find_ungrammatical(lines: pa.Array) -> NDArray[np.int64]:
    r"""Return the ascending positions of the lines (UTF-8, as large_string) that are not one JSON value.

    Lines that nest too deep may be missed.

    >>> lines = pa.array(['{"a": [1, {}]}', '{"a": 01}', "{'a': 1}", '{}{}', '{"a": "\\x"}'], pa.large_string())
    >>> find_ungrammatical(lines)
    array([1, 2, 3, 4])
    """
    stray = pc.match_substring_regex(lines, _CONTROL).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(~stray)
    texts = lines.take(pa.array(rows))
    for pattern, sign in _REWRITES:
        texts = pc.replace_substring_regex(texts, pattern, sign)
    wrong = [np.flatnonzero(stray)]
    for _ in range(_ROUNDS):
        shorter = pc.replace_substring_regex(texts, _NESTED, "\x02")
        is_done = pc.equal(shorter, texts).to_numpy(zero_copy_only=False)
        is_value = pc.equal(shorter, "\x02").to_numpy(zero_copy_only=False)
        wrong.append(rows[is_done & ~is_value])
        rows = rows[~is_done & ~is_value]
        if not len(rows):
            break
        texts = shorter.filter(pa.array(~is_done & ~is_value))
    return np.sort(np.concatenate(wrong))
