"""The bytes at both ends of a Parquet file."""

from __future__ import annotations

MAGIC = b"PAR1"
MAGIC_ENCRYPTED = b"PARE"
