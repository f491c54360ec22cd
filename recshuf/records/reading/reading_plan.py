"""The plan for reading inputs within the memory limit."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReadingPlan:
    """Threads and block size for reading the inputs."""

    workers: int
    block_bytes: int
    max_record_bytes: int
