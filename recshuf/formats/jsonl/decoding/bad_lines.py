"""Finds lines that are not JSON objects by checks of whole arrays; parsing would stop at the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.formats.jsonl.decoding.grammar import find_ungrammatical
from recshuf.formats.jsonl.decoding.line_checks import (
    BadRecord,
    LineErrors,
    encoding_error,
    explain_bare,
    find_bare,
    find_deep,
    too_deep_error,
)
from recshuf.formats.values.utf8 import find_invalid
from recshuf.records.arrays.arrow_views import view_offsets

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


def find_malformed(lines: pa.Array) -> LineErrors:
    """Return the errors of lines that are not JSON or cannot be parsed safely, by index."""
    errors, rows = LineErrors(), np.arange(len(lines))
    for find, explain in _CHECKS:
        bad = find(lines)
        for at, row in zip(bad.tolist(), rows[bad].tolist(), strict=True):
            errors[row] = explain(lines, at)
        if len(bad):
            keep = np.delete(np.arange(len(lines)), bad)
            lines, rows = lines.take(pa.array(keep)), rows[keep]
        if not len(lines):
            break
    return errors


def _find_not_utf8(lines: pa.Array) -> NDArray[np.int64]:
    encoded = pa.Array.from_buffers(pa.large_binary(), len(lines), lines.buffers(), offset=lines.offset)
    return find_invalid(encoded)


_CHECKS: tuple[
    tuple[Callable[[pa.Array], NDArray[np.int64]], Callable[[pa.Array, int], BadRecord]],
    ...,
] = (
    # Each check relies on the earlier ones.
    (_find_not_utf8, lambda _, __: encoding_error()),
    (lambda lines: find_bare(lines, view_offsets(lines)), explain_bare),
    (lambda lines: find_deep(lines, view_offsets(lines)), lambda _, __: too_deep_error()),
    (find_ungrammatical, lambda _, __: BadRecord("is not valid JSON")),
)
