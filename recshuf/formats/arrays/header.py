"""The header of an array in a file of NumPy.

https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import operator
import re
from ast import literal_eval
from typing import Any, NamedTuple

import numpy as np

from recshuf.errors import InputError

DAMAGED = "fetch or write the file again"


class Header(NamedTuple):
    """What a header says."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_columns: bool
    """Whether items lie column by column, in Fortran's order."""
    start: int
    """Where the values begin."""


def parse_header(name: str, place: str | None, head: bytes) -> Header:
    """Return what the header at the beginning of an array says.

    Raises
    ------
    InputError
        When it is damaged, or of Python objects; names the file and the place.
    """
    try:
        major = head[6]
        start = 10 if major == 1 else 12
        end = start + int.from_bytes(head[8:start], "little")
        text = head[start:end].decode("utf-8" if major == 3 else "latin-1")
        # Python 2 wrote its long numbers so.
        fields = literal_eval(re.sub(r"(\d)L\b", r"\1", text).strip())
        shape, dtype = (
            tuple(map(operator.index, fields["shape"])),
            np.lib.format.descr_to_dtype(fields["descr"]),
        )
        if major > 3 or end > len(head) or min(shape, default=0) < 0:
            raise ValueError(f"version {major}, shape {shape}, {end} bytes")
    except (ValueError, SyntaxError, TypeError, KeyError, IndexError, RecursionError, MemoryError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(
            name, f"has a header that is damaged: {reason}", place=place, remedy=DAMAGED
        ) from error
    if dtype.hasobject:
        problem = "holds Python objects, which only pickle reads and could run any code"
        remedy = "write its values with a type of NumPy, or as Parquet"
        raise InputError(name, problem, place=place, remedy=remedy)
    return Header(dtype, shape, bool(fields.get("fortran_order")), end)
