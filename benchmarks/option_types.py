"""Types of the options of benchmarks."""

from __future__ import annotations

from click.types import FuncParamType

from recshuf.system.units import parse_size

SIZE = FuncParamType(parse_size)
"""A number of bytes, given as text such as ``300MB``."""
SIZE.name = "size"  # helps show it so
