"""The unit of times stored as INT96: one that holds every time exactly.

INT96 exceeds the range of a 64-bit count of nanoseconds or microseconds. pyarrow drops the upper bits of times that do not
fit, and digits below the unit. Milliseconds hold every INT96 time but for these digits.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from recshuf.errors import InputError
from recshuf.formats.parquet.metadata.file import OpenFile
from recshuf.formats.parquet.metadata.page_checks import PageClaims
from recshuf.formats.parquet.schema.types import child_fields, dense_type
from recshuf.records.arrays.conforming import conform

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from recshuf.formats.parquet.metadata.footer import Footer

_BATCH_ROWS = 1 << 14
_NAMES = {"ns": "nanoseconds", "us": "microseconds"}


def choose_unit(files: Sequence[tuple[Footer, Sequence[int]]], first: str, memory_bytes: int | None) -> str:
    """Return the unit in which the INT96 times of all files are read, ``ns`` or ``us``.

    Parameters
    ----------
    files
        Footers, with the Arrow columns to read that hold INT96 times.
    first
        The unit to prefer.
    memory_bytes
        Memory limit of the run; None if there is none.

    Raises
    ------
    InputError
        When neither unit holds all of them, naming a time that does not fit each.
    """
    units = [first, *(unit for unit in _NAMES if unit != first)]
    problems = {}
    for unit in units:
        found = (_find_misfit(footer, columns, unit, memory_bytes) for footer, columns in files)
        problem = next((one for one in found if one is not None), None)
        if problem is None:
            return unit
        problems[unit] = problem
    raise InputError(
        problems["us"].name,
        f"{problems['us'].problem}, and {problems['ns'].problem} in {problems['ns'].name}",
        place=problems["us"].place,
        remedy="leave the column out with --columns, or write it with another type of time",
    )


def _find_misfit(
    footer: Footer, columns: Sequence[int], unit: str, memory_bytes: int | None
) -> InputError | None:
    """Return the error of the first time in a file that does not fit a unit; None if all fit."""
    with ExitStack() as stack:
        files = [
            stack.enter_context(OpenFile(footer.given, int96_unit=one))
            for one in dict.fromkeys((unit, "ms", "ns"))
        ]
        leaves = footer.leaves(columns)
        for group, rows in enumerate(footer.group_rows):
            if not rows:
                continue
            PageClaims(files[0], [group], leaves, memory_bytes)
            readers = [file.batches([group], leaves, _BATCH_ROWS) for file in files]
            for batches in zip(*readers, strict=True):
                for place, column in enumerate(sorted(columns)):
                    found = [list(_list_times(batch.column(place))) for batch in batches]
                    problem = next(filter(None, map(_find_problem, *found)), None)
                    if problem is not None:
                        name = footer.schema.field(column).name
                        return InputError(footer.name, problem, place=f"field {name!r}, row group {group}")
    return None


def _list_times(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the time stamps in a column, at any depth, in each unit the same ones."""
    array = conform(array, dense_type(array.type))
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    if pa.types.is_timestamp(array.type):
        yield array
    elif pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from _list_times(child)
    elif pa.types.is_map(array.type):
        yield from _list_times(array.keys)
        yield from _list_times(array.items)
    elif child_fields(array.type):
        yield from _list_times(array.flatten())


def _find_problem(times: pa.Array, coarse: pa.Array, fine: pa.Array | None = None) -> str | None:
    """Return why times do not fit their unit, given those in milliseconds, and in nanoseconds without the upper bits."""
    if times.type == coarse.type:
        return None  # stored with a unit, not as INT96
    unit = times.type.unit
    numbers = _numbers(times)
    if not np.array_equal(numbers // (1000 if unit == "us" else 1_000_000), _numbers(coarse)):
        return f"an INT96 time is outside the range of {_NAMES[unit]} in 64 bits"
    if fine is not None and not np.array_equal(numbers * 1000, _numbers(fine)):
        return f"an INT96 time has digits below {_NAMES[unit]}"
    return None


def _numbers(times: pa.Array) -> NDArray[np.int64]:
    counts = times.drop_null().cast(pa.int64())
    numbers: NDArray[np.int64] = counts.to_numpy(zero_copy_only=False)
    return numbers
