"""Values of Python of several kinds, of which Arrow makes one, and loses what others hold."""

from __future__ import annotations

from datetime import datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from pyarrow import types as pt

from recshuf.errors import UsageError
from recshuf.records.arrays.arrow_views import is_contiguous_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa


def find_mixable(
    name: str, kind: pa.DataType, values: Iterable[Any]
) -> Iterator[tuple[str, pa.DataType, list[Any]]]:
    """Yield all values of Python, but None, of each column of dates, times, durations or bytes, its name and its type.

    Parameters
    ----------
    name
        Of the column, with those of the fields down to the values.
    kind
        The type that Arrow infers.
    """
    if not _holds_mixable(kind):
        return
    given = [one for one in values if one is not None]
    if pt.is_struct(kind):
        for field in kind:
            inner = (one.get(field.name) for one in given)
            yield from find_mixable(f"{name}.{field.name}", field.type, inner)
    elif is_contiguous_list(kind):
        # Arrays of times or bytes are of one kind each, and Python takes long to look at their values.
        lists = (one for one in given if not (isinstance(one, np.ndarray) and one.dtype.kind in "MmS"))
        yield from find_mixable(name, kind.value_type, chain.from_iterable(lists))
    else:
        yield name, kind, given


def check_values(name: str, kind: pa.DataType, values: Sequence[Any]) -> None:
    """Raise `UsageError` if the type that Arrow infers would lose the time or the zone of some, or which of them are text.

    Parameters
    ----------
    name
        Of the column, with those of the fields down to the values.
    kind
        The type that Arrow infers.
    values
        None of them None.
    """
    if pt.is_binary(kind):
        if any(issubclass(one, str) for one in set(map(type, values))):
            raise UsageError(f"column {name!r} mixes text and bytes; convert them to one kind")
    elif pt.is_time(kind):
        if any(getattr(one, "tzinfo", None) is not None for one in values):
            raise UsageError(
                f"column {name!r} has times of day with a zone, which would be lost; give them without, and the zone in "
                "a column of its own"
            )
    elif is_mixable(kind):
        found = {(isinstance(one, datetime), getattr(one, "tzinfo", None) is None) for one in values}
        if len(found) > 1:
            raise UsageError(
                f"column {name!r} mixes dates and times, or times with and without a zone; convert them to one kind"
            )


def _holds_mixable(kind: pa.DataType) -> bool:
    inner = (kind.field(index).type for index in range(kind.num_fields))
    return is_mixable(kind) or any(map(_holds_mixable, inner))


def is_mixable(kind: pa.DataType) -> bool:
    """Tell whether Arrow infers a type also of values that it does not keep as they are."""
    return any(
        holds(kind) for holds in (pt.is_date, pt.is_time, pt.is_timestamp, pt.is_duration, pt.is_binary)
    )
