"""The census: what is known of the inputs before they are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recshuf.plans import InputSize
from recshuf.records import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recshuf.interfaces import InputSummary


def take_census(inputs: Sequence[InputSummary], place_bytes: int = 0) -> list[InputSize]:
    """Return the size of each input for the plan; the keys and the `place_bytes` of its records are counted in."""
    return [
        InputSize(
            record_count=summary.record_count,
            byte_count=_with_keys(summary.native_bytes, summary.record_count, KEY_BYTES + place_bytes),
            file_bytes=summary.file_bytes,
            is_exact=summary.record_count_is_exact,
        )
        for summary in inputs
    ]


def _with_keys(native_bytes: int | None, record_count: int | None, key_bytes: int) -> int | None:
    if native_bytes is None or record_count is None:
        return native_bytes
    return native_bytes + record_count * key_bytes
