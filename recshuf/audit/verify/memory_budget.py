"""How verify and check divide the memory limit.

while records are read:  60 %  batches, their decoding and hashing (`recshuf.job.planner.plan_reading`)
                         25 %  a sample's values, or hashes of records that may differ; 20 % for each of two samples
then:                          matching and testing a sample, or comparing one pile of hashes after another
"""

from __future__ import annotations

from typing import NamedTuple

_RECORD_BYTES = 128
"""Memory of matching and testing a record, without its value."""


class MemoryBudget(NamedTuple):
    """Shares of a memory limit."""

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
