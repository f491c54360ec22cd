"""How verify and check divide the memory limit.

While records are read, 60 % are for reading: batches, their decoding and hashing. 25 % are for what is kept of them: a
sample's values, or hashes of records that may differ; two samples have 20 % each. Reading gives its share back before
samples are matched and tested, or piles of hashes are compared.
"""

from __future__ import annotations

from typing import NamedTuple

READING_SHARE = 0.6
_RECORD_BYTES = 128
"""Memory of matching and testing a record, without its value."""


class MemoryBudget(NamedTuple):
    """Shares of a memory limit beside that of reading."""

    sample_records: int
    """Most records of a sample."""
    sample_bytes: int
    """Most bytes of their values."""
    search_bytes: int
    """Most bytes of hashes kept in memory; more are spilled."""
    pile_bytes: int
    """Size of a pile of hashes."""


def divide_memory(memory_bytes: int, sample_count: int = 1) -> MemoryBudget:
    """Return the shares of a memory limit for an audit that holds so many samples at once, 1 or 2."""
    kept_bytes = memory_bytes // 4
    sample_bytes = kept_bytes if sample_count == 1 else memory_bytes // 5
    return MemoryBudget(memory_bytes // _RECORD_BYTES, sample_bytes, kept_bytes, memory_bytes // 32)
