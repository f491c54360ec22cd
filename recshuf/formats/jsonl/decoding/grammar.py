"""Checks the JSON grammar of whole arrays of lines by rewriting them.

Strings become one token and all other scalars a second one. Then, from the inside out, objects and arrays of tokens
become the second token, until nothing changes. A line that is one JSON object ends as one token.
NaN and infinities are numbers, as for `pyarrow.json`. The values of numbers and escapes are not checked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ROUNDS = 130  # deeper nesting is refused elsewhere
_CONTROL = r"[\x00-\x08\x0b\x0c\x0e-\x1f]"  # not allowed in JSON, so free for tokens
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
